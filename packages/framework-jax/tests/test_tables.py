"""Lookups, pooling and invalid arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
optax = pytest.importorskip("optax", reason="optax is not installed: pip install optax")

import jax.numpy as jnp

from sparring import StepContainer
from sparring.adapter import initial_rows
from sparring.contracts import TableConfig
from sparring.errors import ClosedError, InvalidArgumentError, NonFiniteGradientError
from sparring_jax.batch import embeddings, pad_weights, pool
from sparring_jax.ids import pack_ids, unpack_ids
from sparring_jax.optimizer import Optimizer
from sparring_jax.padded_sizes import PaddedSizes, round_up
from sparring_jax.tables import Tables

USER, ITEM = TableConfig("user", 4, seed=1), TableConfig("item", 3, seed=2)
FAR = np.array([7, -1, 7, 2**62, -(2**63), 2**63 - 1], np.int64)


@pytest.fixture
def tables() -> Any:
    with StepContainer() as container:
        features = {"user": "user", "item": "item", "history": "item"}
        yield Tables([USER, ITEM], features=features, storage="memory", container=container)


def test_features_that_share_a_table_share_its_rows(tables: Tables) -> None:
    batch = tables.lookup({"item": FAR[:2], "history": (FAR, np.array([2, 0, 4]))})
    assert sorted(batch.rows) == ["item"]
    assert len(batch.keys["item"]) == 5
    own = initial_rows(FAR, ITEM)
    assert np.array_equal(embeddings(batch.rows, batch.positions["item"]), own[:2])
    found = pool(batch.rows, batch.positions["history"])
    np.testing.assert_allclose(found, [own[:2].sum(0), np.zeros(3), own[2:].sum(0)], rtol=1e-6)


def test_ids_of_any_shape_have_embeddings_and_rows_of_ids_are_pooled(tables: Tables) -> None:
    batch = tables.lookup({"user": FAR.reshape(2, 3)}, is_training=False)
    own = initial_rows(FAR, USER).reshape(2, 3, 4)
    positions = batch.positions["user"]
    assert np.array_equal(embeddings(batch.rows, positions), own)
    np.testing.assert_allclose(
        pool(batch.rows, positions, "mean"), own.mean(1), rtol=1e-5, atol=1e-8
    )
    weights = jnp.arange(6.0).reshape(2, 3)
    weighted = (own * np.asarray(weights)[..., None]).sum(1)
    np.testing.assert_allclose(pool(batch.rows, positions, weights=weights), weighted, rtol=1e-5)


def test_a_step_compiles_only_for_few_sizes(tables: Tables) -> None:
    traces = []

    @jax.jit
    def loss(rows: Any, positions: Any) -> Any:
        traces.append(1)
        return pool(rows, positions["history"]).sum() + embeddings(rows, positions["user"]).sum()

    generator = np.random.default_rng(0)
    for _ in range(60):
        lengths = generator.integers(0, 9, 64)
        ids = {
            "user": generator.integers(0, 500, 64),
            "history": (generator.integers(0, 500, lengths.sum()), lengths),
        }
        batch = tables.lookup(ids, is_training=False)
        loss(batch.rows, batch.positions)
    assert len(traces) <= 3


@pytest.mark.parametrize(
    ("size", "padded"), [(0, 8), (8, 8), (9, 10), (33, 40), (64, 64), (65, 80), (1000, 1024)]
)
def test_sizes_are_rounded_up_and_never_shrink(size: int, padded: int) -> None:
    assert round_up(size) == padded
    sizes = PaddedSizes()
    first = sizes.of("a", size)
    assert first == round_up(size + size // 8)
    assert sizes.of("a", first) == first
    assert sizes.of("a", first + 1) > first
    assert sizes.of("a", 1) > first
    assert sizes.of("b", 1) == 8


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ({"films": [1]}, "no feature 'films'; the features are user, item, history"),
        ({"user": [1.5]}, "feature 'user' must be int64, found dtype float64"),
        ({"user": np.array([1], np.uint64)}, "must be int64, found dtype uint64"),
        ({"user": ["a"]}, r"found dtype <U1; .*sparring\.hash_strings\("),
        ({"user": ([1, 2], [1])}, "add up to 1, but there are 2 ids"),
        ({"user": ([1, 2], [3, -1])}, "one non-negative integer per bag, found -1"),
        ({"user": ([[1, 2]], [2])}, "one-dimensional, found shape"),
        ({"user": ([1], [1], [1])}, "found a tuple of 3"),
    ],
)
def test_invalid_ids_are_rejected(tables: Tables, ids: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        tables.lookup(ids)
    assert tables.container.resources.num_batch_inputs == 0


def test_ids_that_jax_may_have_truncated_are_rejected(tables: Tables) -> None:
    assert jnp.asarray(np.array([2**40 + 5])).tolist() == [5]
    with pytest.raises(
        InvalidArgumentError, match="truncates 64-bit ids to 32 bits; give an int64 array of NumPy"
    ):
        tables.lookup({"user": jnp.array([1, 2])})


def test_invalid_tables_are_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="different names"):
        Tables([USER, USER])
    with pytest.raises(InvalidArgumentError, match="looks up in unknown table 'films'"):
        Tables([USER], features={"a": "films"})
    with pytest.raises(InvalidArgumentError, match=r"set jax\.config\.update"):
        Tables(TableConfig("wide", 2, "float64"))


def test_features_with_bags_must_be_pooled(tables: Tables) -> None:
    batch = tables.lookup({"user": (FAR, [6])}, is_training=False)
    positions = batch.positions["user"]
    with pytest.raises(InvalidArgumentError, match="use pool"):
        embeddings(batch.rows, positions)
    with pytest.raises(InvalidArgumentError, match="'sum' or 'mean', found 'max'"):
        pool(batch.rows, positions, "max")
    with pytest.raises(InvalidArgumentError, match="pad_weights"):
        pool(batch.rows, positions, weights=jnp.ones(6))
    with pytest.raises(InvalidArgumentError, match="has 6 ids"):
        pad_weights(np.ones(5), positions)


def test_gradients_that_do_not_match_are_rejected_and_nothing_is_added(tables: Tables) -> None:
    optimizer = Optimizer(tables, "sgd", lr=1.0)
    batch = tables.lookup({"user": FAR, "item": FAR})
    good = {name: jnp.ones_like(rows) for name, rows in batch.rows.items()}
    for bad, message in (
        ({"user": good["user"]}, "give the gradients of batch.rows"),
        ({**good, "item": good["user"]}, "table 'item' must be"),
        ({**good, "item": good["item"].astype(jnp.bfloat16)}, "found .* bfloat16"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            optimizer.step(batch, bad)
    evaluated = tables.lookup({"user": FAR}, is_training=False)
    with pytest.raises(InvalidArgumentError, match="takes no gradients"):
        tables.accumulate(evaluated, {"user": good["user"]})
    with pytest.raises(InvalidArgumentError, match="or neither"):
        optimizer.step(batch)
    optimizer.step()
    assert tables.container.num_rows("user") == 0
    with pytest.raises(InvalidArgumentError, match="run the forward pass again"):
        tables.accumulate(batch, good)


def test_a_failed_step_drops_its_gradients_and_the_next_one_works(tables: Tables) -> None:
    optimizer = Optimizer(tables, optax.sgd(1.0))
    batch = tables.lookup({"user": FAR})
    with pytest.raises(NonFiniteGradientError):
        optimizer.step(batch, {"user": jnp.full_like(batch.rows["user"], jnp.nan)})
    assert tables.container.num_rows("user") == 0
    batch = tables.lookup({"user": FAR})
    optimizer.step(batch, {"user": jnp.ones_like(batch.rows["user"])})
    assert tables.container.num_rows("user") == 5


def test_rows_are_read_inside_a_jitted_function(tables: Tables) -> None:
    @jax.jit
    def score(packed: Any) -> Any:
        return tables.infer("user", packed).sum(-1)

    ids = FAR.reshape(2, 3)
    assert np.array_equal(unpack_ids(pack_ids(ids)), ids)
    before = initial_rows(FAR, USER).sum(1).reshape(2, 3)
    np.testing.assert_allclose(score(pack_ids(ids)), before, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(jax.vmap(score)(pack_ids(ids)), before, rtol=1e-5, atol=1e-7)
    optimizer = Optimizer(tables, "sgd", lr=1.0)
    batch = tables.lookup({"user": FAR})
    optimizer.step(batch, {"user": jnp.ones_like(batch.rows["user"])})
    np.testing.assert_allclose(score(pack_ids(ids)), before - 4, rtol=1e-5)
    assert tables.container.resources.num_batch_inputs == 0
    with pytest.raises(InvalidArgumentError, match=r"int32.*pack_ids"):
        score(ids)
    slope = jax.grad(lambda scale: (scale * tables.infer("user", pack_ids(FAR))).sum())(1.0)
    np.testing.assert_allclose(slope, before.sum() - 24, rtol=1e-5)


def test_a_closed_table_raises_inside_a_jitted_function() -> None:
    with StepContainer() as container:
        tables = Tables(USER, storage="memory", container=container)
        score = jax.jit(lambda packed: tables.infer("user", packed))
        score(pack_ids(FAR))
    with pytest.raises(Exception, match="closed"):
        score(pack_ids(FAR)).block_until_ready()
    with pytest.raises(ClosedError):
        tables.lookup({"user": FAR})


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_narrow_tables_train(tables: Tables, dtype: str) -> None:
    with StepContainer() as container:
        narrow = Tables(TableConfig("narrow", 4, dtype), storage="memory", container=container)
        optimizer = Optimizer(narrow, optax.adam(0.1))
        for _ in range(3):
            batch = narrow.lookup({"narrow": FAR})
            optimizer.step(batch, {"narrow": jnp.ones_like(batch.rows["narrow"])})
        after = narrow.lookup({"narrow": FAR}, is_training=False)
        assert (np.asarray(after.rows["narrow"])[:5] < -0.2).all()
