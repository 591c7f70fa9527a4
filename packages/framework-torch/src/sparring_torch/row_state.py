"""What a native optimizer keeps for each row of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

__all__ = ["RowState"]


@dataclass(frozen=True, slots=True)
class RowState:
    """What an optimizer keeps for a table."""

    names: tuple[str, ...]
    """Row state, in the order of the columns behind the embedding, `dim` elements each."""
    initial: tuple[float, ...]
    """What each row state of a new key is filled with."""
    scalars: Mapping[str, Any]
    """What it keeps for the table as a whole, as it is before the first step; what is not
    listed, the optimizer makes in its first step."""
    takes_blocks: bool = True
    """Whether a step may go over the rows in blocks, each begun with the scalars of before."""

    def initial_row(self, dim: int) -> list[float]:
        """The state of a new key: `dim` numbers for each of `names`."""
        return [value for value in self.initial for _ in range(dim)]

    def fresh_scalars(self) -> dict[str, Any]:
        """The scalars of a table before its first step; tensors are copies."""
        return {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in self.scalars.items()
        }
