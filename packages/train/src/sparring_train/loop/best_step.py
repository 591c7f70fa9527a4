"""`BestStep`: finds the best step on the validation rows, and decides when to stop early."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["BestStep"]


@dataclass(slots=True)
class BestStep:
    """Results of a run on its validation rows.

    All ranks pass the same metrics and make the same decisions. A snapshot contains `values`, so that a
    resumed run makes the same decisions as the original one.

    Args:
        metric: name of the metric to compare.
        patience: number of consecutive evaluations without an improvement after which training stops;
            None sets no limit.
        min_improvement: minimum change that is an improvement.
    """

    metric: str
    patience: int | None = None
    min_improvement: float = 0.0
    step: int | None = None
    """The best step; None before the first evaluation in which the metric is defined."""
    value: float = math.nan
    """Value of the metric at that step."""
    num_since: int = 0
    """Number of evaluations since that step."""

    def note(self, step: int, value: float, *, is_higher_better: bool) -> bool:
        """Records the value at a step; returns whether it is better than all earlier ones.

        NaN is not an improvement.
        """
        change = value - self.value if is_higher_better else self.value - value
        is_first = self.step is None and not math.isnan(value)
        if is_first or change > self.min_improvement:
            self.step, self.value, self.num_since = step, value, 0
            return True
        self.num_since += 1
        return False

    @property
    def is_over(self) -> bool:
        """Whether training should stop because of `patience`."""
        return self.patience is not None and self.num_since >= self.patience

    def values(self) -> dict[str, Any]:
        """Returns the state for a snapshot."""
        value = None if self.step is None else self.value
        return {
            "metric": self.metric,
            "step": self.step,
            "value": value,
            "num_since": self.num_since,
        }

    def restore(self, values: Mapping[str, Any]) -> bool:
        """Loads the result of `values`; returns False if it belongs to another metric."""
        if values.get("metric") != self.metric:
            return False
        self.step, self.num_since = values["step"], values["num_since"]
        self.value = math.nan if values["value"] is None else values["value"]
        return True
