"""The parameter that a native optimizer sees in place of a table."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparring_torch.row_state import RowState

__all__ = ["ShadowParameter"]


class ShadowParameter:
    """One parameter whose data, gradient and state are exchanged in each step.

    The rows of a step, ``(u, width)``, lie before the native optimizer as strided views::

        row    embedding        state 0          state 1
               0 … dim          dim … 2·dim      2·dim … 3·dim
               parameter.data   state["exp_avg"] state["exp_avg_sq"]

    so that it updates them in place. Scalars of the table, as `step`, stay with the parameter.
    Between steps it holds no rows.

    Args:
        dim: elements of an embedding.
        dtype: of the table.
        layout: what the optimizer keeps for each row.
    """

    __slots__ = ("_dim", "_empty", "_layout", "_rows", "_state", "parameter")

    def __init__(self, dim: int, dtype: torch.dtype, layout: RowState) -> None:
        self._dim = dim
        self._layout = layout
        self._empty = torch.empty(0, dim, dtype=dtype)
        self._rows: tuple[Tensor, ...] = ()
        self._state: MutableMapping[str, Any] = {}
        self.parameter = nn.Parameter(torch.empty(0, dim, dtype=dtype))

    def adopt(self, state: MutableMapping[Any, Any]) -> None:
        """Makes a fresh state for the parameter in an optimizer's `state`."""
        self._state = self._layout.fresh_scalars()
        state[self.parameter] = self._state

    def load(self, rows: npt.NDArray[Any], gradients: npt.NDArray[Any]) -> None:
        """Lays rows ``(u, width)`` and gradients ``(u, dim)`` before the optimizer."""
        names = self._layout.names
        whole = torch.from_numpy(rows)
        parts = torch.split(whole, self._dim, dim=1) if names else (whole,)
        self._rows = parts
        self.parameter.data = parts[0]
        self.parameter.grad = torch.from_numpy(gradients)
        for place, name in enumerate(names, 1):
            self._state[name] = parts[place]

    def store(self) -> None:
        """Brings back into the rows what the optimizer put elsewhere instead of updating it."""
        parts = self._rows
        if self.parameter.data_ptr() != parts[0].data_ptr():
            parts[0].copy_(self.parameter.data)
        for place, name in enumerate(self._layout.names, 1):
            now = self._state[name]
            if now is not parts[place]:
                parts[place].copy_(now)

    def unload(self) -> None:
        """Lets go of the rows."""
        self.parameter.grad = None
        self.parameter.data = self._empty
        self._rows = ()
        for name in self._layout.names:
            self._state.pop(name, None)

    def scalars(self) -> dict[str, Any]:
        """What the optimizer keeps for the table as a whole; tensors are copies."""
        return {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in self._state.items()
        }

    def set_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Takes over what `scalars` gave, in the types that the optimizer uses."""
        for name, value in scalars.items():
            now = self._state.get(name)
            if isinstance(now, Tensor):
                self._state[name] = torch.as_tensor(value, dtype=now.dtype).clone()
            else:
                self._state[name] = value.clone() if isinstance(value, Tensor) else value
