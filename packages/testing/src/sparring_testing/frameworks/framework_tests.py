"""`FrameworkTests`: tests the promises that every framework adapter makes.

Use:
    class TestTorch(FrameworkTests):
        @pytest.fixture
        def make_model(self): ...

Results are compared with a short NumPy implementation, so all adapters that pass agree with each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pytest

from sparring import StepContainer, Uniform
from sparring.adapter import initial_rows
from sparring.contracts import TableConfig
from sparring.errors import (
    ClosedError,
    InvalidArgumentError,
    NonFiniteGradientError,
    SparringError,
)
from sparring_testing.guard import find_violations

__all__ = ["FrameworkModel", "FrameworkTests", "MakeModel"]

Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]

_DIM = 4
_FAR_APART = np.array([7, -1, 7, 2**62, -(2**63), 2**63 - 1, 0], np.int64)


class FrameworkModel(Protocol):
    """A model with one table of a framework, and its optimizer.

    The loss is half the sum of squares of (embedding − target), so the gradient of an embedding is
    embedding − target.
    """

    def look_up(self, ids: Ids) -> Rows:
        """Returns the embeddings ``(n, dim)``, read as in evaluation."""

    def pool(self, ids: Ids, lengths: Ids, mode: str) -> Rows:
        """Returns one embedding per bag, ``(b, dim)``; `mode` is ``sum`` or ``mean``."""

    def weights_gradient(self, ids: Ids, lengths: Ids, weights: Rows) -> Rows:
        """Returns the gradient ``(n,)`` of the weights ``(n,)`` of bags pooled by ``sum``.

        The loss is half the sum of squares of the pooled embeddings.
        """

    def step(self, ids: Ids, targets: Rows) -> None:
        """Runs one forward pass, backward pass and optimizer step."""

    def step_in_parts(self, parts: list[tuple[Ids, Rows]]) -> None:
        """Accumulates the gradients of several batches and takes one optimizer step."""


class MakeModel(Protocol):
    """Creates a model whose table is stored in a container."""

    def __call__(
        self, table: TableConfig, container: StepContainer, optimizer: str, learning_rate: float
    ) -> FrameworkModel:
        """Creates a model.

        Args:
            table: a float32 table; the model chooses the pooling.
            container: the container in which to declare the table.
            optimizer: ``sgd``, ``adagrad`` (with accumulators that start at 0) or ``adam``, which are
                the framework's own optimizers; ``fused adagrad`` and ``fused adam`` are update methods.
            learning_rate: the learning rate of the optimizer.
        """


class FrameworkTests:
    """Tests every promise. A subclass must define the fixture `make_model`."""

    @pytest.fixture
    def make_model(self) -> MakeModel:
        raise NotImplementedError(
            f"{type(self).__name__} must define the fixture make_model: a callable "
            "(table, container, optimizer, learning_rate) that creates a FrameworkModel"
        )

    @pytest.fixture
    def table(self) -> TableConfig:
        return TableConfig("shared", _DIM, initializer=Uniform(-0.05, 0.05), seed=3)

    def test_no_standard_test_is_removed_or_overridden_without_a_reason(self) -> None:
        violations = find_violations(type(self), FrameworkTests)
        assert not violations, "\n".join(violations)

    def test_unseen_ids_read_as_the_table_defines_bit_by_bit(
        self, make_model: MakeModel, table: TableConfig
    ) -> None:
        with StepContainer() as container:
            model = make_model(table, container, "sgd", 0.1)
            assert np.array_equal(model.look_up(_FAR_APART), initial_rows(_FAR_APART, table))

    def test_reading_creates_no_row(self, make_model: MakeModel, table: TableConfig) -> None:
        with StepContainer() as container:
            model = make_model(table, container, "sgd", 0.1)
            model.look_up(_FAR_APART)
            assert container.num_rows(table.name) == 0

    @pytest.mark.parametrize("mode", ["sum", "mean"])
    def test_bags_are_pooled_and_empty_ones_are_zeros(
        self, make_model: MakeModel, table: TableConfig, mode: str
    ) -> None:
        lengths = np.array([3, 0, 4], np.int64)
        with StepContainer() as container:
            found = make_model(table, container, "sgd", 0.1).pool(_FAR_APART, lengths, mode)
        rows = initial_rows(_FAR_APART, table)
        sums = np.stack([rows[:3].sum(0), np.zeros(_DIM), rows[3:].sum(0)])
        divisors = np.array([[3], [1], [4]]) if mode == "mean" else 1
        np.testing.assert_allclose(found, sums / divisors, rtol=1e-5, atol=1e-7)

    def test_weights_of_bags_have_gradients(
        self, make_model: MakeModel, table: TableConfig
    ) -> None:
        lengths = np.array([3, 0, 4], np.int64)
        weights = np.linspace(-1, 2, 7, dtype=np.float32)
        with StepContainer() as container:
            model = make_model(table, container, "sgd", 0.1)
            found = model.weights_gradient(_FAR_APART, lengths, weights)
        rows = initial_rows(_FAR_APART, table)
        weighted = rows * weights[:, None]
        bags = np.repeat(np.stack([weighted[:3].sum(0), weighted[3:].sum(0)]), [3, 4], axis=0)
        np.testing.assert_allclose(found, (rows * bags).sum(1), rtol=1e-4, atol=1e-7)

    @pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "fused adagrad", "adam"])
    def test_rows_after_100_steps_equal_the_formula(
        self, make_model: MakeModel, table: TableConfig, optimizer: str
    ) -> None:
        generator = np.random.default_rng(4)
        known = generator.integers(-(2**62), 2**62, 40)
        rule = _RULES[optimizer](table, 0.05)
        with StepContainer() as container:
            model = make_model(table, container, optimizer, 0.05)
            for _ in range(100):
                ids = generator.choice(known, 24)
                targets = generator.normal(size=(24, _DIM)).astype(np.float32)
                model.step(ids, targets)
                rule.step(ids, targets)
            np.testing.assert_allclose(model.look_up(known), rule.look_up(known), atol=1e-5)
            assert container.num_rows(table.name) == len(rule.rows)

    def test_the_state_of_adagrad_follows_the_embedding(
        self, make_model: MakeModel, table: TableConfig
    ) -> None:
        rule = _Adagrad(table, 0.05)
        ids, targets = _FAR_APART, np.ones((7, _DIM), np.float32)
        with StepContainer() as container:
            model = make_model(table, container, "adagrad", 0.05)
            model.step(ids, targets)
            rule.step(ids, targets)
            keys = np.unique(ids)
            rows = container.storage(table.name).find(keys).rows
            assert container.tables[table.name].state_method.casefold() == "adagrad"
        sums = np.stack([rule.sums[int(key)] for key in keys])
        np.testing.assert_allclose(rows[:, _DIM:], sums, rtol=1e-5)

    def test_rows_that_are_not_looked_up_do_not_change(
        self, make_model: MakeModel, table: TableConfig
    ) -> None:
        ids, others = np.array([1, 2], np.int64), np.array([3, 4], np.int64)
        targets = np.ones((2, _DIM), np.float32)
        with StepContainer() as container:
            model = make_model(table, container, "adam", 0.05)
            model.step(ids, targets)
            before = model.look_up(ids)
            for _ in range(3):
                model.step(others, targets)
            assert np.array_equal(model.look_up(ids), before)

    def test_parts_of_a_step_add_up(self, make_model: MakeModel, table: TableConfig) -> None:
        ids, targets = _FAR_APART, np.ones((7, _DIM), np.float32)
        rule = _Adagrad(table, 0.1)
        rule.step(ids, targets)
        with StepContainer() as container:
            model = make_model(table, container, "adagrad", 0.1)
            model.step_in_parts([(ids[:3], targets[:3]), (ids[3:], targets[3:])])
            assert container.counters.steps == 1
            np.testing.assert_allclose(model.look_up(ids), rule.look_up(ids), atol=1e-6)

    def test_update_methods_count_the_steps_in_which_a_table_has_gradients(
        self, make_model: MakeModel, table: TableConfig
    ) -> None:
        ids, targets = _FAR_APART, np.ones((7, _DIM), np.float32)
        rule = _Adam(table, 0.1)
        with StepContainer() as container:
            model = make_model(table, container, "fused adam", 0.1)
            for _ in range(3):
                model.step(ids, targets)
                rule.step(ids, targets)
                model.step(ids[:0], targets[:0])
            np.testing.assert_allclose(model.look_up(ids), rule.look_up(ids), atol=1e-5)

    def test_an_empty_batch_is_a_step_that_changes_nothing(
        self, make_model: MakeModel, table: TableConfig
    ) -> None:
        with StepContainer() as container:
            model = make_model(table, container, "sgd", 0.1)
            model.step(np.empty(0, np.int64), np.empty((0, _DIM), np.float32))
            assert container.num_rows(table.name) == 0

    def test_a_non_finite_gradient_changes_nothing(
        self, make_model: MakeModel, table: TableConfig
    ) -> None:
        targets = np.ones((7, _DIM), np.float32)
        with StepContainer() as container:
            model = make_model(table, container, "sgd", 0.1)
            model.step(_FAR_APART, targets)
            before = model.look_up(_FAR_APART)
            targets[2, 1] = np.nan
            with pytest.raises(NonFiniteGradientError):
                model.step(_FAR_APART, targets)
            assert np.array_equal(model.look_up(_FAR_APART), before)

    @pytest.mark.parametrize("optimizer", ["adagrad", "fused adagrad", "adam"])
    def test_training_continues_from_a_snapshot_bit_by_bit(
        self, make_model: MakeModel, table: TableConfig, optimizer: str, tmp_path: Path
    ) -> None:
        targets = np.ones((7, _DIM), np.float32)
        url = str(tmp_path / "snapshot")
        with StepContainer() as container, StepContainer() as other:
            model = make_model(table, container, optimizer, 0.1)
            model.step(_FAR_APART, targets)
            container.save(url)
            loaded = make_model(table, other, optimizer, 0.1)
            other.load(url)
            assert _rows(other, table) == _rows(container, table)
            assert np.array_equal(loaded.look_up(_FAR_APART), model.look_up(_FAR_APART))

    def test_rows_with_the_state_of_another_optimizer_are_rejected(
        self, make_model: MakeModel, table: TableConfig, tmp_path: Path
    ) -> None:
        targets = np.ones((7, _DIM), np.float32)
        url = str(tmp_path / "snapshot")
        with StepContainer() as container, StepContainer() as other:
            make_model(table, container, "adam", 0.1).step(_FAR_APART, targets)
            container.save(url)
            make_model(table, other, "adagrad", 0.1)
            with pytest.raises(SparringError, match=r"(?i)adam"):
                other.load(url)
            assert other.num_rows(table.name) == 0

    def test_a_snapshot_of_another_dim_is_rejected(
        self, make_model: MakeModel, table: TableConfig, tmp_path: Path
    ) -> None:
        url = str(tmp_path / "snapshot")
        wider = replace(table, dim=2 * _DIM)
        with StepContainer() as container, StepContainer() as other:
            model = make_model(wider, container, "sgd", 0.1)
            model.step(_FAR_APART, np.ones((7, 2 * _DIM), np.float32))
            container.save(url)
            make_model(table, other, "sgd", 0.1)
            with pytest.raises(SparringError, match="dim"):
                other.load(url)
            assert other.num_rows(table.name) == 0

    def test_a_closed_table_raises(self, make_model: MakeModel, table: TableConfig) -> None:
        with StepContainer() as container:
            model = make_model(table, container, "sgd", 0.1)
            model.look_up(_FAR_APART)
        with pytest.raises(ClosedError):
            model.look_up(_FAR_APART)
        with pytest.raises(Exception, match="closed"):
            model.step(_FAR_APART, np.ones((7, _DIM), np.float32))

    def test_floats_that_are_not_ids_are_rejected(
        self, make_model: MakeModel, table: TableConfig
    ) -> None:
        with StepContainer() as container:
            model = make_model(table, container, "sgd", 0.1)
            with pytest.raises(InvalidArgumentError, match="int64"):
                model.look_up(np.array([1.5, 2.0], np.float32))


def _rows(container: StepContainer, table: TableConfig) -> dict[int, bytes]:
    """Returns the whole row, including the state, of each key."""
    return {
        int(key): row.tobytes()
        for each in container.storage(table.name).scan()
        for key, row in zip(each.keys, each.rows, strict=True)
    }


class _Rule:
    """A reference implementation of an optimizer, in float64."""

    def __init__(self, table: TableConfig, learning_rate: float) -> None:
        self._table, self._rate = table, learning_rate
        self.rows: dict[int, npt.NDArray[np.float64]] = {}
        self.num_steps = 0

    def look_up(self, ids: Ids) -> npt.NDArray[np.float64]:
        initial = initial_rows(ids, self._table).astype(np.float64)
        return np.stack(
            [self.rows.get(int(key), own) for key, own in zip(ids, initial, strict=True)]
        )

    def step(self, ids: Ids, targets: Rows) -> None:
        self.num_steps += 1
        gradients: dict[int, npt.NDArray[np.float64]] = {}
        found = self.look_up(ids)
        for key, row, target in zip(ids.tolist(), found, targets, strict=True):
            gradients[key] = gradients.get(key, np.zeros(_DIM)) + (row - target)
            self.rows.setdefault(key, row.copy())
        for key, gradient in gradients.items():
            self.rows[key] = self.rows[key] - self._rate * self.direction(key, gradient)

    def direction(self, key: int, gradient: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return gradient


class _Adagrad(_Rule):
    def __init__(self, table: TableConfig, learning_rate: float) -> None:
        super().__init__(table, learning_rate)
        self.sums: dict[int, npt.NDArray[np.float64]] = {}

    def direction(self, key: int, gradient: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        self.sums[key] = self.sums.get(key, np.zeros(_DIM)) + gradient**2
        result: npt.NDArray[np.float64] = gradient / (np.sqrt(self.sums[key]) + 1e-10)
        return result


class _Adam(_Rule):
    """Lazy Adam: the moments of a row change only in steps that contain its key."""

    def __init__(self, table: TableConfig, learning_rate: float) -> None:
        super().__init__(table, learning_rate)
        self._moments: dict[int, tuple[Any, Any]] = {}

    def direction(self, key: int, gradient: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        first, second = self._moments.get(key, (np.zeros(_DIM), np.zeros(_DIM)))
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        self._moments[key] = first, second
        first = first / (1 - 0.9**self.num_steps)
        second = second / (1 - 0.999**self.num_steps)
        result: npt.NDArray[np.float64] = first / (np.sqrt(second) + 1e-8)
        return result


_RULES: dict[str, Callable[[TableConfig, float], _Rule]] = {
    "sgd": _Rule,
    "adagrad": _Adagrad,
    "fused adagrad": _Adagrad,
    "adam": _Adam,
}
