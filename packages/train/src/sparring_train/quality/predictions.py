"""Metrics of predictions. A metric that the samples do not determine is NaN.

They are computed here and not by scikit-learn, which is larger than all other requirements of training
together, requires all samples at once, and sums float32 in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sparring.errors import ConfigError, InvalidArgumentError
from sparring_train.named_classes import find_class_name

__all__ = [
    "BinaryMetrics",
    "CollectedPredictions",
    "CombinedMetrics",
    "LOWER_IS_BETTER",
    "MeanLogLoss",
    "RegressionMetrics",
    "Quality",
    "RootMeanSquareError",
    "auc",
    "log_loss",
    "rmse",
]


LOWER_IS_BETTER = frozenset({"log_loss", "rmse"})
"""Metrics of this package for which lower values are better."""


def auc(scores: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Computes the area under the ROC curve: the probability that a 1 outranks a 0.

    Pairs of equal scores count half.

    Args:
        scores: ``(n,)``, larger if a 1 is more likely: probabilities or logits.
        labels: ``(n,)``, 0 or 1.

    Returns:
        From 0 to 1; NaN if all labels are equal, there are no samples, or a score is NaN.

    Raises:
        InvalidArgumentError: shapes differ, or a label is neither 0 nor 1.
    """
    score, label = _columns(scores, labels)
    is_one = _check_labels(label)
    if is_one.all() or not is_one.any() or np.isnan(score).any():
        return math.nan
    # The statistic of Mann and Whitney, from the sum of the ranks of ones. Equal scores share the mean of
    # their ranks. Twice the ranks are integers, so the sum is exact.
    order = np.argsort(score)
    ranked = score[order]
    starts = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))
    ends = np.append(starts[1:], len(ranked))
    ones = np.add.reduceat(is_one[order].astype(np.int64), starts)
    num_ones = int(ones.sum())
    twice = int((ones * (starts + ends - 1)).sum()) - num_ones * (num_ones - 1)
    return twice / (2 * num_ones * (len(ranked) - num_ones))


def log_loss(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Computes the mean of ``-log(p)`` for labels of 1 and ``-log(1 - p)`` for labels of 0, in nats.

    Probabilities are clipped to [eps, 1 - eps], with the machine epsilon of their dtype, so that a
    rounded sigmoid does not give infinity.

    Returns:
        At least 0; NaN if there are no samples or a probability is NaN.

    Raises:
        InvalidArgumentError: shapes differ, a label is neither 0 nor 1, or a probability is
            outside [0, 1].
    """
    loss = MeanLogLoss()
    loss.update(probabilities, labels)
    return loss.value


def rmse(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> float:
    """Computes the root of the mean squared difference; NaN if there are no samples.

    Raises:
        InvalidArgumentError: shapes differ.
    """
    error = RootMeanSquareError()
    error.update(predictions, targets)
    return error.value


class MeanLogLoss:
    """Computes `log_loss` batch by batch, in constant memory."""

    def __init__(self) -> None:
        self.num_samples = 0
        self._total = 0.0

    def update(self, probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> None:
        """Adds a batch. Raises like `log_loss`; the batch is then not added."""
        probability, label = _columns(probabilities, labels)
        is_one = _check_labels(label)
        is_outside = (probability < 0) | (probability > 1)
        if is_outside.any():
            raise InvalidArgumentError(
                f"probabilities: found {probability[is_outside][0]}, expected numbers from 0 to 1; pass "
                "sigmoid(logits) if these are logits"
            )
        kind = probability.dtype if probability.dtype.kind == "f" else np.dtype(np.float64)
        epsilon = float(np.finfo(kind).eps)
        exact = np.clip(probability.astype(np.float64), epsilon, 1 - epsilon)
        self._total -= float(np.log(np.where(is_one, exact, 1 - exact)).sum())
        self.num_samples += len(label)

    @property
    def value(self) -> float:
        return self._total / self.num_samples if self.num_samples else math.nan


class RootMeanSquareError:
    """Computes `rmse` batch by batch, in constant memory."""

    def __init__(self) -> None:
        self.num_samples = 0
        self._total = 0.0

    def update(self, predictions: npt.ArrayLike, targets: npt.ArrayLike) -> None:
        """Adds a batch. Raises like `rmse`; the batch is then not added."""
        prediction, target = _columns(predictions, targets)
        difference = prediction.astype(np.float64) - target.astype(np.float64)
        self._total += float(np.dot(difference, difference))
        self.num_samples += len(target)

    @property
    def value(self) -> float:
        return math.sqrt(self._total / self.num_samples) if self.num_samples else math.nan


class CollectedPredictions:
    """Keeps all scores and labels, which the exact AUC requires: about 5 bytes per sample.

    The dtype of scores is not changed.
    """

    def __init__(self) -> None:
        self._scores: list[npt.NDArray[np.floating]] = []
        self._labels: list[npt.NDArray[np.bool_]] = []

    def update(self, scores: npt.ArrayLike, labels: npt.ArrayLike) -> None:
        """Adds a batch. Raises like `auc`; the batch is then not added."""
        score, label = _columns(scores, labels)
        is_one = _check_labels(label)
        self._scores.append(score.copy())
        self._labels.append(is_one)

    @property
    def num_samples(self) -> int:
        return sum(map(len, self._labels))

    @property
    def num_ones(self) -> int:
        """Number of samples with the label 1."""
        return sum(int(np.count_nonzero(each)) for each in self._labels)

    def auc(self) -> float:
        """See `sparring_train.quality.predictions.auc`."""
        if not self._scores:
            return math.nan
        return auc(np.concatenate(self._scores), np.concatenate(self._labels))


class Quality(Protocol):
    """Metrics that are updated batch by batch."""

    def update(self, predictions: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None:
        """Adds a batch; both arrays are ``(b,)``."""

    def metrics(self) -> dict[str, float]:
        """Returns name → value over all samples."""

    def explain_undefined(self, part: str) -> str | None:
        """Returns the reason if a metric is NaN because the samples do not determine it.

        Args:
            part: name of the samples' part of the data, for the message.
        """


class BinaryMetrics:
    """AUC and log loss of probabilities. See `CollectedPredictions` for the memory needed."""

    def __init__(self) -> None:
        self._collected, self._mean_log_loss = CollectedPredictions(), MeanLogLoss()

    def update(self, predictions: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None:
        """Adds a batch."""
        self._collected.update(predictions, labels)
        self._mean_log_loss.update(predictions, labels)

    def metrics(self) -> dict[str, float]:
        """Returns ``auc`` and ``log_loss``."""
        return {"auc": self._collected.auc(), "log_loss": self._mean_log_loss.value}

    def explain_undefined(self, part: str) -> str | None:
        """See `Quality.explain_undefined`."""
        num_samples, num_ones = self._collected.num_samples, self._collected.num_ones
        if not num_samples:
            return f"there is no {part} row"
        if num_ones in (0, num_samples):
            return f"all {num_samples:,} {part} rows have the label {int(num_ones > 0)}"
        return None


class CombinedMetrics:
    """Combines several metrics.

    Args:
        parts: the metrics, beginning with those of the model. Their names must be distinct.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        self._lower: set[str] = set()

    def update(self, predictions: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None:
        """Adds a batch."""
        for part in self._parts:
            part.update(predictions, labels)

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of all parts.

        Raises:
            ConfigError: two parts have a metric of the same name, or a value is not a number.
        """
        found: dict[str, float] = {}
        for part in self._parts:
            name = find_class_name(type(part))
            given = part.metrics()
            twice = sorted(set(found) & set(given))
            if twice:
                raise ConfigError(
                    f"training.metrics: {name} returns the metric {twice[0]!r}, which already exists; "
                    "rename it",
                    setting="training.metrics",
                )
            try:
                found |= {str(key): float(value) for key, value in given.items()}
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"training.metrics: {name}.metrics() returned {given!r}, expected numbers by name: "
                    f"{error}; fix the method",
                    setting="training.metrics",
                ) from error
            if not getattr(part, "higher_is_better", True):
                self._lower.update(given)
        return found

    def explain_undefined(self, part: str) -> str | None:
        """See `Quality.explain_undefined`."""
        why: str | None = self._parts[0].explain_undefined(part)
        return why

    @property
    def lower_is_better(self) -> frozenset[str]:
        """Names of metrics for which lower values are better; known after `metrics` was called."""
        return LOWER_IS_BETTER | self._lower


class RegressionMetrics:
    """Root mean squared error of numbers."""

    def __init__(self) -> None:
        self._error = RootMeanSquareError()

    def update(self, predictions: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None:
        """Adds a batch."""
        self._error.update(predictions, labels)

    def metrics(self) -> dict[str, float]:
        """Returns ``rmse``."""
        return {"rmse": self._error.value}

    def explain_undefined(self, part: str) -> str | None:
        """See `Quality.explain_undefined`."""
        return None if self._error.num_samples else f"there is no {part} row"


def _columns(
    first: npt.ArrayLike, second: npt.ArrayLike
) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]:
    one, two = np.asarray(first), np.asarray(second)
    if one.ndim != 1 or one.shape != two.shape:
        raise InvalidArgumentError(
            f"predictions and labels: found the shapes {one.shape} and {two.shape}, expected (n,) for "
            "both; pass one prediction per label"
        )
    return one, two


def _check_labels(labels: npt.NDArray[np.floating]) -> npt.NDArray[np.bool_]:
    is_one: npt.NDArray[np.bool_] = labels == 1
    is_wrong = ~(is_one | (labels == 0))
    if is_wrong.any():
        at = int(np.argmax(is_wrong))
        raise InvalidArgumentError(
            f"labels: found {labels[at]} at {at}, expected 0 or 1; convert the labels"
        )
    return is_one
