"""Messages of all tables by one native call, compared with one call per table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparring import _native
from sparring.contracts.ranks.exchange_options import WireDtype
from sparring.contracts.storage.results import Columns
from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.errors import ClosedError, InvalidArgumentError, PeerFailure
from sparring.exchange.messages import (
    PullRequest,
    PullResult,
    PushRequest,
    gradient_bytes,
    reply_bytes,
    write_failure,
)
from sparring.exchange.push import GradientSums
from sparring.exchange.routing import Chunk, RoutedKeys, route, split_into_chunks
from sparring.exchange.table_rows import TableRows
from sparring.kernels.cpu import HOST
from sparring.storage.native import NativeStorage
from sparring.storage.open import open_storage

TABLES = [
    TableConfig("a", 3, "float32", state_width=2),
    TableConfig("b", 5, "bfloat16"),
    TableConfig("c", 1, "float64"),
    TableConfig("empty", 4),
]
NUM_KEYS = (5_000, 300, 41, 17)
WORLD_SIZE = 2


@pytest.fixture
def keys() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.choice(10_000, count, replace=False) for count in NUM_KEYS]


def make_storage(backend: str, table: TableConfig) -> Storage | None:
    """Returns a storage that contains a row for every even key, except for the table without rows."""
    if table.name == "empty":
        return None
    storage = open_storage(backend, table)
    rows = np.random.default_rng(1).integers(0, 99, (5_000, table.width)).astype(table.numpy_dtype)
    storage.upsert(np.arange(0, 10_000, 2), rows)
    return storage


def make_routed(keys: list[np.ndarray]) -> RoutedKeys:
    owners = np.arange(4096, dtype=np.int32) % WORLD_SIZE
    return route(HOST, keys, [owners] * len(keys), WORLD_SIZE)


def chunks_of(routed: RoutedKeys, owner: int) -> list[Chunk]:
    return list(split_into_chunks(routed.counts[owner], 1_000))


def pull(backend: str, keys: list[np.ndarray]) -> tuple[list[np.ndarray], list[PullResult]]:
    """Pulls as both ranks: the rows of rank 1 through messages, its own rows directly."""
    requests = [
        PullRequest(make_storage(backend, table), table, each, Columns(0, table.dim))
        for table, each in zip(TABLES, keys, strict=True)
    ]
    codecs = [each.codec(WireDtype.EXACT) for each in requests]
    routed = make_routed(keys)
    results = [
        PullResult(
            np.full((len(each.keys), each.width), 7, each.table.numpy_dtype),
            np.ones(len(each.keys), np.bool_),
        )
        for each in requests
    ]
    rows, messages = TableRows(requests, codecs, routed, results), []
    for chunk in chunks_of(routed, 0):
        rows.find_own(chunk, 0)
    for chunk in chunks_of(routed, 1):
        message = np.full(reply_bytes(chunk, codecs), 9, np.uint8)
        rows.find(message, chunk, routed.streams[1][chunk.begin : chunk.end])
        rows.place(message, chunk, 1)
        messages.append(message)
    for request in requests:
        if request.storage is not None:
            request.storage.close()
    return messages, results


def test_rows_of_all_tables_equal_those_of_one_table_at_a_time(
    keys: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, results = pull("memory", keys)
    monkeypatch.setattr(NativeStorage, "find_into", None)  # the native call does not use it
    native_messages, native_results = pull("hkv", keys)
    for one, other in zip(messages, native_messages, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other, each in zip(results, native_results, keys, strict=True):
        assert one.rows.tobytes() == other.rows.tobytes()
        np.testing.assert_array_equal(one.found, other.found)
        is_stored = each % 2 == 0 if one.rows.shape[1] != 4 else np.zeros(len(each), np.bool_)
        np.testing.assert_array_equal(other.found, is_stored)


def make_rows(keys: list[np.ndarray]) -> tuple[TableRows, RoutedKeys, PullRequest, np.ndarray]:
    """Returns the rows of one native table, and a message for its keys of rank 1."""
    request = PullRequest(make_storage("hkv", TABLES[0]), TABLES[0], keys[0], Columns(0, 3))
    routed, codecs = make_routed(keys[:1]), [request.codec(WireDtype.EXACT)]
    result = PullResult(np.empty((len(keys[0]), 3), np.float32), np.empty(len(keys[0]), np.bool_))
    message = np.empty(reply_bytes(chunks_of(routed, 1)[0], codecs), np.uint8)
    return TableRows([request], codecs, routed, [result]), routed, request, message


def test_a_reply_of_a_failed_storage_names_its_rank(keys: list[np.ndarray]) -> None:
    rows, routed, _, message = make_rows(keys)
    write_failure(message)
    with pytest.raises(PeerFailure, match="rank 1 could not read the requested rows"):
        rows.place(message, chunks_of(routed, 1)[0], 1)


def test_rows_of_a_closed_storage_are_not_found(keys: list[np.ndarray]) -> None:
    _, routed, request, message = make_rows(keys)
    assert request.storage is not None
    request.storage.close()
    rows = TableRows([request], [request.codec(WireDtype.EXACT)], routed, [])
    chunk = chunks_of(routed, 1)[0]
    with pytest.raises(ClosedError, match="is closed"):
        rows.find(message, chunk, routed.streams[1][: chunk.end])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda call, chunk, stream, out: call(chunk, stream[:-1], out), "within the keys of its"),
        (lambda call, chunk, stream, out: call(chunk, stream, out[:-8]), "a message must have"),
        (lambda call, chunk, stream, out: call(chunk, stream, out[1:]), "a message must have"),
    ],
)
def test_arrays_that_are_too_short_are_rejected(
    keys: list[np.ndarray], change: Callable[..., None], match: str
) -> None:
    rows, routed, _, message = make_rows(keys)
    chunk = chunks_of(routed, 1)[0]
    stream = routed.streams[1][: chunk.end]
    with pytest.raises(InvalidArgumentError, match=match):
        change(lambda _, keys, out: rows.find(out, chunk, keys), chunk, stream, message)


class PlainSums:
    """An accumulator that native code does not know."""

    def __init__(self, dim: int, dtype: str) -> None:
        self._sums = _native.GradientAccumulator(dim, dtype)
        self.add, self.take = self._sums.add, self._sums.take


def push(keys: list[np.ndarray], *, is_native: bool) -> tuple[list[np.ndarray], list[Any]]:
    """Pushes as both ranks, twice: the gradients of rank 1's keys through messages."""
    random = np.random.default_rng(2)
    requests = []
    for table, each in zip(TABLES, keys, strict=True):
        gradients = random.standard_normal((len(each), table.dim)).astype(table.computing_dtype)
        shape = table.dim, table.computing_dtype.name
        make = None if is_native else lambda shape=shape: PlainSums(*shape)
        requests.append(PushRequest(table, each, gradients, make))
    routed = make_routed(keys)
    codecs = [each.codec(WireDtype.EXACT) for each in requests]
    sums, messages = GradientSums(requests, codecs, routed), []
    for _ in range(2):
        sums.add_own(0)
        for owner in range(WORLD_SIZE):
            for chunk in chunks_of(routed, owner):
                message = np.full(gradient_bytes(chunk, codecs), 9, np.uint8)
                sums.pack(message, chunk, owner)
                sums.add_message(message, chunk)
                messages.append(message)
    return messages, sums.take()


def test_sums_of_all_tables_equal_those_of_one_table_at_a_time(keys: list[np.ndarray]) -> None:
    messages, sums = push(keys, is_native=False)
    native_messages, native_sums = push(keys, is_native=True)
    for one, other in zip(messages, native_messages, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(sums, native_sums, strict=True):
        np.testing.assert_array_equal(one.keys, other.keys)
        np.testing.assert_array_equal(one.gradients, other.gradients)
