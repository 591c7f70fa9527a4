"""Windows of event time have the metrics of scikit-learn, on any number of ranks and after a resume."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="compares with scikit-learn")

from sklearn.metrics import log_loss, mean_squared_error, roc_auc_score

from sparring import State
from sparring.collective.local import LocalGroup
from sparring.contracts.ranks.collective import Collective
from sparring_testing.processes.rank_threads import run_ranks
from sparring_train.live.windows import BINS, Dimension, WindowResult, Windows
from sparring_train.run.ranks import Ranks

ONE = Ranks(LocalGroup(1).join(0))
DEVICE = Dimension("device", ("ios", "android"))


class Clicks:
    """Logits, labels, times and devices of events in 20 steps, about 6 s each."""

    def __init__(self) -> None:
        random = np.random.default_rng(3)
        count = 4000
        self.logits = random.normal(-1, 2, count).astype(np.float32)
        self.labels = (random.random(count) < 1 / (1 + np.exp(-self.logits))).astype(np.float32)
        # Nearly sorted, like events of several producers.
        self.times = 1_790_000_000 + np.linspace(0, 120, count) + random.normal(0, 1, count)
        self.devices = random.integers(-1, 2, count)

    def steps(self) -> list[slice]:
        return [slice(begin, begin + 200) for begin in range(0, 4000, 200)]

    def add(self, windows: Windows, at: Any) -> None:
        arrays = (self.logits, self.labels, self.times, self.devices)
        logits, labels, times, devices = (each[at] for each in arrays)
        windows.add(logits, labels, times, [devices])

    def run(self, windows: Windows, steps: list[slice], ranks: Ranks = ONE) -> list[WindowResult]:
        found = []
        for each in steps:
            mine = slice(each.start + ranks.rank, each.stop, ranks.world_size)
            self.add(windows, mine)
            found += windows.close_until(float(self.times[each].max()), each.stop // 200)
        last = windows.unfinished(99)
        return found + ([] if last is None else [last])


def rounded(results: list[WindowResult]) -> list[Any]:
    """Returns results without the last digits, which depend on the order of additions."""

    def numbers(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: numbers(each) for name, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [numbers(each) for each in value]
        return round(value, 9) if isinstance(value, float) else value

    return [numbers(asdict(each)) for each in results]


def test_metrics_are_those_of_scikit_learn() -> None:
    clicks = Clicks()
    results = clicks.run(Windows(30, "binary", ONE, [DEVICE]), clicks.steps())
    assert [each.end - each.begin for each in results] == [30] * len(results)
    assert sum(each.num_events for each in results) == 4000
    # The window of each event: that of its time, or the open one.
    newest = np.maximum.accumulate([clicks.times[each].max() for each in clicks.steps()])
    before = np.concatenate(([0.0], newest[:-1])).repeat(200)
    window = np.maximum(clicks.times // 30, before // 30)
    for each in results:
        is_in = window == each.begin / 30
        labels, logits = clicks.labels[is_in], clicks.logits[is_in].astype(np.float64)
        probability = 1 / (1 + np.exp(-logits))
        loss = log_loss(labels, probability)
        rate = labels.mean()
        assert (each.num_events, each.num_positive) == (is_in.sum(), labels.sum())
        assert each.sum_loss == pytest.approx(loss * is_in.sum())
        assert each.metrics["log_loss"] == pytest.approx(loss)
        entropy = log_loss(labels, np.full(len(labels), rate))
        assert each.metrics["normalized_entropy"] == pytest.approx(loss / entropy)
        assert each.metrics["calibration"] == pytest.approx(probability.sum() / labels.sum())
        assert each.metrics["auc"] == pytest.approx(roc_auc_score(labels, logits), abs=2e-4)
        for part in each.slices:
            chosen = is_in & (clicks.devices == DEVICE.values.index(part.value))
            expected = log_loss(clicks.labels[chosen], 1 / (1 + np.exp(-clicks.logits[chosen])))
            assert part.num_events == chosen.sum()
            assert part.metrics["log_loss"] == pytest.approx(expected, rel=1e-5)


def test_errors_of_numbers() -> None:
    windows = Windows(10, "number", ONE)
    windows.add(np.array([1.0, 2, 4]), np.array([1.0, 3, 1]), np.array([1.0, 2, 3]))
    [found] = windows.close_until(10, 5)
    assert found == WindowResult(0, 10, 5, 3, 0, 10.0, 82.0, {"rmse": math.sqrt(10 / 3)}, [])
    assert found.metrics["rmse"] ** 2 == pytest.approx(mean_squared_error([1, 3, 1], [1, 2, 4]))


def test_a_late_event_belongs_to_the_open_window_and_an_empty_window_has_no_result() -> None:
    windows = Windows(10, "binary", ONE)
    ones = np.ones(1)
    assert windows.unfinished(0) is None
    windows.add(ones, ones, np.array([5.0]))
    assert windows.close_until(5, 1) == []
    windows.add(ones, ones, np.array([38.0]))
    assert [each.begin for each in windows.close_until(38, 2)] == [0]
    windows.add(ones, ones, np.array([7.0]))
    assert windows.close_until(38, 3) == []
    [last] = windows.close_until(51, 4)
    assert (last.begin, last.num_events, last.step) == (30, 2, 4)
    assert math.isnan(last.metrics["auc"])


def test_a_broken_model_has_no_metrics() -> None:
    windows = Windows(10, "binary", ONE)
    windows.add(np.array([np.nan, 1]), np.array([1.0, 0]), np.array([5.0, 6]))
    [found] = windows.close_until(10, 1)
    assert math.isnan(found.sum_loss)
    assert all(math.isnan(each) for each in found.metrics.values())


def test_the_error_of_the_auc_is_bounded_by_the_width_of_a_bin() -> None:
    windows = Windows(10, "binary", ONE)
    logits = np.array([-20, -17, 3, 3 + 33 / BINS, 20.0])
    labels = np.array([0, 1, 1, 0, 1.0])
    windows.add(logits, labels, np.full(5, 1.0))
    [found] = windows.close_until(10, 1)
    # -20 and -17 are in one bin; 3 and its neighbor are not.
    assert found.metrics["auc"] == (0.5 + 0 + 1 + 0 + 1 + 1) / 6


@pytest.mark.parametrize("world_size", [1, 2])
def test_results_do_not_depend_on_ranks_or_on_a_resume(world_size: int) -> None:
    clicks = Clicks()
    expected = clicks.run(Windows(30, "binary", ONE, [DEVICE]), clicks.steps())

    def run(collective: Collective) -> tuple[list[WindowResult], State]:
        ranks = Ranks(collective)
        steps = clicks.steps()
        windows = Windows(30, "binary", ranks, [DEVICE])
        found = clicks.run(windows, steps[:8], ranks)[:-1]
        state = windows.state()
        # Training continues while the snapshot is written.
        clicks.run(windows, steps[8:10], ranks)
        resumed = Windows(30, "binary", ranks, [DEVICE])
        assert resumed.restore(state)
        return found + clicks.run(resumed, steps[8:], ranks), state

    found = run_ranks(world_size, run)
    for results, _ in found:
        assert rounded(results) == rounded(expected)
        assert results == found[0][0]
    if world_size == 1:
        assert found[0][0] == expected
    for other in (Windows(60, "binary", ONE, [DEVICE]), Windows(30, "binary", ONE)):
        assert not other.restore(found[0][1])
