"""Limits for the metrics of a model, below which `sparring publish` publishes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sparring.errors import InvalidArgumentError
from sparring_serve.hookspecs import MetricValue

__all__ = ["QualityLimits", "parse_minimums"]


@dataclass(frozen=True, slots=True)
class QualityLimits:
    """Limits for a version.

    Args:
        minimums: Metric → its minimum.
        max_drop: How much worse the first metric may be than that of the served version. None: any.
        max_loss: How much quantization may cost. None: any.

    Raises:
        InvalidArgumentError: A number is not finite, or `max_drop` is negative.
    """

    minimums: Mapping[str, float] = field(default_factory=dict)
    max_drop: float | None = None
    max_loss: float | None = None

    def __post_init__(self) -> None:
        if self.max_loss is not None and not math.isfinite(self.max_loss):
            raise InvalidArgumentError(
                f"publish: --max-metric-loss must be a finite number, found {self.max_loss}"
            )
        if self.max_drop is not None and not 0 <= self.max_drop < math.inf:
            raise InvalidArgumentError(
                "publish: --not-worse-than-served must be a finite number of at least 0, found "
                f"{self.max_drop}"
            )

    def find_low_metric(self, found: MetricValue) -> str:
        """Returns which metric is below its minimum; empty if none is.

        Raises:
            InvalidArgumentError: A metric does not exist, or lower values of it are better.
        """
        values = {each.metric: each for each in (found, *found.others)}
        for name, least in self.minimums.items():
            value = values.get(name)
            if value is None or not value.is_higher_better:
                known = [each.metric for each in values.values() if each.is_higher_better]
                use = f"use one of {', '.join(known)}" if known else "use --not-worse-than-served"
                why = (
                    "of which lower values are better" if value else "which the model does not have"
                )
                raise InvalidArgumentError(f"publish: --min {name}={least:g}: {name}, {why}; {use}")
            if not value.value >= least:
                return f"{name} is {value.value:.6f}, below --min {name}={least:g}"
        return ""


def parse_minimums(given: Sequence[str]) -> dict[str, float]:
    """Returns metric → minimum.

    Args:
        given: For example ``auc=0.68``.

    Raises:
        InvalidArgumentError: An entry has another form, or a metric occurs twice.
    """
    found: dict[str, float] = {}
    for each in given:
        name, _, text = each.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not name or name in found or not math.isfinite(value):
            raise InvalidArgumentError(
                f"publish: --min {each}: must be METRIC=NUMBER, such as auc=0.68, each metric at most "
                "once"
            )
        found[name] = value
    return found
