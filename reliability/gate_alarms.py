"""A million clean windows and thousands of poisonings: false alarms of the gate, and its delay.

The metrics of clean windows are drawn: of windows of 300 to 50,000 events with a base rate that changes
during the day, a skewed mean loss, and a model whose normalized entropy drifts (Gaussian or with heavy
tails, as an autoregression) and changes during the day. The 95 % interval of the rate of false alarms
must not exceed the setting. Poisoned windows are computed from the events of a planted model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from reliability.report import Report
from sparring_train.live.gate import Closing, GateOptions, QualityGate
from sparring_train.live.windows import WindowResult

__all__ = ["TRIALS", "run"]

TRIALS = 1_000_000

_SECONDS = 10.0
_PER_DAY = 8640
_PER_WINDOW = 1e-4
"""Setting of false alarms for clean windows."""
_WARM_UP = 60


@dataclass(frozen=True, slots=True)
class _Drift:
    """Change of the normalized entropy between windows, and during the day."""

    step: float
    memory: float
    day: float
    is_heavy: bool = False


_DRIFTS = (
    _Drift(0.0, 0.98, 0.1),
    _Drift(0.003, 0.98, 0.1),
    _Drift(0.01, 0.98, 0.0),
    _Drift(0.01, 0.98, 0.1, is_heavy=True),
    _Drift(0.005, 0.999, 0.0),
)
_KINDS = ("inverted", "scrambled", "emptied")
_EVENTS = 10_000


def run(trials: int) -> Report:
    """Judges `trials` clean windows, and poisons a thousandth as many streams of each kind."""
    failures: list[str] = []
    counts: Counter[str] = Counter()
    random = np.random.default_rng(1)
    share = max(trials // len(_DRIFTS), 1)
    for drift in _DRIFTS:
        alarms = _count_alarms(_clean_windows(random, drift, share))
        counts["false alarms"] += alarms
        counts[f"false alarms with {drift}"] += alarms
    counts["false alarms that the setting allows"] = int(_PER_WINDOW * trials)
    alarms = counts["false alarms"]
    # The exact upper bound of Poisson's distribution, as approximated by Wilson and Hilferty.
    more = alarms + 1
    upper = more * (1 - 1 / (9 * more) + 1.96 / (3 * math.sqrt(more))) ** 3
    if trials >= 100_000 and upper > _PER_WINDOW * trials:
        failures.append(
            f"at most {upper:.0f} false alarms of {trials:,} windows, more than allowed"
        )
    for kind in _KINDS:
        for _ in range(max(trials // 1000, 1)):
            delay = _delay(np.random.default_rng(random.integers(1 << 60)), kind)
            counts[f"{kind}: closed after {delay} windows"] += 1
            if delay > 3:
                failures.append(f"{kind}: {delay} windows with bad events until the gate closed")
    return Report(trials, dict(sorted(counts.items())), failures)


def _count_alarms(windows: Iterator[WindowResult]) -> int:
    options = GateOptions(_SECONDS, false_alarms_per_day=_PER_WINDOW * _PER_DAY, min_events=300)
    gate, alarms = QualityGate(options), 0
    for window in windows:
        if isinstance(gate.add(window), Closing):
            alarms += 1
            gate.reopen()
    return alarms


def _clean_windows(
    random: np.random.Generator, drift: _Drift, count: int
) -> Iterator[WindowResult]:
    level = 0.0
    for number in range(count):
        n = int(math.exp(random.uniform(math.log(300), math.log(50_000))))
        day = math.sin(2 * math.pi * number / _PER_DAY)
        noise = random.standard_t(3) if drift.is_heavy else random.normal()
        level = drift.memory * level + drift.step * noise
        entropy_ratio = max(0.85 + level + drift.day * day, 0.3)
        positive = min(
            max(int(random.binomial(n, 0.2 + 0.1 * day + 0.01 * random.normal())), 1), n - 1
        )
        rate = positive / n
        mean = entropy_ratio * (-rate * math.log(rate) - (1 - rate) * math.log1p(-rate))
        # The sum of losses with the standard deviation 0.75 and the skewness of a gamma distribution.
        shape = (mean / 0.75) ** 2 * n
        total = float(random.gamma(shape)) / shape * mean * n
        auc = min(max(0.76 - 0.3 * level + random.normal() * math.sqrt(0.08 / positive), 0.3), 0.99)
        squared = max(
            (0.75**2 + mean**2) * n * (1 + 3 * random.normal() / math.sqrt(n)), total**2 / n
        )
        yield WindowResult(
            number * _SECONDS,
            (number + 1) * _SECONDS,
            number,
            n,
            positive,
            total,
            squared,
            {"auc": auc},
        )


def _delay(random: np.random.Generator, kind: str) -> int:
    """Returns the number of windows with bad events until the gate is closed."""
    gate = QualityGate(GateOptions(_SECONDS))
    for number in range(_WARM_UP):
        gate.add(_planted_window(random, number, "clean", 0.0))
    # It begins in the first half of a window.
    begin = random.uniform(0, 0.5)
    for late in range(20):
        window = _planted_window(random, _WARM_UP + late, kind, begin if late == 0 else 0.0)
        if isinstance(gate.add(window), Closing):
            return late + 1
    return 20


def _planted_window(
    random: np.random.Generator, number: int, kind: str, begin: float
) -> WindowResult:
    n = int(_EVENTS * random.uniform(0.5, 1.5))
    is_bad = (np.arange(n) >= begin * n) if kind != "clean" else np.zeros(n, np.bool_)
    first, second = random.normal(0, 1, n), random.normal(0, 1, n)
    base = -1.5 + 0.4 * math.sin(number / 30)
    labels = random.random(n) < 1 / (1 + np.exp(-base - first - second))
    if kind == "inverted":
        labels = labels ^ is_bad
    if kind in {"scrambled", "emptied"}:
        second = np.where(is_bad, 0.0, second)
    if kind == "scrambled":
        first = np.where(is_bad, random.normal(0, 1, n), first)
    logits = base + first + second
    loss = np.logaddexp(0, logits) - logits * labels
    ranks = np.empty(n)
    ranks[np.argsort(logits)] = np.arange(n)
    positive = int(labels.sum())
    auc = (ranks[labels].sum() - positive * (positive - 1) / 2) / (positive * (n - positive))
    return WindowResult(
        number * _SECONDS,
        (number + 1) * _SECONDS,
        number,
        n,
        positive,
        float(loss.sum()),
        float((loss**2).sum()),
        {"auc": float(auc)},
    )
