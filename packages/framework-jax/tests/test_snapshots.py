"""Snapshots contain pytrees next to rows, and rows that other frameworks can continue to train."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
optax = pytest.importorskip("optax", reason="optax is not installed: pip install optax")

import jax.numpy as jnp

from sparring import StepContainer, Uniform
from sparring.contracts import TableConfig
from sparring.errors import InvalidArgumentError, SparringError
from sparring_jax.batch import embeddings
from sparring_jax.optimizer import Optimizer
from sparring_jax.tables import Tables
from sparring_testing.processes.table_steps import read_arrays, read_tables

DIM, RATE = 8, 0.05
TABLE = TableConfig("rows", DIM, seed=5, initializer=Uniform(-0.05, 0.05))


def batches(count: int) -> list[tuple[Any, Any]]:
    generator = np.random.default_rng(6)
    known = generator.integers(-(2**62), 2**62, 100)
    return [
        (generator.choice(known, 64), generator.normal(size=(64, DIM)).astype(np.float32))
        for _ in range(count)
    ]


@jax.jit
def gradients_of(rows: Any, positions: Any, targets: Any) -> Any:
    return jax.grad(lambda rows: ((embeddings(rows, positions) - targets) ** 2).sum())(rows)


class InJax:
    natives: ClassVar[dict[str, Any]] = {
        "adagrad": lambda: optax.adagrad(RATE, initial_accumulator_value=0.0, eps=1e-20),
        "adam": lambda: optax.adam(RATE),
    }

    def __init__(self, container: StepContainer, optimizer: str) -> None:
        self.tables = Tables(TABLE, container=container)
        method = optimizer.removeprefix("fused ")
        if method == optimizer:
            self.optimizer = Optimizer(self.tables, self.natives[optimizer]())
        else:
            self.optimizer = Optimizer(self.tables, method, lr=RATE)

    def step(self, ids: Any, targets: Any) -> None:
        batch = self.tables.lookup({"rows": ids})
        self.optimizer.step(batch, gradients_of(batch.rows, batch.positions["rows"], targets))


class InTorch:
    def __init__(self, container: StepContainer, optimizer: str) -> None:
        torch = pytest.importorskip("torch", reason="PyTorch is not installed next to JAX")
        import sparring_torch

        natives = {"adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}
        method = natives.get(optimizer, optimizer.removeprefix("fused "))
        self._from_numpy = torch.from_numpy
        self.layer = sparring_torch.Embedding(
            DIM,
            container=container,
            storage="hkv",
            name="rows",
            seed=5,
            initializer=Uniform(-0.05, 0.05),
        )
        self._optimizer = sparring_torch.Optimizer(self.layer, method, lr=RATE)

    def step(self, ids: Any, targets: Any) -> None:
        error = self.layer(self._from_numpy(ids)) - self._from_numpy(targets)
        self._optimizer.zero_grad()
        error.square().sum().backward()
        self._optimizer.step()


class InTensorFlow:
    def __init__(self, container: StepContainer, optimizer: str) -> None:
        tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed next to JAX")
        import keras

        import sparring_tf

        natives = {
            "adagrad": lambda: keras.optimizers.Adagrad(
                RATE, initial_accumulator_value=0.0, epsilon=1e-20
            ),
            "adam": lambda: keras.optimizers.Adam(RATE, epsilon=1e-8),
        }
        self._tape = tf.GradientTape
        self.layer = sparring_tf.Embedding(
            DIM,
            container=container,
            storage="hkv",
            name="rows",
            seed=5,
            initializer=Uniform(-0.05, 0.05),
        )
        if optimizer in natives:
            self._optimizer = sparring_tf.Optimizer(self.layer, natives[optimizer]())
        else:
            method = optimizer.removeprefix("fused ")
            self._optimizer = sparring_tf.Optimizer(self.layer, method, learning_rate=RATE)

    def step(self, ids: Any, targets: Any) -> None:
        import tensorflow as tf

        with self._tape() as tape:
            loss = tf.reduce_sum((self.layer(tf.constant(ids)) - targets) ** 2)
        variables = self.layer.trainable_variables
        self._optimizer.apply(tape.gradient(loss, variables), variables)


ORDERS = {
    "torch to jax": (InTorch, InJax),
    "jax to torch": (InJax, InTorch),
    "tensorflow to jax": (InTensorFlow, InJax),
    "jax to tensorflow": (InJax, InTensorFlow),
}


@pytest.mark.parametrize(
    ("order", "optimizer"),
    [
        pytest.param(
            order,
            optimizer,
            id=f"{name}-{optimizer}",
            # Each order with one native and one fused optimizer, which are not the same in reverse.
            marks=[] if (at_order + at_optimizer) % 2 == at_optimizer // 2 else pytest.mark.long,
        )
        for at_order, (name, order) in enumerate(ORDERS.items())
        for at_optimizer, optimizer in enumerate(("adagrad", "adam", "fused adagrad", "fused adam"))
    ],
)
def test_training_continues_from_a_snapshot_of_another_framework(
    order: Any, optimizer: str, tmp_path: Path
) -> None:
    first, second = order
    steps = batches(30)
    with StepContainer() as before, StepContainer() as after, StepContainer() as alone:
        begun, whole = first(before, optimizer), first(alone, optimizer)
        for batch in steps[:15]:
            begun.step(*batch)
        before.save(str(tmp_path / "snapshot"))
        continued = second(after, optimizer)
        after.load(str(tmp_path / "snapshot"))
        begun_rows, taken = read_arrays(before, "rows"), read_arrays(after, "rows")
        assert begun_rows.keys() == taken.keys()
        assert all(np.array_equal(row, taken[key]) for key, row in begun_rows.items())
        if "adam" in optimizer and second is not InJax:
            return  # They count Adam's steps in their own state, which JAX does not save.
        for batch in steps[15:]:
            continued.step(*batch)
        for batch in steps:
            whole.step(*batch)
        continued_rows, whole_rows = read_arrays(after, "rows"), read_arrays(alone, "rows")
    assert continued_rows.keys() == whole_rows.keys()
    for key, row in continued_rows.items():
        np.testing.assert_allclose(row, whole_rows[key], rtol=1e-4, atol=1e-5)


def test_pytrees_are_restored_and_training_continues_bit_by_bit(tmp_path: Path) -> None:
    steps = batches(8)
    parameters = {"w": jnp.arange(6.0).reshape(2, 3), "b": [jnp.ones(2, jnp.bfloat16), 3, 0.5]}
    dense = optax.adam(0.1).init(parameters["w"])
    with StepContainer() as before, StepContainer() as after:
        begun = InJax(before, "fused adam")
        begun.step(*batches(1)[0])
        begun.step(np.empty(0, np.int64), np.empty((0, DIM), np.float32))
        for batch in steps:
            begun.step(*batch)
        parts = {"parameters": parameters, "dense": dense, "rows": begun.optimizer}
        begun.tables.save(str(tmp_path / "one"), **parts)
        other = InJax(after, "fused adam")
        like = jax.tree.map(lambda leaf: leaf * 0, {"parameters": parameters, "dense": dense})
        found = other.tables.load(str(tmp_path / "one"), **like, rows=other.optimizer)
        assert found.keys() == {"parameters", "dense"}
        for mine, theirs in zip(
            jax.tree.leaves({"parameters": parameters, "dense": dense}),
            jax.tree.leaves(found),
            strict=True,
        ):
            assert type(mine) is type(theirs)
            assert np.array_equal(np.asarray(mine), np.asarray(theirs))
        for each in (begun, other):
            for batch in steps:
                each.step(*batch)
        assert read_tables(before) == read_tables(after)


def test_a_snapshot_without_the_parts_is_rejected_before_anything_changes(tmp_path: Path) -> None:
    with StepContainer() as before, StepContainer() as after:
        begun, other = InJax(before, "adagrad"), InJax(after, "adagrad")
        begun.step(*batches(1)[0])
        before.save(str(tmp_path / "rows"))
        begun.tables.save(str(tmp_path / "parts"), weights={"w": jnp.ones((2, 3))})
        load = other.tables.load
        with pytest.raises(InvalidArgumentError, match="saved by another framework"):
            load(str(tmp_path / "rows"), weights={"w": jnp.ones((2, 3))})
        with pytest.raises(InvalidArgumentError, match="no part 'bias'; it has weights"):
            load(str(tmp_path / "parts"), bias=jnp.ones(2))
        for like, message in (
            ({"w": jnp.ones((3, 2))}, r"float32 \(2, 3\), expected .* float32 \(3, 2\)"),
            ({"w": jnp.ones((2, 3)), "z": 1}, r"contains nothing, expected \['z'\]"),
            ({}, r"\['w'\].* expected nothing"),
        ):
            with pytest.raises(InvalidArgumentError, match=message):
                load(str(tmp_path / "parts"), weights=like)
        assert after.num_rows("rows") == 0
        assert load(str(tmp_path / "parts")) == {}
        assert after.num_rows("rows") == before.num_rows("rows")


def test_values_that_cannot_be_saved_are_named(tmp_path: Path) -> None:
    with StepContainer() as container:
        tables = InJax(container, "adagrad").tables
        with pytest.raises(InvalidArgumentError, match="key_data"):
            tables.save(str(tmp_path / "a"), random={"key": jax.random.key(0)})
        with pytest.raises(InvalidArgumentError, match=r"notes\['a'\] is str"):
            tables.save(str(tmp_path / "a"), notes={"a": "text"})
        assert not (tmp_path / "a").exists()


def test_rows_of_an_optimizer_of_another_name_are_rejected(tmp_path: Path) -> None:
    with StepContainer() as before, StepContainer() as after:
        InJax(before, "adam").step(*batches(1)[0])
        before.save(str(tmp_path / "adam"))
        other = Tables(TABLE, container=after)
        Optimizer(other, optax.adamax(0.1))
        with pytest.raises(SparringError, match="Adam"):
            after.load(str(tmp_path / "adam"))


def test_the_plugin_imports_no_jax() -> None:
    program = (
        "import sys, sparring_jax.plugin as p; [found] = p.sparring_register_framework();"
        "assert found.name == 'jax' and 'jax' not in sys.modules, sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
