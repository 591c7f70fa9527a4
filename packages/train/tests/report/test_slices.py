"""Quality on slices: which samples are in which, on one rank and on several."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sparring.contracts.ranks.collective import Collective
from sparring_testing.processes.rank_threads import run_ranks
from sparring_train.columns import Column, ColumnBatch
from sparring_train.quality.predictions import BinaryMetrics, RegressionMetrics, auc, log_loss, rmse
from sparring_train.report.run_data import Slice
from sparring_train.report.slices import SliceMetrics
from sparring_train.run.ranks import Ranks

NAMES = ["new ids", "known ids", "rare ids", "ids in between", "frequent ids"]


class Listed:
    """Stores the labels: which samples are in a slice."""

    def __init__(self) -> None:
        self.labels: list[float] = []

    def update(self, predictions: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None:
        assert predictions.tolist() == (labels + 1000).tolist()
        self.labels += labels.tolist()

    def metrics(self) -> dict[str, float]:
        return {"sum": sum(self.labels)}


def batch_of(**columns: Any) -> ColumnBatch:
    made = {}
    for name, given in columns.items():
        ids, lengths = given if isinstance(given, tuple) else (given, None)
        lengths = None if lengths is None else np.array(lengths, np.int64)
        made[name] = Column(np.array(ids, np.int64), lengths)
    size = max(map(len, made.values()))
    return ColumnBatch(made, np.empty((size, 0), np.float32))


def sliced(
    training: list[ColumnBatch],
    tests: list[ColumnBatch],
    features: list[str],
    ranks: Ranks | None = None,
    **options: Any,
) -> list[Slice]:
    """Slices; the label of a test sample is its number."""
    if ranks is None:
        return run_ranks(1, lambda one: sliced(training, tests, features, Ranks(one), **options))[0]
    slices = SliceMetrics(features, Listed, ranks, **options)
    for batch in training:
        slices.on_training_batch(batch)
    assert not slices.is_measured
    slices.begin()
    assert slices.is_measured
    begin = 0
    for batch in tests:
        labels = np.arange(begin, begin + batch.num_examples, dtype=np.float32)
        slices.on_test_batch(batch, labels + 1000, labels)
        begin += batch.num_examples
    return slices.slices()


def told(slices: list[Slice]) -> dict[tuple[str, str], tuple[int, float]]:
    return {(each.feature, each.name): (each.num_samples, each.metrics["sum"]) for each in slices}


def test_samples_are_divided_by_the_frequency_of_their_id() -> None:
    times = {5: 1, 6: 9, 7: 10, 8: 99, 9: 100, -1: 500}
    training = [batch_of(user=[id_] * count) for id_, count in times.items()]
    tests = [batch_of(user=[4, 5, 6, 7]), batch_of(user=[8, 9, -1])]
    found = told(sliced(training, tests, ["user"]))
    assert found == {
        ("user", "new ids"): (1, 0),
        ("user", "known ids"): (6, 1 + 2 + 3 + 4 + 5 + 6),
        ("user", "rare ids"): (2, 1 + 2),
        ("user", "ids in between"): (2, 3 + 4),
        ("user", "frequent ids"): (2, 5 + 6),
    }


def test_the_two_features_with_most_ids_are_measured() -> None:
    training = [batch_of(few=[1, 1, 1], many=[1, 2, 3], some=[1, 1, 2])]
    found = sliced(training, training, ["few", "many", "some"])
    assert {each.feature for each in found} == {"many", "some"}


def test_a_sample_without_an_id_is_in_no_slice() -> None:
    training = [batch_of(user=([7, 8], [1, 0, 1]))]
    tests = [batch_of(user=([8, 3], [0, 1, 0, 1]))]
    assert told(sliced(training, tests, ["user"])) == {
        ("user", "new ids"): (1, 3),
        ("user", "known ids"): (1, 1),
        ("user", "rare ids"): (1, 1),
    }


def test_only_a_reported_part_of_very_many_ids_is_measured() -> None:
    random = np.random.default_rng(3)
    training = [batch_of(user=random.integers(0, 4000, 500)) for _ in range(20)]
    tests = [batch_of(user=random.integers(0, 6000, 3000))]
    times = Counter(np.concatenate([each.ids["user"].ids for each in training]).tolist())
    slices = sliced(training, tests, ["user"], max_ids=1000)
    assert {each.one_in for each in slices} == {4}
    unseen = [each for each in tests[0].ids["user"].ids.tolist() if not times[each]]
    by_name = {each.name: each.num_samples for each in slices}
    assert by_name["new ids"] == pytest.approx(len(unseen) / 4, rel=0.2)
    assert sum(by_name[name] for name in NAMES[:2]) == pytest.approx(3000 / 4, rel=0.2)


@pytest.mark.parametrize("are_parts", [False, True])
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_measure_the_same_as_one_process(world_size: int, are_parts: bool) -> None:
    random = np.random.default_rng(4)

    def batches(count: int, size: int) -> list[ColumnBatch]:
        made = []
        for _ in range(count):
            lengths = random.integers(0, 2, size)
            user = (random.zipf(1.3, lengths.sum()), lengths)
            made.append(batch_of(user=user, item=random.zipf(1.3, size), kind=[1] * size))
        return made

    training, tests = batches(20, 50), batches(3, 31)
    features = ["kind", "item", "user"]
    alone = sliced(training, tests, features)
    assert len(alone) > 6

    def body(collective: Collective) -> list[Slice]:
        ranks = Ranks(collective)
        own = [[ranks.part(each) if are_parts else each for each in of] for of in (training, tests)]
        return sliced(own[0], own[1], features, ranks)

    first, *others = run_ranks(world_size, body)
    assert first == alone
    assert not any(others)


def test_slices_are_measured_like_all_samples() -> None:
    random = np.random.default_rng(5)
    predictions, labels = random.random(100), random.integers(0, 2, 100).astype(np.float32)
    clicks, numbers = BinaryMetrics(), RegressionMetrics()
    for part in (slice(0, 30), slice(30, 100)):
        clicks.update(predictions[part], labels[part])
        numbers.update(predictions[part], labels[part])
    assert clicks.metrics() == {
        "auc": auc(predictions, labels),
        "log_loss": pytest.approx(log_loss(predictions, labels)),
    }
    assert numbers.metrics() == {"rmse": pytest.approx(rmse(predictions, labels))}
