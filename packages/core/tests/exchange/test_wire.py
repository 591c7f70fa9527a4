"""Messages between ranks: their rounding errors and their sizes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sparring import _native
from sparring.collective.local import LocalGroup
from sparring.contracts.ranks.collective import OPERATION_TAG, Collective
from sparring.contracts.ranks.exchange_options import ExchangeOptions, WireDtype
from sparring.contracts.ranks.shard_map import ShardMap
from sparring.contracts.storage.results import Columns
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.resource_manager import ResourceManager
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import InvalidArgumentError, NonFiniteGradientError
from sparring.exchange.headers import header_bytes
from sparring.exchange.messages import Codec, PullRequest, PushRequest
from sparring.exchange.ring import RingExchange
from sparring.kernels import functions as kernels
from sparring.storage.open import open_storage
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.table_steps import descend
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

RANDOM = np.random.default_rng(5)


def travelled(rows: np.ndarray, wire_dtype: WireDtype) -> tuple[np.ndarray, Codec]:
    codec = Codec(rows.dtype, rows.shape[1], wire_dtype)
    wire = np.zeros(len(rows) * codec.row_bytes, np.uint8)
    codec.encode(rows, wire)
    return codec.decode(wire, len(rows)).copy(), codec


def some_rows(dim: int = 33) -> np.ndarray:
    """Returns rows of very different magnitudes, one of them zeros."""
    scales = 10.0 ** RANDOM.uniform(-20, 20, (200, 1))
    rows = (RANDOM.normal(size=(200, dim)) * scales).astype(np.float32)
    rows[7] = 0
    return rows


# -- how exact -------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 7, 16, 33, 128])
def test_int8_is_within_a_253rd_of_the_largest_number_of_a_row(dim: int) -> None:
    rows = some_rows(dim)
    rows[:, 0] = np.abs(rows).max(axis=1)  # the largest one is met exactly
    arrived, codec = travelled(rows, WireDtype.INT8)
    assert codec.row_bytes == dim + 4
    largest = np.abs(rows.astype(np.float64)).max(axis=1, keepdims=True)
    error = np.abs(rows.astype(np.float64) - arrived)
    assert (error <= largest / 253).all()
    np.testing.assert_allclose(arrived[:, 0], rows[:, 0], rtol=2e-7)
    assert not arrived[7].any()


def test_int8_uses_its_whole_range() -> None:
    rows = np.linspace(-127, 127, 255, dtype=np.float32)[None, :]
    arrived, _ = travelled(rows, WireDtype.INT8)
    np.testing.assert_array_equal(arrived, rows)


@pytest.mark.parametrize("magnitude", [1e-45, 1e-38, 2.0**-120])
def test_int8_rows_too_small_for_a_scale_become_zeros(magnitude: float) -> None:
    arrived, _ = travelled(np.full((1, 5), magnitude, np.float32), WireDtype.INT8)
    assert not arrived.any()


@pytest.mark.parametrize(
    ("wire_dtype", "bound"), [(WireDtype.BFLOAT16, 2.0**-8), (WireDtype.FLOAT16, 2.0**-11)]
)
def test_16_bits_round_to_nearest(wire_dtype: WireDtype, bound: float) -> None:
    rows = RANDOM.normal(size=(100, 17)).astype(np.float32)
    rows = np.where(np.abs(rows) < 2.0**-14, 1, rows).astype(np.float32)
    arrived, codec = travelled(rows, wire_dtype)
    assert codec.row_bytes == 34
    assert (np.abs(arrived - rows) <= bound * np.abs(rows)).all()


@pytest.mark.parametrize(
    ("wire_dtype", "largest"),
    [(WireDtype.FLOAT16, 65504.0), (WireDtype.BFLOAT16, float(ml_dtypes.finfo("bfloat16").max))],
)
def test_finite_numbers_stay_finite_and_others_stay_unchanged(
    wire_dtype: WireDtype, largest: float
) -> None:
    rows = np.array([[3e38, -3.4e38, np.inf, -np.inf, np.nan, 65519, -70000]], np.float32)
    arrived, _ = travelled(rows, wire_dtype)
    assert np.isfinite(arrived[0, :2]).all()
    assert abs(arrived[0, 1]) <= largest * (1 + 1e-6)
    assert arrived[0, 2] == np.inf
    assert arrived[0, 3] == -np.inf
    assert np.isnan(arrived[0, 4])
    assert np.isfinite(arrived[0, 5:]).all()


def test_an_int8_row_with_nan_or_infinity_arrives_as_nan_and_its_neighbors_do_not() -> None:
    rows = np.ones((4, 6), np.float32)
    rows[1, 3], rows[2, 0] = np.nan, np.inf
    arrived, _ = travelled(rows, WireDtype.INT8)
    assert np.isnan(arrived).all(axis=1).tolist() == [False, True, True, False]
    np.testing.assert_array_equal(arrived[0], rows[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("wire_dtype", [each for each in WireDtype if each is not WireDtype.INT8])
def test_a_16_bit_table_travels_bit_for_bit(dtype: str, wire_dtype: WireDtype) -> None:
    """All 65,536 patterns, including NaNs with payloads."""
    numpy_dtype = TableConfig("half", 4, dtype).numpy_dtype
    rows = np.arange(65_536, dtype=np.uint16).view(numpy_dtype).reshape(-1, 4)
    arrived, codec = travelled(rows, wire_dtype)
    assert codec.row_bytes == 8
    assert arrived.tobytes() == rows.tobytes()


def test_a_16_bit_table_may_travel_as_int8() -> None:
    rows = some_rows(8)[:, :8].clip(-1e4, 1e4).astype(np.float16)
    arrived, codec = travelled(rows, WireDtype.INT8)
    assert arrived.dtype == np.float16
    largest = np.abs(rows.astype(np.float64)).max(axis=1, keepdims=True)
    error = np.abs(rows.astype(np.float64) - arrived.astype(np.float64))
    assert codec.row_bytes == 12
    assert (error <= largest / 253 + largest * 2.0**-11 + 2.0**-24).all()


def test_float64_travels_unchanged_by_default() -> None:
    rows = RANDOM.normal(size=(9, 5))
    rows[0, 0], rows[0, 1] = 1e300, np.inf
    exact, codec = travelled(rows, WireDtype.EXACT)
    assert codec.row_bytes == 40
    assert exact.tobytes() == rows.tobytes()
    narrow, codec = travelled(rows, WireDtype.FLOAT32)
    assert (codec.row_bytes, narrow.dtype) == (20, np.dtype(np.float64))
    np.testing.assert_allclose(narrow[1:], rows[1:], rtol=2.0**-24)
    assert np.isfinite(narrow[0, 0])
    assert narrow[0, 1] == np.inf
    small, codec = travelled(rows[1:], WireDtype.INT8)
    assert codec.row_bytes == 9
    assert (np.abs(small - rows[1:]) <= np.abs(rows[1:]).max(axis=1, keepdims=True) / 253).all()


def test_every_simd_level_gives_the_same_bits() -> None:
    rows = some_rows(19)
    first = kernels.simd_level()
    try:
        for wire_dtype in (WireDtype.INT8, WireDtype.FLOAT16, WireDtype.BFLOAT16):
            arrived = set()
            for level in _native.simd_levels():
                kernels.set_simd_level(level)
                arrived.add(travelled(rows, wire_dtype)[0].tobytes())
            assert len(arrived) == 1
    finally:
        kernels.set_simd_level(first)


def test_options_out_of_range_are_rejected() -> None:
    for wrong in (
        {"chunk_rows": 0},
        {"chunk_rows": True},
        {"chunks_in_flight": 65},
        {"row_wire_dtype": "int4"},
    ):
        with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
            ExchangeOptions(**wrong)


@pytest.mark.parametrize("wire_dtype", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_non_finite_gradients_are_seen_before_they_are_rounded(
    wire_dtype: str, policy: str
) -> None:
    """Both ranks send to both; rank 1 has one NaN and one infinity."""
    table = TableConfig("item", 4)

    def body(collective: Collective) -> Any:
        made = StepContainer(
            collective=collective,
            rendezvous=ThreadRendezvous(2),
            non_finite_gradients=policy,
            exchange=ExchangeOptions(gradient_wire_dtype=wire_dtype),
        )
        made.declare(table, StorageChoice("memory"))
        found = made.lookup("item", np.arange(40))
        gradient = np.ones((40, 4), np.float32)
        if collective.rank == 1:
            gradient[5, 1], gradient[20, 2] = np.nan, -np.inf
        made.resources.accumulate(found.shadow_id or 0, gradient)
        try:
            made.apply(descend(1.0))
        except NonFiniteGradientError as error:
            assert policy == "raise"
            assert made.num_rows("item") == 0
            return str(error)
        keys, rows = [], []
        for chunk in made.storage("item").scan():
            keys += chunk.keys.tolist()
            rows.append(chunk.rows.copy())
        start = kernels.initial_rows(np.array(keys), table)
        moved = start - np.concatenate(rows)
        expected = np.where(np.isin(keys, [5, 20])[:, None], 0.5, 1.0)
        np.testing.assert_allclose(moved, np.broadcast_to(expected, moved.shape), rtol=1e-2)
        return made.counters.rows_skipped_non_finite

    results = run_ranks(2, body)
    if policy == "skip":
        assert results == [0, 2]
    else:
        assert all("key 5" in each for each in results)


# -- how many bytes --------------------------------------------------------------


class Counting:
    """Counts the bytes of messages by the methods of a collective."""

    def __init__(self, collective: Collective) -> None:
        self.sent = 0
        send_impl = collective._send_impl
        all_to_all_impl = collective._all_to_all_impl

        def send(buffer: Any, destination: int, tag: int) -> Any:
            if tag < OPERATION_TAG:
                self.sent += buffer.nbytes
            return send_impl(buffer, destination, tag)

        def all_to_all(parts: Any) -> Any:
            mine = collective.rank
            self.sent += sum(part.nbytes for peer, part in enumerate(parts) if peer != mine)
            return all_to_all_impl(parts)

        collective._send_impl = send  # type: ignore[method-assign]
        collective._all_to_all_impl = all_to_all  # type: ignore[method-assign]


TABLES = (
    TableConfig("wide", 16),
    TableConfig("odd", 3, "float64", state_width=1),
    TableConfig("half", 5, "bfloat16"),
)


def stream_bytes(counts: np.ndarray, each: list[int], chunk_rows: int) -> int:
    """The formula of docs/explanation/ring-exchange.md, computed by counting single rows."""
    tables = np.repeat(np.arange(len(each)), counts)
    total = 0
    for begin in range(0, len(tables), chunk_rows):
        pieces = np.bincount(tables[begin : begin + chunk_rows], minlength=len(each))
        total += sum((int(n) * size + 7) // 8 * 8 for n, size in zip(pieces, each, strict=True))
    return total


@pytest.mark.parametrize("wire_dtype", ["exact", "bfloat16", "int8"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_bytes_on_the_wire_match_the_formula(wire_dtype: str, world_size: int) -> None:
    shard_map = ShardMap.balanced(world_size)
    chunk_rows = 7
    row_bytes = {
        "exact": [64, 24, 10],
        "bfloat16": [32, 6, 10],
        "int8": [20, 7, 9],
    }[wire_dtype]
    gradient_bytes = {
        "exact": [64, 24, 20],
        "bfloat16": [32, 6, 10],
        "int8": [20, 7, 9],
    }[wire_dtype]

    def keys(rank: int, table: int) -> np.ndarray:
        return np.random.default_rng((rank, table)).permutation(100)[: 30 + rank * 11 + table]

    def counts_of(rank: int) -> np.ndarray:
        """Returns the number ``(world_size, tables)`` of keys of a rank per owner."""
        return np.stack(
            [
                np.bincount(
                    shard_map.owners[kernels.partition(keys(rank, table))], minlength=world_size
                )
                for table in range(3)
            ],
            axis=1,
        )

    def body(collective: Collective) -> None:
        counting = Counting(collective)
        rank = collective.rank
        options = ExchangeOptions(
            chunk_rows, row_wire_dtype=wire_dtype, gradient_wire_dtype=wire_dtype
        )
        exchange = RingExchange(collective, shard_map, options)
        storages = [open_storage("memory", table) for table in TABLES]
        exchange.pull_all(
            [
                PullRequest(storage, table, keys(rank, number), Columns(0, table.dim))
                for number, (storage, table) in enumerate(zip(storages, TABLES, strict=True))
            ]
        )
        exchange.push_all(
            [
                PushRequest(
                    table,
                    keys(rank, number),
                    np.ones((len(keys(rank, number)), table.dim), table.computing_dtype),
                    lambda table=table: ResourceManager.make_accumulator(table),
                )
                for number, table in enumerate(TABLES)
            ]
        )
        others = [peer for peer in range(world_size) if peer != rank]
        asked = counts_of(rank)
        served = {peer: counts_of(peer)[rank] for peer in others}
        replies = [size + 1 for size in row_bytes]
        pushes = [size + 8 for size in gradient_bytes]
        sent, received = exchange.counters.wire_bytes_sent, exchange.counters.wire_bytes_received
        assert sent.headers == received.headers == 2 * header_bytes(3) * len(others)
        assert sent.keys == 8 * sum(asked[peer].sum() for peer in others)
        assert received.keys == 8 * sum(served[peer].sum() for peer in others)
        assert sent.rows == sum(stream_bytes(served[peer], replies, chunk_rows) for peer in others)
        assert received.rows == sum(
            stream_bytes(asked[peer], replies, chunk_rows) for peer in others
        )
        assert sent.gradients == sum(
            stream_bytes(asked[peer], pushes, chunk_rows) for peer in others
        )
        assert received.gradients == sum(
            stream_bytes(served[peer], pushes, chunk_rows) for peer in others
        )
        assert sent.total == counting.sent

    run_ranks(world_size, body)


def test_a_world_of_one_sends_nothing() -> None:
    exchange = RingExchange(LocalGroup(1).join(0), ShardMap.balanced(1))
    storage = open_storage("memory", TABLES[0])
    exchange.pull(storage, TABLES[0], np.arange(10), Columns(0, 16))
    assert exchange.counters.wire_bytes_sent.total == 0


def test_counts_of_more_tables_than_fit_in_a_header_arrive() -> None:
    tables = [TableConfig(f"table{number}", 2) for number in range(70)]

    def body(collective: Collective) -> None:
        exchange = RingExchange(collective, ShardMap.balanced(2), ExchangeOptions(chunk_rows=64))
        requests = []
        for number, table in enumerate(tables):
            storage = open_storage("memory", table)
            stored = np.arange(number)
            storage.upsert(stored, np.repeat(stored[:, None], 2, axis=1).astype(np.float32))
            wanted = np.arange(collective.rank, number, 3 if number % 2 else 1)
            requests.append(PullRequest(storage, table, wanted, Columns(0, table.dim)))
        for request, pulled in zip(requests, exchange.pull_all(requests), strict=True):
            assert pulled.found.all()
            np.testing.assert_array_equal(pulled.rows[:, 0], request.keys)

    run_ranks(2, body)
