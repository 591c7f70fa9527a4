"""Optax optimizers over rows: which are supported, their state, and their results."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
optax = pytest.importorskip("optax", reason="optax is not installed: pip install optax")

import jax.numpy as jnp

from sparring import StepContainer
from sparring.contracts import TableConfig
from sparring.errors import InvalidArgumentError, PluginError, UnsupportedError
from sparring_jax.optax_rows import OptaxRows
from sparring_jax.optimizer import Optimizer
from sparring_jax.tables import Tables

TABLE = TableConfig("user", 4, seed=1)
IDS = np.array([7, -1, 2**62], np.int64)
DECAYED = optax.chain(
    optax.add_decayed_weights(0.1), optax.sgd(optax.linear_schedule(0.1, 0.01, 5))
)


def made(native: Any, **options: Any) -> tuple[Tables, Optimizer]:
    tables = Tables(TABLE, storage="memory", container=StepContainer())
    return tables, Optimizer(tables, native, **options)


@pytest.mark.parametrize(
    "native",
    [
        optax.sgd(0.1, momentum=0.9),
        optax.adagrad(0.1),
        optax.adamw(0.1),
        optax.rmsprop(0.1),
        optax.adadelta(0.1),
        optax.lion(0.1),
        DECAYED,
        optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
        optax.chain(optax.clip(0.5), optax.adam(0.1)),
    ],
    ids=[
        "momentum",
        "adagrad",
        "adamw",
        "rmsprop",
        "adadelta",
        "lion",
        "schedule",
        "injected",
        "clip",
    ],
)
def test_rows_equal_dense_parameters_in_every_step(native: Any) -> None:
    tables, optimizer = made(native)
    dense = jnp.asarray(tables.lookup({"user": IDS}, is_training=False).rows["user"])[:3]
    state = native.init(dense)
    generator = np.random.default_rng(2)
    for _ in range(8):
        gradient = generator.normal(size=(3, 4)).astype(np.float32)
        updates, state = native.update(jnp.asarray(gradient), state, dense)
        dense = optax.apply_updates(dense, updates)
        batch = tables.lookup({"user": IDS})
        padded = np.zeros(batch.rows["user"].shape, np.float32)
        padded[:3] = gradient
        optimizer.step(batch, {"user": padded})
    found = tables.lookup({"user": IDS}, is_training=False).rows["user"][:3]
    np.testing.assert_allclose(found, dense, rtol=1e-5, atol=1e-6)
    tables.container.close()


@pytest.mark.parametrize(
    ("native", "reason"),
    [
        (optax.adafactor(0.1), "v_row"),
        (optax.lamb(0.1), "updated together change differently"),
        (optax.chain(optax.clip_by_global_norm(100.0), optax.sgd(0.1)), "a norm over all"),
        (optax.chain(optax.sgd(0.1), optax.apply_every(2)), "keeps gradients for later steps"),
        (optax.MultiSteps(optax.sgd(0.1), 4).gradient_transformation(), "mini_step"),
        (optax.chain(optax.add_noise(0.1, 0.5, 0), optax.sgd(0.1)), r"is (key|uint32)"),
        (optax.lookahead(optax.sgd(0.1), 5, 0.5), "steps_since_sync"),
    ],
    ids=["adafactor", "lamb", "global norm", "every", "multi steps", "noise", "lookahead"],
)
def test_optimizers_that_do_not_work_by_row_are_rejected(native: Any, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=f"cannot update rows of a table: .*({reason})"):
        made(native)


@pytest.mark.parametrize(
    ("native", "method"),
    [
        (optax.adam(0.1), "Adam"),
        (optax.nadamw(0.1), "Adam"),
        (optax.adagrad(0.1), "Adagrad"),
        (optax.adamax(0.1), "optax.mu.nu"),
        (optax.rmsprop(0.1), "optax.nu"),
        (optax.sgd(0.1), "optax"),
        (optax.sgd(0.1, momentum=0.9), "optax.trace"),
    ],
)
def test_state_gets_the_name_of_its_meaning(native: Any, method: str) -> None:
    assert OptaxRows(native, 4, "float32").state_method == method
    assert OptaxRows(native, 4, "float32", "Mine").state_method == "Mine"


def test_optimizers_that_couple_columns_are_detected() -> None:
    by_row = optax.chain(
        optax.stateless(lambda u, _: u / jnp.linalg.norm(u, axis=1, keepdims=True))
    )
    assert "depends on other elements of the row" in OptaxRows(by_row, 4, "float32").why_coupled
    assert OptaxRows(optax.adam(0.1), 4, "float32").why_coupled == ""


def test_a_learning_rate_of_an_update_method_may_be_a_schedule() -> None:
    tables, optimizer = made("sgd", lr=lambda step: 1.0 / (step + 1))
    before = np.asarray(tables.lookup({"user": IDS}, is_training=False).rows["user"])[:3]
    for _ in range(3):
        batch = tables.lookup({"user": IDS})
        optimizer.step(batch, {"user": jnp.ones_like(batch.rows["user"])})
    after = np.asarray(tables.lookup({"user": IDS}, is_training=False).rows["user"])[:3]
    np.testing.assert_allclose(before - after, 1 + 1 / 2 + 1 / 3, rtol=1e-5)
    tables.container.close()


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -0.1])
def test_a_schedule_with_an_invalid_rate_is_rejected_before_a_row_changes(
    rate: float,
) -> None:
    tables, optimizer = made("sgd", lr=lambda step: rate if step else 0.1)
    batch = tables.lookup({"user": IDS})
    gradients = {"user": jnp.ones_like(batch.rows["user"])}
    optimizer.step(batch, gradients)
    before = np.asarray(tables.lookup({"user": IDS}, is_training=False).rows["user"])
    batch = tables.lookup({"user": IDS})
    with pytest.raises(InvalidArgumentError, match="hyper-parameter 'lr'"):
        optimizer.step(batch, gradients)
    after = np.asarray(tables.lookup({"user": IDS}, is_training=False).rows["user"])
    np.testing.assert_array_equal(before, after)
    tables.container.close()


def test_invalid_arguments_are_rejected() -> None:
    for options, message in (
        ({"sparse": optax.adam(0.1), "lr": 0.1}, "lr is only supported for update methods"),
        (
            {"sparse": "sgd", "name": "mine"},
            "name='mine' is only supported for optax optimizers",
        ),
        ({"sparse": "sgd", "rate": 0.1}, "rate"),
        ({"sparse": "sgd", "lr": 0.1, "by_table": {"films": {}}}, "films"),
        ({"sparse": 3}, "Optimizer takes an optax optimizer"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            made(options.pop("sparse"), **options)
    with pytest.raises(PluginError, match="rowwise_adagrat"):
        made("rowwise_adagrat", lr=0.1)


def test_gradients_of_tables_of_another_optimizer_are_named() -> None:
    with StepContainer() as container:
        first = Tables(TABLE, storage="memory", container=container)
        second = Tables(TableConfig("item", 4), storage="memory", container=container)
        Optimizer(first, optax.sgd(0.1))
        mine = Optimizer(second, optax.sgd(0.1))
        batch = first.lookup({"user": IDS})
        with pytest.raises(
            InvalidArgumentError, match=r"'user' has gradients, but .* updates item"
        ):
            mine.step(batch, {"user": jnp.ones_like(batch.rows["user"])})


def looked_up(tables: Tables) -> Any:
    return np.asarray(tables.lookup({"user": IDS}, is_training=False).rows["user"])[:3]


@pytest.mark.parametrize("native", [optax.sgd(1.0), "sgd"])
def test_a_gradient_that_is_accumulated_twice_is_rejected(native: Any) -> None:
    tables, optimizer = made(native, **({"lr": 1.0} if native == "sgd" else {}))
    before = looked_up(tables)
    batch = tables.lookup({"user": IDS})
    gradients = {"user": jnp.ones_like(batch.rows["user"])}
    tables.accumulate(batch, gradients)
    with pytest.raises(
        InvalidArgumentError, match=r"'user' was already accumulated.*call step\(\)"
    ):
        optimizer.step(batch, gradients)
    # Another gradient of the batch, such as the gradient of a second loss, is added.
    tables.accumulate(batch, {"user": jnp.ones_like(batch.rows["user"])})
    optimizer.step()
    np.testing.assert_allclose(looked_up(tables), before - 2, rtol=1e-6)
    # A NumPy buffer may be reused.
    batch, buffer = tables.lookup({"user": IDS}), np.ones(batch.rows["user"].shape, np.float32)
    tables.accumulate(batch, {"user": buffer})
    optimizer.step(batch, {"user": buffer})
    np.testing.assert_allclose(looked_up(tables), before - 4, rtol=1e-6)
    tables.container.close()


def test_a_step_without_gradients_after_a_lookup_warns() -> None:
    tables, optimizer = made("sgd", lr=1.0)
    batch = tables.lookup({"user": IDS})
    with pytest.warns(UserWarning, match="no gradient was given, so no row changes"):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = tables.lookup({"user": IDS})
        optimizer.step(batch, {"user": jnp.ones_like(batch.rows["user"])})
        # Nothing was looked up for training, for example on a rank without examples.
        optimizer.step()
    tables.container.close()


def test_validation_without_is_training_changes_no_row_creates_none_and_keeps_nothing() -> None:
    tables, optimizer = made("sgd", lr=1.0)
    for begin in range(0, 100, 10):
        batch = tables.lookup({"user": np.arange(begin, begin + 10)})
        assert tables.container.resources.num_batch_inputs == 1
    del batch
    assert tables.container.resources.num_batch_inputs == 0
    assert tables.container.num_rows("user") == 0
    # The gradient of a batch that no longer exists still counts.
    tables.accumulate(
        gone := tables.lookup({"user": IDS}), {"user": jnp.ones_like(gone.rows["user"])}
    )
    del gone
    optimizer.step()
    assert tables.container.num_rows("user") == 3
    tables.container.close()


@pytest.mark.parametrize("padding", ["sum", "mean over the keys"])
def test_a_penalty_over_the_rows_of_a_batch_counts_each_row_once(padding: str) -> None:
    tables, optimizer = made("sgd", lr=0.25)
    before = looked_up(tables)
    batch = tables.lookup({"user": np.concatenate([IDS, IDS])})
    count = len(batch.keys["user"]) if padding != "sum" else 1

    def penalty(rows: Any) -> Any:
        return (rows["user"] ** 2).sum() / count

    value, gradients = jax.value_and_grad(penalty)(batch.rows)
    np.testing.assert_allclose(value, (before**2).sum() / count, rtol=1e-5)
    optimizer.step(batch, gradients)
    np.testing.assert_allclose(looked_up(tables), before - 0.5 * before / count, rtol=1e-5)
    tables.container.close()
