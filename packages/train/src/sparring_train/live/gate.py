"""`QualityGate`: decides from the metrics of windows whether a model got worse than its recent past.

    windows ──► two standardized errors z ──► e-value e ──► m = max(m, 1) · e ──► m >= c: the gate closes

**Promise.** While nothing but the noise that it has seen before changes the metrics, the mean number of
windows to a false alarm is at least c = windows per day / `false_alarms_per_day`.

**Reference.** For each window, the gate predicts normalized entropy NE = L / H(p) and AUC from earlier
windows only. L is the mean log loss and H(p) the entropy of the window's own base rate, so that a
changing base rate alone does not change NE. The prediction r comes from the Kalman filter of a random
walk. Errors are limited to `_MOST_UPDATE` standard errors when they are learned, so that a bad window
moves neither the prediction nor its variance far. If the gate closes, the windows that it judges as bad
are not learned: otherwise, repeated bad events would count as usual noise.

**Standardized error.** The error of window i is x_i - r_i, with the sign that a worse model is positive.
Its variance has two parts: the sampling variance s_i^2 of the window, which depends on its number of
events (the sample variance of losses divided by n H^2; Hanley and McNeil 1982 for AUC), and the drift
variance t^2 between windows, which is estimated from the last `_MEMORY` errors by the method of moments
(DerSimonian and Laird 1986). T is the error divided by sqrt((s_i^2 + t^2) · f), where f >= 1 is the mean
of the squared standardized errors of these windows. T has about Student's distribution. Wallace (1959)
converts it to a normal z, with `_FREEDOM` degrees of freedom, fewer than there are errors, because the
tails of real errors are heavier.

**Evidence.** e(z) is the likelihood ratio of a mean that is positive and has the prior |N(0, R^2)|
against the mean 0 (Robbins 1970; Howard, Ramdas, McAuliffe and Sekhon 2021):

    e(z) = 2 / sqrt(1 + R^2) · exp(z^2 R^2 / (2 + 2 R^2)) · Phi(z R / sqrt(1 + R^2))

If nothing changes, E[e | past] <= 1, also for the mean of the e-values of NE and AUC, which may depend on
each other. Then m is an e-detector, and the mean time until m >= c is at least c (Shin, Ramdas and
Rinaldo 2023, "E-detectors"): m never exceeds the Shiryaev-Roberts sum, whose difference from the
number of windows is a martingale. No bound on the number of windows is needed, and no distribution of m.

The change is estimated to begin after the last window with m <= 1. The window before it may contain the
first bad events, so `Closing.good_step` is the end of the window before that one.

A run may return to the good step after a closing. It then calls `QualityGate.returned`, after which each
bad window closes the gate again, until good windows open it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sparring_train.live.windows import WindowResult

__all__ = ["Closing", "GateOptions", "Opening", "QualityGate"]

_WEIGHT = 0.03
_MOST_UPDATE = 4.0
_MEMORY = 50
_FREEDOM = 8
_PRIOR = 2.0
_MOST_ERROR_TO_OPEN = 3.0
_LEAST_OF_EACH_LABEL = 20
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class GateOptions:
    """Options of a gate.

    Args:
        window_seconds: length of a window.
        false_alarms_per_day: maximum mean number of false alarms per day.
        min_events: windows are joined until they have this number of events.
        warm_up_windows: number of windows before the gate can close.
        open_after_windows: number of good windows in a row after which the gate opens.
    """

    window_seconds: float
    false_alarms_per_day: float = 0.01
    min_events: int = 1000
    warm_up_windows: int = 20
    open_after_windows: int = 3

    @property
    def log_limit(self) -> float:
        """Logarithm of c."""
        return math.log(max(_DAY_SECONDS / self.window_seconds / self.false_alarms_per_day, 1.0))


@dataclass(frozen=True, slots=True)
class Closing:
    """The gate closes."""

    reason: str
    begin: float
    """Event time of the begin of the first window that is judged as bad."""
    good_step: int | None
    """Last step before the bad events; None if it is unknown, because the change began too early."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The gate opens again."""

    reason: str


@dataclass(slots=True)
class _Joined:
    """Consecutive windows, joined until they have enough events."""

    begin: float = math.nan
    step: int = 0
    num_events: int = 0
    num_positive: int = 0
    sum_loss: float = 0.0
    sum_squared_loss: float = 0.0
    sum_auc: float = 0.0
    is_binary: bool = True

    def add(self, window: WindowResult) -> None:
        if not self.num_events:
            self.begin = window.begin
        self.step = window.step
        self.num_events += window.num_events
        self.num_positive += window.num_positive
        self.sum_loss += window.sum_loss
        self.sum_squared_loss += window.sum_squared_loss
        self.is_binary = "auc" in window.metrics
        self.sum_auc += window.num_events * window.metrics.get("auc", math.nan)

    def loss(self) -> tuple[float, float]:
        """Returns the normalized entropy, or the mean loss if labels are numbers, and its variance."""
        n = self.num_events
        mean = self.sum_loss / n
        variance = max(self.sum_squared_loss / n - mean * mean, 0.0) / n
        scale = 1.0
        if self.is_binary:
            rate = (self.num_positive + 0.5) / (n + 1)
            scale = -rate * math.log(rate) - (1 - rate) * math.log1p(-rate)
        return mean / scale, max(variance / (scale * scale), 1e-18)

    def auc(self) -> tuple[float, float] | None:
        """Returns -AUC and its variance; None if it is undefined."""
        auc = self.sum_auc / self.num_events
        positive, negative = self.num_positive, self.num_events - self.num_positive
        if not (math.isfinite(auc) and positive and negative):
            return None
        # The formulas of Hanley and McNeil require more than an arbitrary order.
        shape = min(max(auc, 0.5), 1 - 1e-9)
        above, below = shape / (2 - shape), 2 * shape * shape / (1 + shape)
        spread = (
            shape * (1 - shape)
            + (positive - 1) * (above - shape * shape)
            + (negative - 1) * (below - shape * shape)
        )
        return -auc, max(spread, 1e-12) / (positive * negative)


@dataclass(slots=True)
class _Reference:
    """Prediction of one metric, of which a larger value is worse."""

    mean: float = math.nan
    sampling: float = 0.0
    """Sampling variance of `mean`."""
    errors: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_MEMORY))
    """Error, and its sampling variance."""

    def normal_error(self, value: float, variance: float) -> float:
        """Returns z of a value; 0 without earlier errors."""
        if not self.errors:
            return 0.0
        drift, inflation = self._drift(), 0.0
        for error, sampling in self.errors:
            inflation += error * error / (sampling + drift)
        inflation = max(inflation / len(self.errors), 1.0)
        error = value - self.mean
        ratio = error / math.sqrt((variance + self.sampling + drift) * inflation)
        freedom = min(len(self.errors), _FREEDOM)
        size = math.sqrt(freedom * math.log1p(ratio * ratio / freedom))
        return math.copysign(size * (8 * freedom + 1) / (8 * freedom + 3), ratio)

    def _drift(self) -> float:
        """Returns the variance of errors that sampling does not explain. Windows with more events
        determine it more exactly."""
        total = weights = 0.0
        for error, sampling in self.errors:
            total += error * error / sampling - 1
            weights += 1 / sampling
        return max(total / weights, 0.0)

    def add(self, value: float, variance: float) -> None:
        if math.isnan(self.mean):
            self.mean, self.sampling = value, variance
            return
        error, spread = value - self.mean, variance + self.sampling
        if len(self.errors) >= 5:
            limit = _MOST_UPDATE * math.sqrt(spread + self._drift())
            error = min(max(error, -limit), limit)
        self.errors.append((error, spread))
        # The gain of the filter. The first updates are a plain mean.
        known = self.sampling + self._drift()
        weight = max(_WEIGHT, 1 / (len(self.errors) + 1), known / (known + variance))
        self.mean += weight * error
        self.sampling = (1 - weight) ** 2 * known + weight**2 * variance

    def values(self) -> dict[str, Any]:
        return {"mean": self.mean, "sampling": self.sampling, "errors": list(self.errors)}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> _Reference:
        made = cls(values["mean"], values["sampling"])
        made.errors.extend((error, sampling) for error, sampling in values["errors"])
        return made


class QualityGate:
    """Opens and closes by the metrics of windows. Equal windows cause equal decisions.

    Args:
        options: options of the gate.

    Examples:
        >>> from sparring_train.live.gate import GateOptions, QualityGate
        >>> QualityGate(GateOptions(window_seconds=10)).is_closed
        False
    """

    def __init__(self, options: GateOptions) -> None:
        self._options = options
        self._waiting = _Joined()
        self._loss, self._auc = _Reference(), _Reference()
        self._num_windows = 0
        self._rate = 0.5
        # Steps of the ends of the last joined windows before those that are suspicious, the newest last.
        self._good_steps: list[int] = []
        self._suspicious_begin: float | None = None
        self._num_suspicious = 0
        # State of both references before the first suspicious window.
        self._trusted: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._num_good = 0
        self.log_evidence = 0.0
        """Logarithm of m."""
        self.is_closed = False
        self.num_returns = 0
        """Number of returns since the gate was open."""

    @property
    def kept_steps(self) -> tuple[int, ...]:
        """Steps up to which `Closing.good_step` may go back. The model must be kept as of each."""
        return tuple(self._good_steps)

    @property
    def num_windows(self) -> int:
        """Number of joined windows that it has learned from."""
        return self._num_windows

    def returned(self, step: int) -> None:
        """Continues as a closed gate, with the model of the good step, which now counts as `step`."""
        self.is_closed, self._num_good, self.log_evidence = True, 0, 0.0
        self.num_returns += 1
        self._forget_suspicion()
        self._good_steps = [step, step]

    def reopen(self) -> None:
        """Opens the gate on request, with a new reference."""
        self.__init__(self._options)  # type: ignore[misc]

    def add(self, window: WindowResult) -> Closing | Opening | None:
        """Adds a window. Returns the change of the gate, if there is one."""
        self._waiting.add(window)
        joined = self._waiting
        if joined.num_events < self._needed_events():
            return None
        self._waiting = _Joined()
        if math.isfinite(joined.sum_loss):
            return self._judge(joined)
        if self.is_closed and not self._good_steps:
            return None
        return self._close(joined, "the loss is not finite")

    def _needed_events(self) -> float:
        rate = min(self._rate, 1 - self._rate) if self._waiting.is_binary else 1.0
        return max(self._options.min_events, _LEAST_OF_EACH_LABEL / max(rate, 1e-6))

    def _judge(self, joined: _Joined) -> Closing | Opening | None:
        loss, auc = joined.loss(), joined.auc() if joined.is_binary else None
        errors = {("normalized entropy" if joined.is_binary else "loss"): (self._loss, *loss)}
        if auc is not None:
            errors["AUC"] = (self._auc, *auc)
        found = {name: each.normal_error(*value) for name, (each, *value) in errors.items()}
        told = "; ".join(
            f"{name} {abs(value):.4f}, expected {abs(reference.mean):.4f} (z = {found[name]:.1f})"
            for name, (reference, value, _) in errors.items()
        )
        if self.is_closed:
            is_good = max(found.values()) < _MOST_ERROR_TO_OPEN
            self._num_good = self._num_good + 1 if is_good else 0
            if is_good:
                self._learn(joined, loss, auc)
                # Without a return, the model contains the bad events, and no step is a good one.
                if self._good_steps:
                    self._good_steps = [self._good_steps[-1], joined.step]
            elif self._good_steps:
                return self._close(joined, told)
            if self._num_good < self._options.open_after_windows:
                return None
            self.is_closed, self._num_good, self.num_returns = False, 0, 0
            return Opening(f"{self._options.open_after_windows} good windows: {told}")
        if self._num_windows >= self._options.warm_up_windows:
            log_e = _log_mean_exp([_log_e_value(each) for each in found.values()])
            self.log_evidence = max(self.log_evidence, 0.0) + log_e
            if self.log_evidence >= self._options.log_limit:
                return self._close(joined, told)
            if self.log_evidence > 0:
                self._num_suspicious += 1
                if self._suspicious_begin is None:
                    self._suspicious_begin = joined.begin
                    self._trusted = self._loss.values(), self._auc.values()
            else:
                self._forget_suspicion()
        self._learn(joined, loss, auc)
        self._good_steps.append(joined.step)
        self._good_steps = self._good_steps[-(self._num_suspicious + 2) :]
        return None

    def _forget_suspicion(self) -> None:
        self._suspicious_begin, self._num_suspicious, self._trusted = None, 0, None

    def _learn(
        self, joined: _Joined, loss: tuple[float, float], auc: tuple[float, float] | None
    ) -> None:
        self._loss.add(*loss)
        if auc is not None:
            self._auc.add(*auc)
        rate = (joined.num_positive + 0.5) / (joined.num_events + 1)
        self._rate = rate if not self._num_windows else self._rate + _WEIGHT * (rate - self._rate)
        self._num_windows += 1

    def _close(self, joined: _Joined, told: str) -> Closing:
        # The last ones of the steps end suspicious windows. The one before those may contain the first
        # bad events.
        good = self._good_steps[: len(self._good_steps) - self._num_suspicious]
        begin = joined.begin if self._suspicious_begin is None else self._suspicious_begin
        if self._trusted is not None:
            self._loss, self._auc = map(_Reference.of, self._trusted)
        self.is_closed, self._num_good, self.log_evidence = True, 0, 0.0
        self._good_steps = []
        count = self._num_suspicious + 1
        self._forget_suspicion()
        return Closing(
            f"{count} bad window{'s' * (count > 1)} of {self._options.window_seconds:g} s: {told}",
            begin,
            good[-2] if len(good) >= 2 else None,
        )

    def values(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        return {
            "waiting": asdict(self._waiting),
            "loss": self._loss.values(),
            "auc": self._auc.values(),
            "num_windows": self._num_windows,
            "rate": self._rate,
            "good_steps": self._good_steps,
            "suspicious_begin": self._suspicious_begin,
            "num_suspicious": self._num_suspicious,
            "trusted": self._trusted,
            "num_good": self._num_good,
            "log_evidence": self.log_evidence,
            "is_closed": self.is_closed,
            "num_returns": self.num_returns,
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Continues with the result of `values`."""
        self._waiting = _Joined(**values["waiting"])
        self._loss, self._auc = _Reference.of(values["loss"]), _Reference.of(values["auc"])
        self._num_windows, self._rate = values["num_windows"], values["rate"]
        self._good_steps = list(values["good_steps"])
        self._suspicious_begin = values["suspicious_begin"]
        self._num_suspicious, self._num_good = values["num_suspicious"], values["num_good"]
        trusted = values.get("trusted")  # Earlier versions did not keep it.
        self._trusted = None if trusted is None else (trusted[0], trusted[1])
        self.log_evidence, self.is_closed = values["log_evidence"], values["is_closed"]
        self.num_returns = values.get("num_returns", 0)  # Earlier versions did not count them.


def _log_e_value(z: float) -> float:
    """Returns log e(z)."""
    scaled = max(z, -8.0) * _PRIOR / math.sqrt(1 + _PRIOR * _PRIOR)
    below = math.erfc(-scaled / math.sqrt(2)) / 2
    return math.log(2 / math.sqrt(1 + _PRIOR * _PRIOR)) + scaled * scaled / 2 + math.log(below)


def _log_mean_exp(logs: list[float]) -> float:
    most = max(logs)
    return most + math.log(sum(math.exp(each - most) for each in logs) / len(logs))
