"""Tables of 16-bit and int8 rows: layout, lookups and steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from sparring import _native
from sparring.contracts.device.kernels import Rounding
from sparring.contracts.ranks.collective import Collective, Reduction
from sparring.contracts.ranks.layout import ShardingPlan, TableSharding
from sparring.contracts.ranks.rendezvous import Rendezvous
from sparring.contracts.storage.updates import MethodChoice, UpdateMethod, UpdateRows
from sparring.contracts.tables.hyperparameters import HyperParameters
from sparring.contracts.tables.initializers import Uniform
from sparring.contracts.tables.table import DTYPES, TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring.kernels import functions as kernels
from sparring.kernels.mixed_precision import read_state, write_state
from sparring.storage.convert import copy_embeddings
from sparring.storage.native import get_capsule
from sparring.storage.open import open_storage
from sparring.updates.builtin import BUILTIN_METHODS
from sparring.updates.resolve import parse_hyper, resolve_method
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.table_steps import descend
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

NARROW = ["float16", "bfloat16", "int8"]
MEMORY = StorageChoice("memory")


def narrow_table(dtype: str, dim: int = 5) -> TableConfig:
    return TableConfig("item", dim, dtype, Uniform(-1, 1))


def bits(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return rows.view(f"u{rows.itemsize}")


def stored_rows(
    table: TableConfig, embeddings: npt.NDArray[Any], state: npt.NDArray[Any], rounding: Rounding
) -> npt.NDArray[Any]:
    rows = np.zeros((len(embeddings), table.width), table.numpy_dtype)
    kernels.encode(embeddings, table.embeddings(rows), rounding)
    if table.dtype == "int8":
        keys = np.asarray(rounding.keys)
        _native.encode_states(state, rows, table.dim, keys, rounding.seed, rounding.step)
    else:
        table.state(rows)[...] = state
    return rows


# ---- layout


@pytest.mark.parametrize("dtype", [each for each in DTYPES if each != "int8"])
@pytest.mark.parametrize("dim", [1, 2, 3, 4, 7, 64])
@pytest.mark.parametrize("state_width", [0, 1, 2, 9])
def test_a_row_is_embedding_gap_and_state(dtype: str, dim: int, state_width: int) -> None:
    table = TableConfig("t", dim, dtype, state_width=state_width)
    element, unit = table.numpy_dtype.itemsize, table.computing_dtype.itemsize
    assert unit == (8 if dtype == "float64" else 4)
    end = dim * element
    assert table.state_begin == (end if not state_width else -(-end // unit) * unit)
    assert table.row_bytes == table.state_begin + state_width * unit
    assert table.width * element == table.row_bytes
    rows = np.zeros((6, table.width), table.numpy_dtype)
    embeddings, state = table.embeddings(rows), table.state(rows)
    assert (embeddings.shape, embeddings.dtype) == ((6, dim), table.numpy_dtype)
    assert (state.shape, state.dtype) == ((6, state_width), table.computing_dtype)
    state[...] = 0.1
    assert not embeddings.any()
    embeddings[...] = 1
    raw = rows.view(np.uint8)
    assert not raw[:, end : table.state_begin].any()
    ends = [np.full(6, 0.1, table.computing_dtype).tobytes()] * bool(state_width)
    assert [raw[:, -unit:].tobytes()] * bool(state_width) == ends


@pytest.mark.parametrize("dim", [16, 64, 200])
@pytest.mark.parametrize("method", ["rowwise_adagrad", "adam"])
def test_an_int8_row_takes_at_most_three_tenths_of_a_float32_row(dim: int, method: str) -> None:
    state_width = resolve_method(method).state_width(dim)
    wide, narrow = (
        TableConfig("t", dim, dtype, state_width=state_width) for dtype in ("float32", "int8")
    )
    assert narrow.row_bytes <= 0.3 * wide.row_bytes
    with pytest.raises(InvalidArgumentError, match=r"codes of 8 bits; call .*read_state"):
        narrow.state(np.zeros((1, narrow.width), np.int8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "dim", [3, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 2, 4, 7, 64))]
)
@pytest.mark.parametrize("state_width", [0, 1, 2, 9])
def test_native_code_has_the_same_row_layout(dtype: str, dim: int, state_width: int) -> None:
    table = TableConfig("t", dim, dtype, state_width=state_width)
    view = _native.TableView(dtype, kernels.initializer_spec(table))
    storage = open_storage("memory", table)
    view.attach(get_capsule(storage), state_width)  # rejects another row_bytes
    view.detach()


@pytest.mark.parametrize(
    ("given", "name"),
    [(np.float16, "float16"), (np.dtype("float16"), "float16"), (ml_dtypes.bfloat16, "bfloat16")],
)
def test_numpy_dtypes_are_accepted(given: Any, name: str) -> None:
    assert TableConfig("t", 3, given).dtype == name


@pytest.mark.parametrize("wrong", ["half", "bf16", "uint8", np.int16, ml_dtypes.float8_e4m3fn, 16])
def test_other_dtypes_are_rejected_with_the_supported_ones(wrong: Any) -> None:
    with pytest.raises(
        InvalidArgumentError, match="must be one of float32, float64, float16, bfloat16, int8"
    ):
        TableConfig("t", 3, wrong)


def test_int8_tables_reject_devices_and_blocks_of_columns() -> None:
    made = StepContainer()
    storage = StorageChoice("hkv", {"device": "cuda:0"})
    with pytest.raises(UnsupportedError, match=r"found a storage on 'cuda:0'.*device 'cpu'"):
        made.declare(narrow_table("int8"), storage)
    plan = ShardingPlan({"item": TableSharding("column_wise", columns=2)})

    def declare(collective: Collective) -> None:
        made = StepContainer(collective=collective, rendezvous=ThreadRendezvous(2), plan=plan)
        with pytest.raises(UnsupportedError, match=r"share a scale.*row_wise, table_wise"):
            made.declare(narrow_table("int8", 6), MEMORY)

    run_ranks(2, declare)


# ---- lookups


@pytest.mark.parametrize("dtype", NARROW)
def test_lookups_return_stored_values_as_float32(dtype: str) -> None:
    made = StepContainer()
    made.declare(narrow_table(dtype), MEMORY)
    ids = np.array([5, -1, 5, 9])
    found = made.lookup("item", ids, is_registered=False)
    assert found.rows.dtype == np.float32
    expected = kernels.decode(kernels.initial_rows(found.keys, narrow_table(dtype)))
    np.testing.assert_array_equal(found.rows, expected)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(
    "dim", [5, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 8, 33, 100))]
)
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_pooling_straight_from_the_table_gives_the_bits_of_float32_rows(
    dtype: str, dim: int, mode: str
) -> None:
    random = np.random.default_rng(dim)
    ids = random.integers(0, 300, 900)
    offsets = np.sort(np.concatenate([[0, 900], random.integers(0, 900, 199)]))
    weights = random.random(900, np.float32)
    pooled = []
    stored = kernels.initial_rows(np.arange(200) + 1000, narrow_table(dtype, dim))
    unseen = kernels.decode(kernels.initial_rows(np.arange(200, 300), narrow_table(dtype, dim)))
    for table in (narrow_table(dtype, dim), narrow_table("float32", dim)):
        made = StepContainer()
        made.declare(table, MEMORY)
        storage = made.storage("item")
        is_wide = table.dtype == "float32"
        storage.upsert(np.arange(200), kernels.decode(stored) if is_wide else stored)
        if is_wide:  # unseen ids of the other read narrow initial values
            storage.upsert(np.arange(200, 300), unseen)
        collection = made.collection([("item", mode)])
        pooled.append(collection.pool(ids, offsets, [0], 200, weights))
    assert pooled[0].dtype == np.float32
    assert pooled[0].tobytes() == pooled[1].tobytes()


# ---- steps


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("dim", [4, 5])
def test_a_step_rounds_by_seed_step_and_key_and_keeps_state_of_16_bit_rows_whole(
    dtype: str, dim: int
) -> None:
    table = narrow_table(dtype, dim)
    made = StepContainer()
    made.declare(table, MEMORY)
    made.set_state("item", np.array([0.3, -0.0], np.float32), "count")
    keys = np.array([3, -7, 2**40])
    gradients = np.random.default_rng(0).normal(size=(3, dim)).astype(np.float32)
    embeddings = kernels.decode(kernels.initial_rows(keys, table))
    state = np.tile(np.array([0.3, -0.0], np.float32), (3, 1))
    for step in (1, 2, 3):
        with made.step(descend(0.01, counted=0.1)) as driven:
            driven.accumulate(driven.lookup("item", keys), gradients)
        embeddings = embeddings - np.float32(0.01) * gradients
        state = state + np.float32(0.1)
        rounding = Rounding(keys, kernels.rounding_seed(table), step)
        rows = made.storage("item").find(keys).rows
        stored = made.storage("item").table
        expected = stored_rows(stored, embeddings, state, rounding)
        np.testing.assert_array_equal(bits(rows), bits(expected))
        embeddings, state = kernels.decode(stored.embeddings(rows)), read_state(stored, rows)


@pytest.mark.parametrize("wrong", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_gradients_of_narrow_tables_must_be_float32(wrong: Any) -> None:
    made = StepContainer()
    made.declare(narrow_table("bfloat16"), MEMORY)
    found = made.lookup("item", np.array([1, 2]))
    assert found.shadow_id is not None
    with pytest.raises(InvalidArgumentError, match=r"must be \(2, 5\) float32, found \(2, 5\)"):
        made.resources.accumulate(found.shadow_id, np.ones((2, 5), wrong))


def update_both_ways(
    name: str, dtype: str, dim: int, levels: Sequence[str]
) -> list[tuple[bytes, bytes]]:
    """Native updates of 16-bit rows equal a float32 reference at each SIMD level."""
    method = resolve_method(name)
    hyper = parse_hyper(method, {"lr": 0.05, "clip_norm": 2.0})
    table = narrow_table(dtype, dim).with_state(method.state_width(dim))
    random = np.random.default_rng(dim)
    keys = random.integers(-(2**63), 2**63 - 1, 7)
    rows = np.empty((7, table.width), table.numpy_dtype)
    initial = method.initial_state(dim, hyper, np.float32)
    missing = np.zeros(7, np.bool_)
    kernels.initialize(rows, keys, missing, kernels.initializer_spec(table), initial)
    state = read_state(table, rows) + random.random((7, table.state_width), np.float32)
    write_state(table, rows, state)
    gradients = random.normal(size=(7, dim)).astype(np.float32)
    results = []
    before = kernels.simd_level()
    try:
        for level in levels:
            kernels.set_simd_level(level)
            seed = kernels.rounding_seed(table)
            given = hyper.model_dump(exclude={"initial_accumulator_value"})
            spec = _native.UpdateSpec(name, dtype, dim, given, 4, seed)
            native = rows.copy()
            _native.update_rows(spec, keys, native, gradients)
            parts = kernels.decode(table.embeddings(rows)), read_state(table, rows)
            whole = np.concatenate(parts, 1)
            views = whole[:, :dim], whole[:, dim:]
            method.update(UpdateRows(keys, whole, *views, gradients.copy(), 4), hyper)
            views = np.ascontiguousarray(views[0]), np.ascontiguousarray(views[1])
            by_hand = stored_rows(table, *views, Rounding(keys, seed, 4))
            results.append((native.tobytes(), by_hand.tobytes()))
    finally:
        kernels.set_simd_level(before)
    assert results[0][0] != rows.tobytes()
    return results


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", BUILTIN_METHODS)
@pytest.mark.parametrize(
    "dim", [5, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 64, 4099))]
)
def test_methods_change_narrow_rows_as_float32_ones_and_round(
    name: str, dtype: str, dim: int
) -> None:
    results = update_both_ways(name, dtype, dim, _native.simd_levels())
    for native, by_hand in results:
        assert native == by_hand == results[0][0]


class Halving(UpdateMethod):
    """A method that does not run fused; a step with it uses arrays of rows for all tables."""

    name = "halving"
    hyperparameters = HyperParameters

    def state_width(self, dim: int) -> int:
        return 0

    def update(self, rows: UpdateRows, hyper: HyperParameters) -> None:
        assert rows.embeddings.dtype == np.float32
        rows.embeddings[...] /= 2


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("storage", ["memory", "hkv"])
@pytest.mark.parametrize("name", ["sgd", "rowwise_adagrad", "adam"])
def test_the_fused_step_and_the_step_by_rows_give_the_same_bits(
    name: str, dtype: str, storage: str
) -> None:
    if storage == "hkv":
        pytest.importorskip("sparring_hkv", reason="sparring-hkv is not installed")
    found = []
    for tables in (["item"], ["item", "other"]):
        made = StepContainer()
        method = resolve_method(name)
        hyper = parse_hyper(method, {"lr": 0.05})
        for table in tables:
            made.declare(TableConfig(table, 5, dtype), StorageChoice(storage))
        made.set_state("item", method.initial_state(5, hyper, np.float32), name)
        for step in range(1, 6):
            keys = np.arange(step, 40 + step)
            gradients = np.random.default_rng(step).normal(size=(40, 5)).astype(np.float32)
            for table in tables:
                shadow = made.lookup(table, keys)
                assert shadow.shadow_id is not None
                made.resources.accumulate(shadow.shadow_id, gradients)
            choices = {"item": MethodChoice(method, hyper, step)}
            if "other" in tables:
                choices["other"] = MethodChoice(Halving(), HyperParameters(), step)
            made.apply_methods(choices)
        rows = made.storage("item").find(np.arange(1, 45)).rows
        assert rows.any()
        found.append(rows.tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_have_the_rows_of_one_process(dtype: str, world_size: int) -> None:
    def train(collective: Collective | None, rendezvous: Rendezvous | None) -> Any:
        made = StepContainer(collective=collective, rendezvous=rendezvous, reduction=Reduction.SUM)
        made.declare(narrow_table(dtype), MEMORY)
        made.set_state("item", np.zeros(1, np.float32), "count")
        ranks = [collective.rank] if collective is not None else range(world_size)
        for _ in range(4):
            with made.step(descend(0.01, counted=0.1)) as step:
                for rank in ranks:
                    keys = np.arange(10 * rank, 10 * rank + 30)
                    # Whole numbers add up exactly in any order.
                    gradients = np.tile((keys % 7 - 3)[:, None], 5).astype(np.float32)
                    step.accumulate(step.lookup("item", keys), gradients)
        last = made.lookup("item", np.arange(60), is_registered=False)
        assert last.rows.dtype == np.float32
        held = made.storage("item").scan()
        rows = {
            int(k): r.tobytes()
            for chunk in held
            for k, r in zip(chunk.keys, chunk.rows, strict=True)
        }
        return rows, last.rows.tobytes()

    alone, read_alone = train(None, None)
    together: dict[int, bytes] = {}
    for rows, read in run_ranks(world_size, lambda c: train(c, ThreadRendezvous(world_size))):
        assert read == read_alone
        assert not together.keys() & rows.keys()
        together |= rows
    assert together == alone


@pytest.mark.parametrize("dtype", NARROW)
def test_embeddings_keep_their_bits_when_the_state_is_replaced(dtype: str) -> None:
    table = narrow_table(dtype, 3)
    random = np.random.default_rng(0)
    keys = np.arange(100)
    source = open_storage("memory", table.with_state(2))
    rows = random.integers(0, 256, (100, source.table.row_bytes), np.uint8)
    source.upsert(keys, rows.view(table.numpy_dtype))
    target = open_storage("memory", table.with_state(1))
    assert copy_embeddings(source, target, np.array([0.7], np.float32)) == 100
    found = target.find(keys).rows
    end = table.row_bytes
    assert bits(target.table.embeddings(found)).tobytes() == rows[:, :end].tobytes()
    np.testing.assert_allclose(read_state(target.table, found), 0.7, rtol=2**-8)
    assert not found.view(np.uint8)[:, end : target.table.state_begin].any()


# ---- the purpose of stochastic rounding


@pytest.mark.parametrize(
    "dtype",
    [pytest.param(each, marks=[] if each == "bfloat16" else pytest.mark.slow) for each in NARROW],
)
def test_the_mean_of_many_small_steps_equals_float32(dtype: str) -> None:
    num_rows, dim, num_steps, rate = 4_000, 8, 64, 1e-5
    keys = np.arange(num_rows)
    gradients = np.ones((num_rows, dim), np.float32)
    made = StepContainer()
    made.declare(TableConfig("item", dim, dtype, Uniform(0.5, 0.6)), StorageChoice("memory"))
    start = made.lookup("item", keys, is_registered=False).rows.astype(np.float64)
    for _ in range(num_steps):
        with made.step(descend(rate, counted=0.1)) as step:
            step.accumulate(step.lookup("item", keys), gradients)
    moved = made.lookup("item", keys, is_registered=False).rows - start
    expected = -rate * num_steps
    # Between neighbors from 0.5 to 1; the scale of int8 is 0.6 / 127, rounded up.
    place = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "int8": 1.25 * 2.0**-8}[dtype]
    assert rate < place / 40  # to nearest, no row would ever change
    # The variance of one step is at most unit * rate: one unit down, with probability rate / unit.
    deviation = np.sqrt(num_steps * place * rate)
    # At most 4 units, of 32,000 elements.
    assert np.abs(moved - expected).max() < max(10 * deviation, 4.5 * place)
    assert abs(moved.mean() - expected) < 4 * deviation / np.sqrt(moved.size)
