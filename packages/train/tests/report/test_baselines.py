"""Baselines of a report: the mean, the mean of each id, and where they are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.contracts.ranks.collective import Collective
from sparring_testing.processes.rank_threads import run_ranks
from sparring_train.columns import Column, ColumnBatch
from sparring_train.quality.predictions import RegressionMetrics
from sparring_train.report.baselines import Baselines
from sparring_train.report.page import write_report
from sparring_train.report.run_data import Baseline, Points, RunData, read_report
from sparring_train.run.ranks import Ranks

RANDOM = np.random.default_rng(4)


def batch_of(users: Any, items: Any, labels: Any) -> ColumnBatch:
    """`items` may be missing: -1."""
    items = np.asarray(items)
    has = items >= 0
    return ColumnBatch(
        {
            "user": Column(np.asarray(users, np.int64)),
            "item": Column(items[has].astype(np.int64), has.astype(np.int64)),
        },
        np.empty((len(items), 0), np.float32),
        np.asarray(labels, np.float32),
    )


def drawn(count: int) -> ColumnBatch:
    return batch_of(
        RANDOM.integers(0, 9, count), RANDOM.integers(-1, 30, count), RANDOM.normal(size=count)
    )


TRAINING, TEST = [drawn(70), drawn(70)], drawn(50)


def expected(feature: str) -> float:
    """Returns the error of the mean of each id, computed sample by sample."""
    labels = np.concatenate([each.labels for each in TRAINING]).astype(np.float64)
    mean, seen = labels.mean(), {}
    for batch in TRAINING:
        column, ids = batch.ids[feature], iter(batch.ids[feature].ids.tolist())
        for count, label in zip(column.counts, batch.labels.tolist(), strict=True):
            if count:
                seen.setdefault(next(ids), []).append(label)
    ids = iter(TEST.ids[feature].ids.tolist())
    predicted = [
        (sum(seen.get(key, [])) + 10 * mean) / (len(seen.get(key, [])) + 10)
        for key in (next(ids) if count else None for count in TEST.ids[feature].counts)
    ]
    return float(np.sqrt(np.mean((np.array(predicted) - TEST.labels) ** 2)))


def measured(ranks: Ranks, *, are_parts: bool, max_ids: int = 1 << 20) -> list[Baseline]:
    baselines = Baselines(["user", "item"], RegressionMetrics, ranks, max_ids=max_ids)
    for batch in TRAINING:
        baselines.on_training_batch(ranks.part(batch) if are_parts else batch)
    baselines.begin()
    baselines.on_test_batch(ranks.part(TEST) if are_parts else TEST, np.zeros(50), TEST.labels)
    return baselines.baselines()


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("are_parts", [False, True])
def test_means_of_all_and_of_each_id_are_measured(world_size: int, are_parts: bool) -> None:
    def work(collective: Collective) -> list[Baseline]:
        return measured(Ranks(collective), are_parts=are_parts)

    found = {each.name: each.metrics["rmse"] for each in run_ranks(world_size, work)[0]}
    labels = np.concatenate([each.labels for each in TRAINING]).astype(np.float64)
    assert found == pytest.approx(
        {
            "the mean": float(np.sqrt(np.mean((TEST.labels - labels.mean()) ** 2))),
            "the mean of each user": expected("user"),
            "the mean of each item": expected("item"),
        }
    )


def test_features_with_too_many_ids_are_left_out() -> None:
    (found,) = run_ranks(1, lambda one: measured(Ranks(one), are_parts=False, max_ids=10))
    assert [each.name for each in found] == ["the mean", "the mean of each user"]


def test_a_report_shows_baselines_validation_and_no_curve_of_one_point(tmp_path: Path) -> None:
    one, two = Points(steps=[4], values=[0.75]), Points(steps=[2, 4], values=[0.7, 0.8])
    facts: dict[str, Any] = {"seconds": 1.0, "steps": 4, "metrics": {"auc": 0.75}}
    best = {"validation": {"auc": 0.8}, "best_step": 4}
    data = RunData(
        **facts,
        **best,
        series={"auc": one},
        baselines=[Baseline(name="the mean", metrics={"auc": 0.5})],
    )
    write_report(tmp_path / "a.html", data)
    text = (tmp_path / "a.html").read_text()
    assert "AUC over steps" not in text
    for words in ("Predicting the mean", ">0.5000<", "validation samples, step 4", ">0.8000<"):
        assert words in text
    assert "The best value that a model can reach on these data is unknown" in text
    assert read_report(tmp_path / "a.html") == data
    write_report(tmp_path / "b.html", RunData(**facts, series={"auc": one, "validation/auc": two}))
    assert "AUC on the validation and test samples" in (tmp_path / "b.html").read_text()
