"""Streams that a table on a device cannot use are rejected before any work is submitted to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from sparring.contracts import Streams
from sparring.errors import InvalidArgumentError
from sparring.runtime.streams import Stream

_emulated = pytest.importorskip(
    "sparring_hkv._emulated", reason="built without -DSPARRING_HKV_EMULATED=ON"
)

KEYS = np.arange(50)
DIM = 4


class Table:
    """A table with keys 0 to 9 on emulated device 0, and the calls that take a stream."""

    def __init__(self) -> None:
        self.device = _emulated.Device(0)
        self.capsule = _emulated.create_table(
            self.device,
            row_bytes=4 * DIM,
            capacity=None,
            memory_bytes=None,
            policy="none",
            hash_seed=0,
            device_memory_bytes=None,
        )
        self.upsert(0, KEYS[:10])

    def find(self, stream: int = 0) -> bytes:
        rows, found = np.empty((len(KEYS), DIM), np.float32), np.empty(len(KEYS), np.uint8)
        _emulated.table_find(self.capsule, self.device, stream, KEYS, rows, found)
        return rows.tobytes() + found.tobytes()

    def upsert(self, stream: int = 0, keys: Any = KEYS) -> None:
        rows = np.ones((len(keys), DIM), np.float32)
        _emulated.table_upsert(self.capsule, self.device, stream, keys, rows, 4 * DIM)

    def pool(self, stream: int = 0) -> None:
        zeros = _emulated.Initializer("zeros", (0.0, 0.0), 0)
        bags, offsets = np.empty((len(KEYS), DIM), np.float32), np.arange(len(KEYS) + 1)
        _emulated.pool_storage(
            self.device, stream, self.capsule, zeros, "float32", KEYS, offsets, None, bags, False
        )

    def update(self, stream: int = 0) -> None:
        step = _emulated.UpdateStep("sgd", {"lr": 0.1}, 1, 0)
        zeros = _emulated.Initializer("zeros", (0.0, 0.0), 0)
        gradients = np.ones((len(KEYS), DIM), np.float32)
        arrays = KEYS, gradients, None, None, False
        _emulated.update_storage(self.device, stream, self.capsule, step, zeros, "float32", *arrays)


CALLS: tuple[Callable[[Table, int], object], ...] = (
    Table.find,
    Table.pool,
    Table.upsert,
    Table.update,
)
NAMES = ["find", "pool", "upsert", "update"]


@pytest.fixture
def foreign() -> Iterator[Stream]:
    """A stream of emulated device 1."""
    with Streams(_emulated.streams(_emulated.Device(1))).open() as stream:
        yield stream


@pytest.mark.parametrize("call", CALLS, ids=NAMES)
def test_a_stream_of_another_device_is_rejected_and_the_table_stays_usable(
    call: Callable[[Table, int], object], foreign: Stream
) -> None:
    table = Table()
    before = table.find()
    for _ in range(2):
        with pytest.raises(InvalidArgumentError) as refused:
            call(table, foreign.handle)
        for part in ("on emulated", "belongs to emulated:1", "a stream of emulated"):
            assert part in str(refused.value)
    assert table.find() == before
    call(table, 0)


@pytest.mark.parametrize("call", CALLS, ids=NAMES)
def test_a_stream_under_capture_is_rejected_and_its_capture_continues(
    call: Callable[[Table, int], object],
) -> None:
    table = Table()
    before = table.find()
    with Streams(_emulated.streams(table.device)).open() as stream:
        _emulated.begin_capture(stream.handle)
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match=r"captured into a graph.* unchanged"):
                call(table, stream.handle)
        assert table.find() == before
        assert _emulated.end_capture(stream.handle), "the refused call has spoilt the capture"
        call(table, stream.handle)


def test_key_operations_reject_a_stream_of_another_device(foreign: Stream) -> None:
    ids = np.array([5, 5, 7])
    keys, inverse = np.empty(3, np.int64), np.empty(3, np.int64)
    device = _emulated.Device(0)
    with pytest.raises(InvalidArgumentError, match="belongs to emulated:1"):
        _emulated.dedup(device, foreign.handle, ids, keys, inverse)
    assert _emulated.dedup(device, 0, ids, keys, inverse) == 2


def test_key_operations_reject_a_stream_under_capture_and_its_capture_continues() -> None:
    device = _emulated.Device(0)
    ids, keys, inverse = np.array([5, 5, 7]), np.empty(3, np.int64), np.empty(3, np.int64)
    zeros = _emulated.Initializer("zeros", (0.0, 0.0), 0)
    bags, offsets = np.empty((3, DIM), np.float32), np.arange(4)
    with Streams(_emulated.streams(device)).open() as stream:
        _emulated.begin_capture(stream.handle)
        for call, given in (
            (_emulated.dedup, (ids, keys, inverse)),
            (_emulated.is_finite, (np.ones(3, np.float32),)),
            (
                _emulated.pool_storage,
                (None, zeros, "float32", ids, offsets, None, bags, False),
            ),
        ):
            with pytest.raises(InvalidArgumentError, match="captured into a graph"):
                call(device, stream.handle, *given)
        assert _emulated.end_capture(stream.handle), "a refused call has spoilt the capture"
