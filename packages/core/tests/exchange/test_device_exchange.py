"""The ring exchange of device arrays has the same results as for host arrays, bit for bit.

The file is long because every path of the exchange is compared on the same ranks and tables.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from sparring.collective.local import LocalCollective, LocalGroup
from sparring.contracts.device.kernel_set import KernelSet
from sparring.contracts.device.kernels import ArraySource
from sparring.contracts.ranks.collective import Collective, Work
from sparring.contracts.ranks.exchange_options import ExchangeOptions
from sparring.contracts.ranks.layout import Layout
from sparring.contracts.ranks.shard_map import ShardMap
from sparring.contracts.storage.results import Columns
from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.engine.resource_manager import ResourceManager
from sparring.errors import (
    DeviceError,
    InvalidArgumentError,
    PeerFailure,
    UnsupportedError,
)
from sparring.exchange.messages import PullRequest, PushRequest
from sparring.exchange.ring import RingExchange
from sparring.plugins.registry import make_plugin_manager
from sparring.runtime.trace import Trace
from sparring.storage.open import open_storage
from sparring_testing.processes.deadlines import check_with_deadlines

from .on_device import OnDevice, wanted

pytest.importorskip("sparring_nccl", reason="sparring-nccl is not installed")
from sparring_nccl.testing import FakeGpus, GpuArray, NcclCollective, open_fake_nccl
from sparring_testing.processes.rank_threads import run_ranks

from .on_device import rows_for

_emulated = pytest.importorskip(
    "sparring_hkv._emulated",
    reason="sparring-hkv was built without the emulator (-DSPARRING_HKV_EMULATED=ON)",
)

ITEM = TableConfig("item", 6, "float32")
USER = TableConfig("user", 3, "float16", state_width=2)
TABLES = (ITEM, USER)
DIRECT, STAGED, NCCL, SLOW = "direct", "staged", "nccl", "slow"
WAYS = pytest.mark.parametrize("way", [DIRECT, STAGED, NCCL])


class DirectCollective(LocalCollective):
    """A collective that supports the emulator's memory, which is host memory."""

    devices = ("cpu", "emulated")


class _Slow(Work):
    """A message that takes some time."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._due = time.monotonic() + 0.02

    def done(self) -> bool:
        return time.monotonic() >= self._due and self._work.done()

    def wait(self) -> None:
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._work.wait()


class SlowCollective(LocalCollective):
    def _receive_impl(self, buffer: Any, source: int, tag: int) -> Work:
        return _Slow(super()._receive_impl(buffer, source, tag))


class EmulatedNccl(NcclCollective):
    """Streams of the emulator are not streams of the simulated device."""

    devices = ("cpu", "emulated")

    def send(
        self, buffer: Any, destination: int, tag: int = 0, *, stream: int | None = None
    ) -> Any:
        return super().send(buffer, destination, tag)

    def receive(self, buffer: Any, source: int, tag: int = 0, *, stream: int | None = None) -> Any:
        return super().receive(buffer, source, tag)


def _gpu_array(array: Any) -> GpuArray:
    return np.ascontiguousarray(array).view(GpuArray)


ARRAYS = ArraySource(
    empty=lambda shape, dtype: np.empty(shape, dtype).view(GpuArray),
    stream=lambda: 0,
    from_host=_gpu_array,
    to_host=lambda array: np.asarray(array).copy(),
    concatenate=lambda parts: _gpu_array(np.concatenate(list(parts))),
)


def device_kernels() -> KernelSet:
    return make_plugin_manager().kernels("emulated").factory(ARRAYS)


def joining(way: str) -> Callable[[LocalGroup, int], Collective]:
    """Returns a function that opens the collectives of one way to send messages."""
    if way == NCCL:
        fake = open_fake_nccl()
        return lambda group, rank: EmulatedNccl(group.join(rank), fake.nccl, fake.cuda, device=rank)
    return {DIRECT: DirectCollective, STAGED: LocalCollective, SLOW: SlowCollective}[way]


def layout_of(table: str, world_size: int) -> ShardMap:
    """All rows of users are on the first rank."""
    if table == ITEM.name:
        return ShardMap.balanced(world_size)
    return Layout(np.zeros(4096, np.int32), world_size, "table_wise")


def shards(
    collective: Collective,
    shard_map: ShardMap,
    device: str,
    layouts: Callable[[str], ShardMap] | None = None,
) -> list[Storage]:
    """This rank's shard of each table, with two thirds of all keys."""
    from sparring.kernels import functions as kernels

    storages = []
    stored = np.arange(-400, 400)
    for table in TABLES:
        storage = open_storage("hkv", table, device=device)
        owners = (shard_map if layouts is None else layouts(table.name)).owners
        mine = stored[owners[kernels.partition(stored)] == collective.rank]
        storage.upsert(mine, rows_for(table, mine))
        storages.append(storage)
    return storages


def keys_of(rank: int, world_size: int, place: int) -> Any:
    """Returns overlapping, uneven keys; the last of several ranks requests no key of the first
    table."""
    if world_size > 1 and rank == world_size - 1 and place == 0:
        return np.empty(0, np.int64)
    count = 150 + 100 * rank if place == 0 else 3 * rank
    return np.random.default_rng(10 * rank + place).permutation(np.arange(-600, 600))[:count]


@WAYS
@pytest.mark.parametrize(
    ("world_size", "chunk_rows"),
    [
        pytest.param(1, 4096, marks=pytest.mark.slow),
        (2, 4096),
        pytest.param(4, 16, marks=pytest.mark.slow),
        *(pytest.param(*each, marks=pytest.mark.long) for each in ((1, 16), (2, 16), (4, 4096))),
    ],
)
def test_pulled_rows_equal_the_host_ring(
    fake_gpus: FakeGpus, way: str, world_size: int, chunk_rows: int
) -> None:
    shard_map = ShardMap.balanced(world_size)
    layouts = partial(layout_of, world_size=world_size)
    options = ExchangeOptions(chunk_rows=chunk_rows, chunks_in_flight=3)

    def on_device(collective: Collective) -> Any:
        storages = shards(collective, shard_map, "emulated", layouts)
        keys = [keys_of(collective.rank, world_size, place) for place in range(2)]
        with RingExchange(collective, shard_map, options, layout_of=layouts) as exchange:
            device = OnDevice(exchange, device_kernels())
            assert device.stager is exchange.stager(device_kernels())
            assert device.stager.is_direct == (way != STAGED)
            requests = [
                wanted(storage, table, _gpu_array(each), columns)
                for storage, table, each, columns in zip(
                    storages, TABLES, keys, (None, 5), strict=True
                )
            ]
            first = device.pull_all(requests)
            again = device.pull_all(requests, is_training=False)
            for one, other in zip(first, again, strict=True):
                np.testing.assert_array_equal(one.rows, other.rows)
            sent = exchange.counters.wire_bytes_sent
            return [(np.array(each.rows), np.array(each.found)) for each in first], sent

    def on_host(collective: Collective) -> Any:
        storages = shards(collective, shard_map, "cpu", layouts)
        keys = [keys_of(collective.rank, world_size, place) for place in range(2)]
        with RingExchange(collective, shard_map, options, layout_of=layouts) as exchange:
            requests = [
                PullRequest(storage, table, each, Columns(0, end))
                for storage, table, each, end in zip(storages, TABLES, keys, (6, 5), strict=True)
            ]
            return [(each.rows, each.found) for each in exchange.pull_all(requests)]

    expected = run_ranks(world_size, on_host, 20.0, joining(STAGED))
    for (found, sent), known in zip(
        run_ranks(world_size, on_device, 20.0, joining(way)), expected, strict=True
    ):
        assert (sent.rows > 0) == (world_size > 1)
        for (rows, flags), (known_rows, known_flags) in zip(found, known, strict=True):
            assert rows.tobytes() == known_rows.tobytes()
            np.testing.assert_array_equal(flags, known_flags)


@WAYS
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_pushed_gradients_add_up_to_the_bits_of_the_host_ring(
    fake_gpus: FakeGpus, way: str, world_size: int
) -> None:
    shard_map = ShardMap.balanced(world_size)
    layouts = partial(layout_of, world_size=world_size)
    options = ExchangeOptions(chunk_rows=32, chunks_in_flight=2)

    def gradients_of(rank: int, table: TableConfig, keys: Any) -> Any:
        numbers = np.random.default_rng(rank).standard_normal((len(keys), table.dim))
        return numbers.astype(table.computing_dtype)

    def both(
        collective: Collective, push: Callable[[RingExchange, list[Any], list[Any]], Any]
    ) -> Any:
        keys = [keys_of(collective.rank, world_size, place) for place in range(2)]
        gradients = [
            gradients_of(collective.rank, table, each)
            for table, each in zip(TABLES, keys, strict=True)
        ]
        with RingExchange(collective, shard_map, options, layout_of=layouts) as exchange:
            return [
                (np.array(each.keys), np.array(each.gradients))
                for each in push(exchange, keys, gradients)
            ]

    def on_device(exchange: RingExchange, keys: list[Any], gradients: list[Any]) -> Any:
        return OnDevice(exchange, device_kernels()).push_all(
            [
                PushRequest(table, _gpu_array(one), _gpu_array(other))
                for table, one, other in zip(TABLES, keys, gradients, strict=True)
            ]
        )

    def on_host(exchange: RingExchange, keys: list[Any], gradients: list[Any]) -> Any:
        return exchange.push_all(
            [
                PushRequest(
                    table, one, other, lambda table=table: ResourceManager.make_accumulator(table)
                )
                for table, one, other in zip(TABLES, keys, gradients, strict=True)
            ]
        )

    expected = run_ranks(world_size, lambda each: both(each, on_host), 20.0, joining(STAGED))
    found = run_ranks(world_size, lambda each: both(each, on_device), 20.0, joining(way))
    for of_rank, known_of_rank in zip(found, expected, strict=True):
        for (keys, sums), (known_keys, known_sums) in zip(of_rank, known_of_rank, strict=True):
            np.testing.assert_array_equal(keys, known_keys)
            assert sums.tobytes() == known_sums.tobytes()


def test_both_directions_of_a_turn_are_one_group_of_nccl(fake_gpus: FakeGpus) -> None:
    shard_map = ShardMap.balanced(2)

    def body(collective: Collective) -> None:
        storages = shards(collective, shard_map, "emulated")
        options = ExchangeOptions(chunk_rows=50, chunks_in_flight=4)
        with RingExchange(collective, shard_map, options) as exchange:
            # Rank 1 requests more than rank 0, and so has turns that only receive rows.
            keys = _gpu_array(np.arange(200 + 200 * collective.rank))
            device = OnDevice(exchange, device_kernels())
            device.pull_all([wanted(storages[0], ITEM, keys)])

    run_ranks(2, body, 20.0, joining(NCCL))
    for rank in range(2):
        lines, other = fake_gpus.log(rank), 1 - rank
        assert sorted(part.split(" ", 1)[1] for part in lines[0].split(", ")) == [
            f"from {other}",
            f"to {other}",
        ]
        # For each turn: rows and whether they were found, in each direction if there are any.
        both = [f"from {other}"] * 2, [f"to {other}"] * 2
        shapes = [[part.split(" ", 1)[1] for part in line.split(", ")] for line in lines[1:]]
        assert both[0] + both[1] in shapes
        assert all(shape in (both[0] + both[1], *both) for shape in shapes)
        one_way = both[1] if rank == 0 else both[0]
        assert shapes[-1] == one_way


@pytest.mark.parametrize("world_size", [2, 4])
def test_empty_batches_are_accepted(world_size: int) -> None:
    shard_map = ShardMap.balanced(world_size)
    nothing = np.empty(0, np.int64)

    def body(collective: Collective) -> None:
        with RingExchange(collective, shard_map) as exchange:
            device = OnDevice(exchange, device_kernels())
            pulled = device.pull_all([wanted(None, ITEM, _gpu_array(nothing))])[0]
            assert pulled.rows.shape == (0, 6)
            # No rank has a storage yet, so rows are missing.
            keys = nothing if collective.rank else np.arange(100)
            pulled = device.pull_all([wanted(None, ITEM, _gpu_array(keys))])[0]
            assert not np.any(pulled.rows)
            assert not np.any(pulled.found)
            gradients = np.empty((0, 6), np.float32)
            pushed = device.push_all(
                [PushRequest(ITEM, _gpu_array(nothing), _gpu_array(gradients))]
            )
            assert pushed[0].gradients.shape == (0, 6)

    run_ranks(world_size, body, 20.0, joining(DIRECT))
    run_ranks(world_size, body, 20.0, joining(STAGED))


def test_finds_overlap_with_the_previous_hop_and_a_trace_shows_both_lanes() -> None:
    shard_map = ShardMap.balanced(4)

    def body(collective: Collective) -> Any:
        storages = shards(collective, shard_map, "emulated")
        trace = Trace(collective.rank)
        with RingExchange(collective, shard_map, ExchangeOptions(chunk_rows=4096)) as exchange:
            exchange.trace = trace
            device = OnDevice(exchange, device_kernels())
            keys = np.arange(-400 + collective.rank, 400)
            device.pull_all([wanted(storages[0], ITEM, _gpu_array(keys))])
            gradients = np.ones((len(keys), 6), np.float32)
            device.push_all([PushRequest(ITEM, _gpu_array(keys), _gpu_array(gradients))])
        return trace

    for trace in run_ranks(4, body, 20.0, joining(SLOW)):
        on_lines = [span for span in trace.spans if span.line]
        assert {span.line for span in on_lines} == {
            "stream of emulated: find",
            "stream of emulated: place",
            "stream of emulated: add up",
        }
        finds = {s.details["of"]: s for s in on_lines if s.name == "find"}
        assert set(finds) == {"hop 0", *(f"hop {hop} chunk 0" for hop in (1, 2, 3))}
        for hop in (1, 2):
            travels = [
                span
                for span in trace.spans
                if span.name in ("send rows", "receive rows")
                and span.details["of"] == f"hop {hop} chunk 0"
            ]
            assert len(travels) == 2
            found = finds[f"hop {hop + 1} chunk 0"]
            begin = min(span.begin_ns for span in travels)
            end = max(span.end_ns for span in travels)
            assert begin < found.begin_ns < end, "the next hop was found after this one travelled"
        names = {
            event["args"]["name"] for event in trace._events() if event["name"] == "thread_name"
        }
        assert {span.line for span in on_lines} <= names


@pytest.mark.parametrize("way", [DIRECT, STAGED])
def test_a_silent_rank_fails_the_others_within_the_deadline(way: str) -> None:
    shard_map = ShardMap.balanced(3)

    def check(deadline: float) -> None:
        def body(collective: Collective) -> float:
            storages = shards(collective, shard_map, "emulated")
            with RingExchange(collective, shard_map) as exchange:
                device = OnDevice(exchange, device_kernels())
                requests = [wanted(storages[0], ITEM, _gpu_array(np.arange(200)))]
                device.pull_all(requests)
                if collective.rank == 1:
                    time.sleep(3 * deadline)
                    return 0.0
                begin = time.monotonic()
                with pytest.raises(PeerFailure) as caught:
                    device.pull_all(requests)
                seconds = time.monotonic() - begin
                assert caught.value.details["rank"] == 1
                with pytest.raises(PeerFailure):
                    device.pull_all(requests)
            return seconds

        # Before the silent rank leaves, which would be a failure too.
        assert max(run_ranks(3, body, deadline, joining(way))) < 2 * deadline

    check_with_deadlines(check, (0.5, 4.0))


class _Failing:
    """Kernels of a rank whose storage or device fails."""

    def __init__(self, kernels: KernelSet, error: BaseException, name: str) -> None:
        self._kernels, self._error, self._name = kernels, error, name

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            raise self._error
        return getattr(self._kernels, name)


@WAYS
def test_a_failing_storage_is_reported_on_all_ranks(fake_gpus: FakeGpus, way: str) -> None:
    shard_map = ShardMap.balanced(3)
    have_raised = threading.Barrier(3)

    def body(collective: Collective) -> str:
        storages = shards(collective, shard_map, "emulated")
        kernels: Any = device_kernels()
        if collective.rank == 1:
            kernels = _Failing(kernels, UnsupportedError("the shard is elsewhere"), "find_into")
        with RingExchange(collective, shard_map) as exchange:
            device = OnDevice(exchange, kernels)
            requests = [wanted(storages[0], ITEM, _gpu_array(np.arange(200)))]
            with pytest.raises((PeerFailure, UnsupportedError)) as caught:
                device.pull_all(requests)
            have_raised.wait(60)  # so that the end of a rank is not mistaken for the cause
        return str(caught.value)

    found = run_ranks(3, body, 20.0, joining(way))
    assert found[1] == "the shard is elsewhere"
    for rank in (0, 2):
        assert "rank 1 could not read the requested rows" in found[rank]


@WAYS
def test_a_rank_that_loses_its_device_is_named_by_the_others(fake_gpus: FakeGpus, way: str) -> None:
    shard_map = ShardMap.balanced(3)

    def body(collective: Collective) -> Any:
        kernels: Any = device_kernels()
        if collective.rank == 2:
            kernels = _Failing(kernels, DeviceError("fell off the bus"), "gather")
        begin = time.monotonic()
        with RingExchange(collective, shard_map) as exchange:
            device = OnDevice(exchange, kernels)
            keys = np.arange(300)
            request = PushRequest(ITEM, _gpu_array(keys), _gpu_array(np.ones((300, 6), np.float32)))
            with pytest.raises((PeerFailure, DeviceError)) as caught:
                device.push_all([request])
            with pytest.raises(PeerFailure):
                device.push_all([request])
        return caught.value, time.monotonic() - begin

    found = run_ranks(3, body, 20.0, joining(way))
    assert isinstance(found[2][0], DeviceError)
    for rank in (0, 1):
        error, seconds = found[rank]
        assert isinstance(error, PeerFailure)
        assert error.details["rank"] == 2
        assert seconds < 10.0, "the deadline was waited for"


def test_operations_that_a_device_does_not_support_are_rejected() -> None:
    def body(collective: Collective) -> None:
        options = ExchangeOptions(row_wire_dtype="int8", gradient_wire_dtype="bfloat16")
        with RingExchange(collective, ShardMap.balanced(2), options) as exchange:
            device = OnDevice(exchange, device_kernels())
            keys, gradients = _gpu_array(np.arange(3)), _gpu_array(np.ones((3, 6), np.float32))
            with pytest.raises(InvalidArgumentError, match=r"row_wire_dtype must be exact.*int8"):
                device.pull_all([wanted(None, ITEM, keys)])
            with pytest.raises(InvalidArgumentError, match=r"gradient_wire_dtype.*bfloat16"):
                device.push_all([PushRequest(ITEM, keys, gradients)])
            replicated = TableConfig("small", 6, placement="replicated")
            with pytest.raises(UnsupportedError, match="'small' is replicated"):
                device.push_all([PushRequest(replicated, keys, gradients)])
            with pytest.raises(UnsupportedError, match="have no streams"):
                OnDevice(exchange, make_plugin_manager().kernels("cpu").factory(ARRAYS))
            stuck: Any = device_kernels()
            stuck.device = "cuda:0"
            with pytest.raises(InvalidArgumentError, match="cuda:0 cannot change streams"):
                OnDevice(exchange, stuck)

    run_ranks(2, body, 20.0, joining(DIRECT))


def test_ranks_that_pull_on_the_device_and_on_the_host_reject_each_other() -> None:
    def body(collective: Collective) -> None:
        with RingExchange(collective, ShardMap.balanced(2)) as exchange:
            keys = np.arange(3)
            device = OnDevice(exchange, device_kernels())

            def pull() -> None:
                if collective.rank:
                    exchange.pull(None, ITEM, keys, Columns(0, 6))
                else:
                    device.pull_all([wanted(None, ITEM, _gpu_array(keys))])

            with pytest.raises(InvalidArgumentError, match="on a device"):
                pull()

    run_ranks(2, body, 20.0, joining(STAGED))
