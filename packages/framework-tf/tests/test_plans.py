"""`Optimizer(plan=…)`: tables of layers join the job, sharded by a plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow")

import keras

from sparring import StepContainer
from sparring.contracts import PlanRequest, PlanResult, ShardingPlan
from sparring.errors import InvalidArgumentError, PluginError
from sparring_tf import EmbeddingBag, EmbeddingCollection, FeatureConfig, Optimizer, TableConfig
from sparring_tf.optim import planned_job as planned


def model(**settings: Any) -> keras.Model:
    users = TableConfig(name="user", embedding_dim=4, storage="memory", vocabulary_size=90)
    days = TableConfig(name="day", embedding_dim=2, storage="memory", combiner=None)
    features = {
        "user": FeatureConfig(name="user", table=users),
        "seen": FeatureConfig(name="seen", table=users),
        "day": FeatureConfig(name="day", table=days),
    }
    inputs = {name: keras.Input((2,), dtype="int64", name=name) for name in features}
    found = EmbeddingCollection(features, **settings)(inputs)
    flat = [keras.layers.Flatten()(each) for each in found.values()]
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(flat)))


def batch() -> dict[str, Any]:
    return {name: np.arange(8).reshape(4, 2) for name in ("user", "seen", "day")}


@pytest.mark.parametrize("plan", [{"user": "table_wise"}, ShardingPlan({"user": "table_wise"})])
def test_tables_are_sharded_by_the_plan(plan: Any) -> None:
    made = model()
    before = made(batch())
    optimizer = Optimizer(made, keras.optimizers.Adagrad(0.1), plan=plan)
    with optimizer.container as container:
        assert container.layout("user").kind == "table_wise"
        assert container.layout("day").kind == "row_wise"
        assert np.array_equal(made(batch()), before)
        made.compile(optimizer=optimizer, loss="mse")
        made.fit(batch(), np.ones((4, 1)), verbose=0)
        assert container.num_rows("user") == 8


def test_a_planner_receives_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[PlanRequest] = []

    def resolve_plan(plan: Any, tables: Any, job: Any, manager: Any) -> Any:
        assert plan == "auto"
        asked.append(PlanRequest(tuple(tables()), job.collective.world_size))
        return PlanResult(ShardingPlan({"day": "data_parallel"})).sharding

    monkeypatch.setattr(planned, "resolve_plan", resolve_plan)
    optimizer = Optimizer(model(), "rowwise_adagrad", dense=keras.optimizers.SGD(), plan="auto")
    with optimizer.container as container:
        assert container.layout("day").kind == "data_parallel"
    (request,) = asked
    user, day = request.tables
    assert (user.table.name, user.rows, user.method) == ("user", 90, "rowwise_adagrad")
    assert (day.table.name, day.rows, day.table.dim) == ("day", None, 2)
    assert [len(each.features) for each in request.tables] == [2, 1]
    assert day.features[0].pooling is None
    assert user.features[0].pooling is not None
    monkeypatch.undo()
    optimizer = Optimizer(model(), keras.optimizers.Adam(), plan="auto")
    assert optimizer.container.layout("day").kind == "row_wise"
    optimizer.container.close()


@pytest.mark.parametrize(
    ("plan", "error", "words"),
    [
        ({"usr": "table_wise"}, InvalidArgumentError, "did you mean 'user'"),
        ({"user": "tabel_wise"}, PluginError, "did you mean 'table_wise'"),
        ("plan.yaml", InvalidArgumentError, "found 'plan.yaml'; pass 'auto'"),
    ],
)
def test_invalid_plans_are_rejected(plan: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        Optimizer(model(), keras.optimizers.SGD(0.1), plan=plan)


def test_a_plan_is_rejected_for_layers_with_a_container() -> None:
    with StepContainer(plan={"user": "table_wise"}) as container:
        made = model(container=container)
        with pytest.raises(InvalidArgumentError, match="pass the plan to their container"):
            Optimizer(made, keras.optimizers.SGD(0.1), plan="auto")
        assert Optimizer(made, keras.optimizers.SGD(0.1)).container is container
    bag = EmbeddingBag(2, name="held", storage="memory")
    first = Optimizer(keras.Sequential([bag]), keras.optimizers.SGD(0.1))
    first.container.assign("held", [1], np.ones((1, 2)))
    with pytest.raises(InvalidArgumentError, match="container or rows"):
        Optimizer(bag, keras.optimizers.SGD(0.1), plan={"held": "table_wise"})
