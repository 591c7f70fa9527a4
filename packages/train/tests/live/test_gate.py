"""The gate closes when a model gets worse, and not by noise; it opens after good windows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import numpy as np
import pytest

from sparring_train.live.gate import Closing, GateOptions, Opening, QualityGate
from sparring_train.live.windows import WindowResult

OPTIONS = GateOptions(window_seconds=10, false_alarms_per_day=0.01)


class Model:
    """A planted model whose base rate drifts; windows have different numbers of events."""

    def __init__(self, seed: int = 1, num_events: int = 2000) -> None:
        self._random = np.random.default_rng(seed)
        self._num_events, self.number = num_events, 0

    def window(self, kind: str = "clean", num_events: int | None = None) -> WindowResult:
        random = self._random
        n = num_events or int(self._num_events * random.uniform(0.5, 1.5))
        first, second = random.normal(0, 1, n), random.normal(0, 0.8, n)
        base = -1.5 + 0.4 * math.sin(self.number / 30)
        labels = random.random(n) < 1 / (1 + np.exp(-base - first - second))
        if kind == "inverted":
            labels = ~labels
        # The model reads another id, or the default of an emptied column.
        seen = random.normal(0, 1, n) if kind == "scrambled" else first
        other = np.zeros(n) if kind in {"scrambled", "emptied"} else second
        logits = base + seen + other
        loss = np.logaddexp(0, logits) - logits * labels
        ranks = np.empty(n)
        ranks[np.argsort(logits)] = np.arange(n)
        positive = int(labels.sum())
        auc = (ranks[labels].sum() - positive * (positive - 1) / 2) / (positive * (n - positive))
        begin = 10.0 * self.number
        self.number += 1
        metrics = {"auc": float(auc), "log_loss": float(loss.mean())}
        return WindowResult(
            begin, begin + 10, 5 * self.number, n, positive, loss.sum(), (loss**2).sum(), metrics
        )

    def windows(self, count: int, kind: str = "clean") -> Iterator[WindowResult]:
        return (self.window(kind) for _ in range(count))


def warmed_up(model: Model, options: GateOptions = OPTIONS) -> QualityGate:
    gate = QualityGate(options)
    assert [each for each in map(gate.add, model.windows(60)) if each] == []
    return gate


@pytest.mark.parametrize(
    ("kind", "num_events", "most"),
    [("inverted", 2000, 1), ("scrambled", 5000, 2), ("emptied", 20_000, 2)],
)
def test_the_gate_closes_within_windows_of_bad_events_and_opens_after_good_ones(
    kind: str, num_events: int, most: int
) -> None:
    model = Model(num_events=num_events)
    gate = warmed_up(model)
    found = list(map(gate.add, model.windows(most, kind)))
    [closing] = [each for each in found if each]
    assert isinstance(closing, Closing)
    assert gate.is_closed
    # The bad events begin with window 60. The window before it is not trusted either.
    assert closing.begin >= 560
    assert closing.good_step is not None
    assert 55 * 5 <= closing.good_step <= 59 * 5
    assert "bad window" in closing.reason
    assert "expected" in closing.reason
    assert list(map(gate.add, model.windows(3, kind))) == [None] * 3
    opening = [gate.add(each) for each in model.windows(3)]
    assert opening[:2] == [None, None]
    assert isinstance(opening[2], Opening)
    assert not gate.is_closed
    assert [each for each in map(gate.add, model.windows(60)) if each] == []


def test_repeated_bad_events_do_not_become_usual() -> None:
    model = Model(num_events=1500)
    gate = warmed_up(model)
    for repetition in range(12):
        changes = [each for each in map(gate.add, model.windows(6, "scrambled")) if each]
        assert [type(each) for each in changes] == [Closing], f"repetition {repetition}"
        changes = [each for each in map(gate.add, model.windows(15)) if each]
        assert [type(each) for each in changes] == [Opening], f"repetition {repetition}"


def test_the_gate_does_not_close_during_the_warm_up_or_while_the_model_improves() -> None:
    model = Model()
    gate = QualityGate(OPTIONS)
    changes = [gate.add(each) for each in model.windows(10, "emptied")]
    changes += [gate.add(each) for each in model.windows(60)]
    assert changes == [None] * 70


def test_windows_are_joined_until_they_have_enough_events() -> None:
    model = Model()
    gate = warmed_up(model)
    changes = [gate.add(model.window("inverted", 300)) for _ in range(4)]
    assert changes[:3] == [None] * 3
    assert isinstance(changes[3], Closing)


def test_a_loss_that_is_not_finite_closes_the_gate_at_once() -> None:
    model = Model()
    gate = QualityGate(OPTIONS)
    gate.add(model.window())
    window = model.window()
    broken = WindowResult(
        window.begin,
        window.end,
        window.step,
        window.num_events,
        9,
        math.nan,
        math.nan,
        {"auc": math.nan},
    )
    closing = gate.add(broken)
    assert isinstance(closing, Closing)
    assert (closing.good_step, "not finite" in closing.reason) == (None, True)


def test_numbers_as_labels_are_judged_by_their_loss() -> None:
    random = np.random.default_rng(3)
    gate = QualityGate(OPTIONS)
    for number in range(62):
        errors = random.normal(0, 2.0 if number >= 60 else 1.0, 2000) ** 2
        window = WindowResult(
            10.0 * number, 10.0 * number + 10, number, 2000, 0, errors.sum(), (errors**2).sum(), {}
        )
        change = gate.add(window)
    assert isinstance(change, Closing)
    assert change.reason.startswith("2 bad windows of 10 s: loss ")
    assert change.good_step == 58


def test_a_restored_gate_makes_equal_decisions() -> None:
    for kind in ("clean", "emptied"):
        model = Model()
        gate = warmed_up(model)
        gate.add(model.window("emptied"))
        other = QualityGate(OPTIONS)
        other.restore(json.loads(json.dumps(gate.values())))
        for window in model.windows(20, kind):
            assert gate.add(window) == other.add(window)
        assert gate.values() == other.values()


def test_steps_are_kept_until_the_gate_cannot_return_to_them() -> None:
    model = Model(num_events=20_000)
    gate = warmed_up(model)
    newest = model.number * 5
    assert set(gate.kept_steps) >= {newest, newest - 5}
    assert len(gate.kept_steps) <= 12
    before = gate.kept_steps
    closing = next(each for each in map(gate.add, model.windows(30, "emptied")) if each)
    assert isinstance(closing, Closing)
    assert closing.good_step in before


def test_reopening_on_request_starts_a_new_reference() -> None:
    model = Model()
    gate = warmed_up(model)
    assert isinstance(gate.add(model.window("inverted")), Closing)
    gate.reopen()
    assert not gate.is_closed
    assert [each for each in map(gate.add, model.windows(30, "inverted")) if each] == []


def test_false_alarms_of_noise_are_rarer_than_the_setting() -> None:
    model = Model(seed=5, num_events=400)
    limit = 8640 / 20  # One false alarm per 20 windows.
    gate = QualityGate(GateOptions(10, false_alarms_per_day=limit, min_events=100))
    alarms = 0
    for window in model.windows(500):
        if isinstance(gate.add(window), Closing):
            alarms += 1
            gate.reopen()
    assert alarms <= 500 / 20
