"""State of a native optimizer per row of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

__all__ = ["RowState"]


@dataclass(frozen=True, slots=True)
class RowState:
    """State of an optimizer for a table."""

    names: tuple[str, ...]
    """Row state, in the order of the columns after the embedding, with `dim` elements each."""
    initial: tuple[float, ...]
    """Initial value of each row state."""
    scalars: Mapping[str, Any]
    """State of the table before its first step; the optimizer creates other scalars in its first
    step."""
    takes_blocks: bool = True
    """Whether a step may process the rows in blocks that start with the same scalars."""
    why_coupled: str = ""
    """Why columns of a row cannot be updated separately; empty if they can."""

    def initial_row(self, dim: int) -> list[float]:
        """Returns the state of a new key: `dim` numbers for each of `names`."""
        return [value for value in self.initial for _ in range(dim)]

    def fresh_scalars(self) -> dict[str, Any]:
        """Returns the scalars of a table before its first step; tensors are copied."""
        return {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in self.scalars.items()
        }
