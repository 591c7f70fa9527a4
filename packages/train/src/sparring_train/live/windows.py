"""`Windows`: metrics of predictions over windows of event time.

    events of steps, by time:   ··· │ · ··· · │ ·· · ···
                                    k         k+1        windows [k · seconds, (k + 1) · seconds)
                            closed ─┘         └─ open: contains the newest event

An event belongs to the window of its time, or to the open one if its own is closed, so that each event
is counted once. When an event of a later window arrives, the earlier ones are closed.

AUC is computed from histograms of logits with `BINS` bins of equal width from -16 to 16. Pairs in one
bin count half, so it differs from the exact AUC by at most half of the share of such pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import State
from sparring_train.columns import Label
from sparring_train.run.ranks import Ranks

__all__ = ["BINS", "Dimension", "SliceResult", "WindowResult", "Windows"]

BINS = 2048
_MAX_LOGIT = 16.0

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Dimension:
    """A property that divides the events of a window into slices."""

    name: str
    values: tuple[str, ...]
    """Names of the slices. An event that belongs to none has the code -1."""


@dataclass(frozen=True, slots=True)
class SliceResult:
    """Metrics of the events of a window that belong to one slice."""

    dimension: str
    value: str
    num_events: int
    metrics: Mapping[str, float]
    """As `WindowResult.metrics`."""


@dataclass(frozen=True, slots=True)
class WindowResult:
    """Metrics of the predictions for the events of a window, each made before the event was trained."""

    begin: float
    """Event time in seconds since 1970."""
    end: float
    step: int
    """Step after which the window was closed."""
    num_events: int
    """At least 1, over all ranks."""
    num_positive: int
    """Number of events with the label 1; 0 if labels are numbers."""
    sum_loss: float
    """Sum of the log losses in nats, or of the squared errors if labels are numbers. NaN or infinite if
    the model is broken."""
    sum_squared_loss: float
    """Sum of the squares of these losses."""
    metrics: Mapping[str, float]
    """``auc``, ``log_loss``, ``normalized_entropy`` and ``calibration``; ``rmse`` if labels are numbers.
    NaN if the events do not determine a metric."""
    slices: Sequence[SliceResult] = ()
    """Slices that have events."""


class _Sums:
    """Sums over the events of a window, for each of `size` slices."""

    def __init__(self, size: int, *, has_counts: bool) -> None:
        # Events, positive labels, predictions, losses, squared losses.
        self.sums = np.zeros((5, size))
        # Events by slice, label and bin of the logit.
        self.counts = np.zeros((size, 2, BINS) if has_counts else (0, 2, BINS), np.int64)

    def add(self, at: Ints | None, values: Sequence[Floats], bins: Ints | None) -> None:
        """Adds events.

        Args:
            at: ``(n,)``, their slices; None: there is one slice.
            values: the summands of `sums`, except the first one, ``(n,)`` each.
            bins: ``(n,)``, label · `BINS` + bin of the logit, if there are counts.
        """
        size = self.sums.shape[1]
        if at is None:
            self.sums[:, 0] += [len(values[0]), *(each.sum() for each in values)]
        else:
            self.sums[0] += np.bincount(at, minlength=size)
            for number, each in enumerate(values, 1):
                self.sums[number] += np.bincount(at, each, size)
        if bins is not None:
            flat = bins if at is None else at * (2 * BINS) + bins
            np.add.at(self.counts.reshape(-1), flat, 1)

    def metrics(self, at: int) -> dict[str, float]:
        """Returns the metrics of a slice."""
        num_events, positive, predicted, loss, _ = self.sums[:, at].tolist()
        if not len(self.counts):
            return {"rmse": math.sqrt(loss / num_events)}
        rate = positive / num_events
        entropy = -sum(each * math.log(each) for each in (rate, 1 - rate) if each > 0)
        log_loss = loss / num_events
        return {
            "auc": _auc(self.counts[at]) if math.isfinite(loss) else math.nan,
            "log_loss": log_loss,
            "normalized_entropy": log_loss / entropy if entropy > 0 else math.nan,
            "calibration": predicted / positive if positive else math.nan,
        }


def _auc(counts: Ints) -> float:
    """Returns the AUC of events by label and bin; NaN if all labels are equal."""
    negative, positive = counts.astype(np.float64)
    pairs = negative.sum() * positive.sum()
    if not pairs:
        return math.nan
    below = np.cumsum(negative) - negative / 2
    return float(below @ positive / pairs)


class Windows:
    """Measures predictions over windows. All ranks create one and make the same calls.

    Args:
        seconds: length of a window.
        label: kind of labels.
        ranks: ranks of the run.
        dimensions: slices to measure.
    """

    def __init__(
        self, seconds: float, label: Label, ranks: Ranks, dimensions: Sequence[Dimension] = ()
    ) -> None:
        self._seconds, self._ranks = seconds, ranks
        self._dimensions = (Dimension("", ("",)), *dimensions)
        self._is_binary = label == "binary"
        # Number of a window → sums of this rank, for each dimension.
        self._sums: dict[int, list[_Sums]] = {}
        self._open: int | None = None

    def add(
        self,
        outputs: npt.NDArray[Any],
        labels: npt.NDArray[Any],
        times: Floats,
        codes: Sequence[Ints] = (),
    ) -> None:
        """Adds this rank's events of a step.

        Args:
            outputs: ``(b,)``, logits, or predicted numbers.
            labels: ``(b,)``, 0 or 1, or numbers.
            times: ``(b,)``, times of the events in seconds since 1970.
            codes: for each dimension ``(b,)``, the slice of each event, or -1.
        """
        if not len(times):
            return
        values, bins = self._summands(outputs.astype(np.float64), labels.astype(np.float64))
        window = np.floor_divide(times, self._seconds).astype(np.int64)
        if self._open is not None:
            window = np.maximum(window, self._open)
        first = int(window[0])
        if (window == first).all():
            self._add(first, values, bins, codes)
            return
        for number in np.unique(window).tolist():
            is_in = window == number
            chosen = None if bins is None else bins[is_in]
            self._add(
                number, [each[is_in] for each in values], chosen, [each[is_in] for each in codes]
            )

    def _summands(self, outputs: Floats, labels: Floats) -> tuple[list[Floats], Ints | None]:
        if not self._is_binary:
            loss = np.square(outputs - labels)
            return [np.zeros(len(labels)), outputs, loss, np.square(loss)], None
        small = np.exp(-np.abs(outputs))
        probability = np.where(outputs >= 0, 1.0, small) / (1 + small)
        loss = np.maximum(outputs, 0) - outputs * labels + np.log1p(small)
        known = np.nan_to_num(outputs).clip(-_MAX_LOGIT, _MAX_LOGIT)
        place = ((known + _MAX_LOGIT) * (BINS / (2 * _MAX_LOGIT))).astype(np.int64)
        bins = np.minimum(place, BINS - 1) + labels.astype(np.int64) * BINS
        return [labels, probability, loss, np.square(loss)], bins

    def _add(
        self, number: int, values: Sequence[Floats], bins: Ints | None, codes: Sequence[Ints]
    ) -> None:
        sums = self._sums.get(number)
        if sums is None:
            sums = self._sums[number] = self._empty()
        sums[0].add(None, values, bins)
        for each, at in zip(sums[1:], codes, strict=True):
            is_known = at >= 0
            if not is_known.all():
                chosen = None if bins is None else bins[is_known]
                each.add(at[is_known], [value[is_known] for value in values], chosen)
            else:
                each.add(at, values, bins)

    def _empty(self) -> list[_Sums]:
        return [_Sums(len(each.values), has_counts=self._is_binary) for each in self._dimensions]

    def close_until(self, newest: float, step: int) -> list[WindowResult]:
        """Closes the windows before the one that contains the time `newest`, and returns those that
        have events, in order. All ranks call it.

        Args:
            newest: time of the newest event of the step, the same on all ranks.
            step: the step.
        """
        number = math.floor(newest / self._seconds)
        if self._open is not None and number <= self._open:
            return []
        self._open = number
        return [
            self._result(each, self._total(self._sums.pop(each, None)), step)
            for each in self._agreed_numbers()
            if each < number
        ]

    def _agreed_numbers(self) -> list[int]:
        """Returns the numbers of the windows that have events on any rank."""
        own = np.array(sorted(self._sums), np.int64)
        found: list[int] = np.unique(self._ranks.gathered(own)).tolist()
        return found

    def _total(self, own: list[_Sums] | None) -> list[_Sums]:
        """Returns the sums over all ranks, in new arrays."""
        total = self._empty()
        for into, each in zip(total, own or self._empty(), strict=True):
            into.sums[:] = self._ranks.sum(each.sums.reshape(-1)).reshape(into.sums.shape)
            into.counts[:] = self._ranks.sum(each.counts.reshape(-1)).reshape(into.counts.shape)
        return total

    def _result(self, number: int, total: Sequence[_Sums], step: int) -> WindowResult:
        num_events, positive, _, loss, squared = total[0].sums[:, 0].tolist()
        slices = [
            SliceResult(dimension.name, value, int(sums.sums[0, at]), sums.metrics(at))
            for dimension, sums in zip(self._dimensions[1:], total[1:], strict=True)
            for at, value in enumerate(dimension.values)
            if sums.sums[0, at]
        ]
        return WindowResult(
            begin=number * self._seconds,
            end=(number + 1) * self._seconds,
            step=step,
            num_events=int(num_events),
            num_positive=int(positive),
            sum_loss=loss,
            sum_squared_loss=squared,
            metrics=total[0].metrics(0),
            slices=slices,
        )

    def unfinished(self, step: int) -> WindowResult | None:
        """Returns the result of the open window up to this step, if it has events. All ranks call it."""
        for number in self._agreed_numbers():
            return self._result(number, self._total(self._sums.get(number)), step)
        return None

    def state(self) -> State:
        """Returns the open window, over all ranks, for a snapshot. All ranks call it."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        numbers = self._agreed_numbers()
        for number in numbers:
            for at, each in enumerate(self._total(self._sums.get(number))):
                arrays |= {f"sums_{number}_{at}": each.sums, f"counts_{number}_{at}": each.counts}
        described = [[each.name, list(each.values)] for each in self._dimensions]
        values = {"seconds": self._seconds, "open": self._open, "numbers": numbers}
        return State({**values, "dimensions": described, "is_binary": self._is_binary}, arrays)

    def restore(self, state: State) -> bool:
        """Continues with the result of `state`. Returns False if it has other windows or slices."""
        mine = self.state().values
        names = ("seconds", "dimensions", "is_binary")
        if any(state.values.get(name) != mine[name] for name in names):
            return False
        self._open = state.values["open"]
        self._sums.clear()
        if not self._ranks.is_first:
            return True
        for number in state.values["numbers"]:
            self._sums[number] = self._empty()
            for at, each in enumerate(self._sums[number]):
                each.sums = state.arrays[f"sums_{number}_{at}"].copy()
                each.counts = state.arrays[f"counts_{number}_{at}"].copy()
        return True
