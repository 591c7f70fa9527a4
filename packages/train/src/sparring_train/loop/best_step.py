"""`BestStep`: which step has been the best on the validation rows, and whether training goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["BestStep"]


@dataclass(slots=True)
class BestStep:
    """Evaluations of a run on its validation rows, as far as decisions need them.

    All ranks are given the same metrics and take the same decisions. `values` of a snapshot let a
    resumed run take those that the run would have taken.

    Args:
        metric: name of the metric that is compared.
        patience: evaluations in a row without an improvement after which training stops; None: any
            number.
        min_improvement: least change that is an improvement.
    """

    metric: str
    patience: int | None = None
    min_improvement: float = 0.0
    step: int | None = None
    """The best step; None before the first evaluation that determines the metric."""
    value: float = math.nan
    """Of the metric after that step."""
    num_since: int = 0
    """Evaluations since then."""

    def note(self, step: int, value: float, *, is_higher_better: bool) -> bool:
        """Takes the value after a step; returns whether it is the best so far.

        A value that is not a number is no improvement.
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
        """Whether patience has run out."""
        return self.patience is not None and self.num_since >= self.patience

    def values(self) -> dict[str, Any]:
        """State, for a snapshot."""
        value = None if self.step is None else self.value
        return {
            "metric": self.metric,
            "step": self.step,
            "value": value,
            "num_since": self.num_since,
        }

    def restore(self, values: Mapping[str, Any]) -> bool:
        """Takes over what `values` returned; returns False if it is of another metric."""
        if values.get("metric") != self.metric:
            return False
        self.step, self.num_since = values["step"], values["num_since"]
        self.value = math.nan if values["value"] is None else values["value"]
        return True
