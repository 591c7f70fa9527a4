"""Batch plans: a step updates the rows that the forward pass found, even after changes in between."""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sparring import _native
from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import InvalidArgumentError
from sparring.updates.resolve import parse_hyper, resolve_method
from sparring_testing.processes.table_steps import descend, read_rows

TABLE = TableConfig("t", 3)
METHOD = resolve_method("adagrad")
CHOICE = {"t": MethodChoice(METHOD, parse_hyper(METHOD, {"lr": 0.1}), 1)}
Ids = npt.NDArray[np.int64]


def made(options: dict[str, Any]) -> StepContainer:
    container = StepContainer()
    container.declare(TABLE, StorageChoice("hkv", options))
    container.set_state("t", np.zeros(3, np.float32), "adagrad")
    container.storage("t")
    return container


def apply(container: StepContainer, *, by_rows: bool) -> None:
    if by_rows:
        container.apply(descend(counted=1.0))
    else:
        container.apply_methods(CHOICE)


def gradients_of(ids: Ids) -> npt.NDArray[np.float32]:
    return np.outer(ids % 5 - 2.0, [1.0, 0.5, -2.0]).astype(np.float32)


class ByPlan:
    """Looks up with plans, whose row handles the update uses."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.container = made(options)
        self._collection = self.container.collection([("t", "sum")])
        self._waiting: deque[tuple[Any, Ids]] = deque()

    def forward(self, ids: Ids) -> npt.NDArray[Any]:
        plan = self._collection.plan_ids(ids, [(0, len(ids))])
        self._waiting.append((plan, ids))
        (rows,) = plan.gather()
        found: npt.NDArray[Any] = rows
        return found

    def step(self, *, by_rows: bool = False) -> None:
        plan, ids = self._waiting.popleft()
        shadow_id = self.container.resources.register_direct(["t"])
        self.container.resources.accumulate_sources(shadow_id, plan.gradients([gradients_of(ids)]))
        apply(self.container, by_rows=by_rows)


class ByShadow:
    """Trains with shadows: each step finds the keys again."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.container = made(options)
        self._waiting: deque[Ids] = deque()

    def forward(self, ids: Ids) -> npt.NDArray[Any]:
        self._waiting.append(ids)
        found = self.container.lookup("t", ids, is_registered=False)
        return found.rows[found.inverse]

    def step(self, *, by_rows: bool = False) -> None:
        ids = self._waiting.popleft()
        keys, inverse = np.unique(ids, return_inverse=True)
        found = self.container.lookup("t", ids, is_registered=True)
        assert found.shadow_id is not None
        sums = np.zeros((len(keys), 3), np.float32)
        np.add.at(sums, inverse, gradients_of(ids))
        at = {int(key): place for place, key in enumerate(keys)}
        self.container.resources.accumulate(
            found.shadow_id, sums[[at[int(key)] for key in found.keys]]
        )
        apply(self.container, by_rows=by_rows)


IDS = st.lists(st.integers(0, 40), min_size=1, max_size=60).map(
    lambda ids: np.array(ids, np.int64) * 7 - 50
)


class PipelinedSteps(RuleBasedStateMachine):
    """Forward passes run ahead of steps, on a small table that evicts rows."""

    options: ClassVar[dict[str, Any]]

    def __init__(self) -> None:
        super().__init__()
        self.by_plan = ByPlan(self.options)
        self.by_shadow = ByShadow(self.options)
        self.num_waiting = 0

    @precondition(lambda self: self.num_waiting < 3)
    @rule(ids=IDS)
    def forward(self, ids: Ids) -> None:
        found = self.by_plan.forward(ids)
        assert found.tobytes() == self.by_shadow.forward(ids).tobytes()
        self.num_waiting += 1

    @precondition(lambda self: self.num_waiting > 0)
    @rule(by_rows=st.booleans())
    def step(self, by_rows: bool) -> None:
        self.by_plan.step(by_rows=by_rows)
        self.by_shadow.step(by_rows=by_rows)
        self.num_waiting -= 1

    @rule(ids=IDS)
    def erase(self, ids: Ids) -> None:
        for each in (self.by_plan, self.by_shadow):
            each.container.storage("t").erase(np.unique(ids))

    @rule(ids=IDS)
    def upsert(self, ids: Ids) -> None:
        keys = np.unique(ids)
        for each in (self.by_plan, self.by_shadow):
            rows = np.repeat(keys[:, None], 6, 1).astype(np.float32)
            each.container.storage("t").upsert(keys, np.abs(rows))

    @rule()
    def clear(self) -> None:
        for each in (self.by_plan, self.by_shadow):
            each.container.storage("t").clear()

    @invariant()
    def tables_are_equal(self) -> None:
        assert read_rows(self.by_plan.container, "t") == read_rows(self.by_shadow.container, "t")

    def teardown(self) -> None:
        for each in (self.by_plan, self.by_shadow):
            each.container.close()


class GrowingSteps(PipelinedSteps):
    options: ClassVar = {}


class BoundedSteps(PipelinedSteps):
    options: ClassVar = {"capacity": 24, "policy": "lru"}


TestGrowing = GrowingSteps.TestCase
TestBounded = BoundedSteps.TestCase
for _case in (TestGrowing, TestBounded):
    _case.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)
del _case  # pytest would run it once more


def test_a_step_by_rows_finds_and_writes_them_by_handles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_plan, by_shadow = ByPlan({}), ByShadow({})
    ids = np.array([4, 9, 4, -3])
    for each in (by_plan, by_shadow):
        for _ in range(2):  # new keys, then known ones
            each.forward(ids)
            each.step(by_rows=True)
    with monkeypatch.context() as patched:
        storage = by_plan.container.storage("t")
        for name in ("find_into", "upsert_from", "_find_impl", "_upsert_impl"):
            patched.setattr(type(storage), name, None)
        by_plan.forward(ids)
        by_plan.step(by_rows=True)
    by_shadow.forward(ids)
    by_shadow.step(by_rows=True)
    assert read_rows(by_plan.container, "t") == read_rows(by_shadow.container, "t")


@pytest.mark.parametrize("num_ids", [3, 20_000])
def test_bags_of_a_plan_equal_those_of_a_lookup(num_ids: int) -> None:
    container = made({})
    container.storage("t").upsert(np.arange(500), np.ones((500, 6), np.float32))
    random = np.random.default_rng(num_ids)
    ids = random.integers(0, 1000, 2 * num_ids)
    offsets = np.sort(np.concatenate([[0, num_ids], random.integers(0, num_ids, 99)]))
    offsets = np.concatenate([offsets, num_ids + offsets[1:]])
    weights = random.random(2 * num_ids, np.float32)
    collection = container.collection([("t", "sum"), ("t", "mean")])
    for scales in (None, weights):
        expected = collection.pool(ids, offsets, (0, 1), 100, scales)
        plan = collection.plan_bags(ids, offsets, (0, 1), 100, scales)
        assert plan.pool().tobytes() == expected.tobytes()


def test_sums_of_gradients_are_the_same_without_a_plan() -> None:
    summed = []
    for finds_rows in (True, False):
        container = made({})
        random = np.random.default_rng(3)
        ids = random.integers(0, 300, 900)
        offsets = np.arange(0, 901, 3)
        collection = container.collection([("t", "mean"), ("t", "sum")])
        plan = collection.plan_bags(ids, offsets, (0, 1), 150, finds_rows=finds_rows)
        gradient = random.standard_normal((150, 6)).astype(np.float32)
        shadow_id = container.resources.register_direct(["t"])
        container.resources.accumulate_sources(shadow_id, plan.gradients([gradient]))
        taken = container.resources.take_step(are_summed=True)["t"]
        summed.append((taken.keys.tobytes(), taken.gradients.tobytes()))
    assert summed[0] == summed[1]


@pytest.mark.parametrize("num_keys", [0, 1, 20_000])
def test_distinct_keys_are_changed_in_their_order_without_a_grouping(num_keys: int) -> None:
    random = np.random.default_rng(num_keys)
    keys = random.permutation(2 * num_keys)[:num_keys]
    gradients = random.standard_normal((num_keys, 3)).astype(np.float32)
    changed = []
    for are_distinct in (True, False):
        container = made({})
        entry = container.entry("t")
        spec = METHOD.spec("float32", 3, CHOICE["t"].hyper, 1)
        for _ in range(2):  # new rows, then known ones
            sources = _native.key_gradients(entry.view, keys, gradients, are_distinct)
            step = _native.FusedStep([(entry.view, spec, entry.initial_state, None, [sources])], 1)
            ((updated, _, _, _),) = step.apply()
        assert updated == num_keys
        if are_distinct:
            assert step.keys(0).tolist() == keys.tolist()
        changed.append(read_rows(container, "t"))
    assert changed[0] == changed[1]


def test_a_plan_accepts_one_gradient_of_its_shape() -> None:
    collection = made({}).collection([("t", "sum")])
    plan = collection.plan_bags(np.arange(4), np.array([0, 2, 4]), (0,), 2)
    with pytest.raises(InvalidArgumentError, match=r"1 gradients .*found 2"):
        plan.gradients([np.zeros((2, 3), np.float32)] * 2)
    with pytest.raises(InvalidArgumentError, match="gradient"):
        plan.gradients([np.zeros((3, 3), np.float32)])


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8"])
@pytest.mark.parametrize("num_ids", [0, 40, 40_000])
def test_given_embeddings_are_read_as_rows_of_the_storage(dtype: str, num_ids: int) -> None:
    container = StepContainer()
    for name in ("a", "b"):
        container.declare(TableConfig(name, 3, dtype))
    computing = container.entry("a").config.computing_dtype
    ids = np.random.default_rng(0).integers(0, num_ids // 4 + 1, num_ids)
    offsets = np.array([0, num_ids // 3, num_ids // 3, num_ids])
    features = container.collection([("b", "sum"), ("a", "mean"), ("b", "mean")])
    given = ids, np.append(offsets, [num_ids] * 3), [0, 0, 1], 3
    expected = features.pool(*given)
    batch = features.plan_bags(*given, finds_rows=False)
    keys = batch.keys()
    assert [sorted(each) for each in keys] == [sorted(set(ids.tolist()))] * 2
    rows = [container.lookup(name, each).rows for name, each in zip("ba", keys, strict=True)]
    batch.set_embeddings(rows)
    np.testing.assert_array_equal(batch.pool(), expected)
    gradient = np.ones((3, 9), computing)
    whole = features.plan_bags(*given).gradients([gradient])
    view = container.entry("a").view
    for one, other in zip(
        batch.gradients([gradient]).summed(view), whole.summed(view), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_embeddings_that_do_not_fit_their_keys_are_rejected() -> None:
    container = StepContainer()
    container.declare(TABLE)
    ids = np.array([1, 2, 1])
    features = container.collection([("t", "sum")])
    batch = features.plan_ids(ids, [(0, 3)], finds_rows=False)
    with pytest.raises(InvalidArgumentError, match="call keys"):
        batch.set_embeddings([np.zeros((2, 3), np.float32)])
    batch.keys()
    with pytest.raises(InvalidArgumentError, match="1 tables are expected, found 0"):
        batch.set_embeddings([])
    with pytest.raises(InvalidArgumentError, match="embeddings"):
        batch.set_embeddings([np.zeros((3, 3), np.float32)])
    batch.set_embeddings([np.array([[1, 1, 1], [2, 2, 2]], np.float32)])
    np.testing.assert_array_equal(batch.gather()[0][:, 0], [1, 2, 1])


@pytest.mark.parametrize("is_pooled", [True, False])
def test_gradients_may_be_columns_of_a_larger_array(is_pooled: bool) -> None:
    container = made({})
    view = container.state.tables.entry("t").view
    ids = np.array([4, 9, 4, -3])
    collection = container.collection([("t", "sum")])
    plan = (
        collection.plan_bags(ids, np.array([0, 2, 4]), (0,), 2, None)
        if is_pooled
        else collection.plan_ids(ids, [(0, 4)])
    )
    wide = np.full((2 if is_pooled else 4, 7), np.nan, np.float32)
    columns = wide[:, 2:5]
    columns[...] = np.random.default_rng(0).random(columns.shape)
    found, expected = plan.gradients([columns]), plan.gradients([columns.copy()])
    for one, other in zip(found.summed(view), expected.summed(view), strict=True):
        np.testing.assert_array_equal(one, other)
    assert found.is_finite
    columns[-1, 0] = np.inf
    assert not plan.gradients([columns]).is_finite
    with pytest.raises(InvalidArgumentError, match="gradient must be"):
        plan.gradients([wide[:, ::2][:, :3]])
