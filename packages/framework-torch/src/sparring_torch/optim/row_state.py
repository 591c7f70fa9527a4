"""State of a native optimizer for each row of a table."""

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
    """Row state, in the order of the columns behind the embedding, `dim` elements each."""
    initial: tuple[float, ...]
    """Fill value of each row state of a new key."""
    scalars: Mapping[str, Any]
    """State of the table as a whole, as it is before the first step; the optimizer makes what is
    not listed in its first step."""
    takes_blocks: bool = True
    """Whether a step may go over the rows in blocks, each begun with the scalars of before."""
    why_coupled: str = ""
    """Why columns of a row cannot be stepped apart; empty: they can."""

    def initial_row(self, dim: int) -> list[float]:
        """The state of a new key: `dim` numbers for each of `names`."""
        return [value for value in self.initial for _ in range(dim)]

    def fresh_scalars(self) -> dict[str, Any]:
        """The scalars of a table before its first step; tensors are copies."""
        return {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in self.scalars.items()
        }
