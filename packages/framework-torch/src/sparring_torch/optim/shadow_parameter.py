"""The parameter that represents a table for a native optimizer."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sparring.errors import InvalidArgumentError
from sparring_torch.lookup.row_gradients import reject_hook
from sparring_torch.optim.row_state import RowState

__all__ = ["ShadowParameter"]


class ShadowParameter:
    """One parameter whose data, gradient and state are exchanged in each step.

    The optimizer sees the rows of a step, ``(u, width)``, as strided views::

        row    embedding        state 0          state 1
               0 … dim          dim … 2·dim      2·dim … 3·dim
               parameter.data   state["exp_avg"] state["exp_avg_sq"]

    and updates them in place, all at once or in blocks of rows. Scalars of the table, for example
    `step`, stay with the parameter. Each block of a step starts from the scalars before the step.
    Between steps the parameter contains no rows.

    Args:
        dim: number of elements of an embedding.
        dtype: dtype of the table.
        layout: row state of the optimizer.
        device: device of the table's rows.
    """

    __slots__ = (
        "_before",
        "_dim",
        "_empty",
        "_gradients",
        "_layout",
        "_rows",
        "_shown",
        "_state",
        "is_on_device",
        "num_rows",
        "parameter",
        "row_bytes",
    )

    def __init__(
        self,
        dim: int,
        dtype: torch.dtype,
        layout: RowState,
        device: torch.device | None = None,
    ) -> None:
        self._dim = dim
        self._layout = layout
        # Explicit, because torch's default device may differ.
        device = device or torch.device("cpu")
        self._empty = torch.empty(0, dim, dtype=dtype, device=device)
        self._rows = self._gradients = self._empty
        self.num_rows = 0
        """Number of rows in this step."""
        self.row_bytes = 0
        """Size of a row with its gradient."""
        self.is_on_device = False
        """Whether the rows of this step are on a GPU, where blocks would only add kernel
        launches."""
        self._shown: tuple[Tensor, ...] = ()
        self._before: dict[str, Any] = {}
        self._state: MutableMapping[str, Any] = {}
        self.parameter = nn.Parameter(torch.empty(0, dim, dtype=dtype, device=device))
        for name in ("register_hook", "register_post_accumulate_grad_hook"):
            setattr(self.parameter, name, partial(reject_hook, name))

    def adopt(self, state: MutableMapping[Any, Any]) -> None:
        """Creates a new state for the parameter in an optimizer's `state`."""
        self._state = self._layout.fresh_scalars()
        state[self.parameter] = self._state

    def load(self, rows: Any, gradients: Any) -> None:
        """Sets the rows ``(u, width)`` and gradients ``(u, dim)`` of a step, as NumPy arrays or as
        tensors on a device."""
        if not isinstance(rows, Tensor):
            rows, gradients = torch.from_numpy(rows), torch.from_numpy(gradients)
        self._rows, self._gradients = rows, gradients
        self.num_rows, self.is_on_device = len(rows), rows.is_cuda
        self.row_bytes = (rows.shape[1] + self._dim) * rows.element_size()

    @property
    def takes_blocks(self) -> bool:
        """See `RowState.takes_blocks`."""
        return self._layout.takes_blocks

    def show(self, begin: int, end: int) -> None:
        """Shows the rows ``[begin, end)`` to the optimizer.

        After the last row, the optimizer skips the table. The first block is shown even if it is
        empty, because it counts a step of the table.
        """
        if begin > 0 and begin >= self.num_rows:
            self.parameter.grad = None
            self._shown = ()
            return
        if begin == 0:
            is_divided = end < self.num_rows
            self._before = self.scalars() if is_divided else {}
        else:
            self._restore_scalars()
        rows, gradients = self._rows[begin:end], self._gradients[begin:end]
        names = self._layout.names
        self._shown = torch.split(rows, self._dim, dim=1) if names else (rows,)
        self.parameter.data = self._shown[0]
        self.parameter.grad = gradients
        for place, name in enumerate(names, 1):
            self._state[name] = self._shown[place]

    def _restore_scalars(self) -> None:
        for name in [name for name in self._state if name not in self._layout.names]:
            if name in self._before:
                before = self._before[name]
                self._state[name] = before.clone() if isinstance(before, Tensor) else before
            else:
                del self._state[name]

    def store(self) -> None:
        """Copies results to the rows that the optimizer did not update in place."""
        if not self._shown:
            return
        self._reject_new_state()
        if self.parameter.data_ptr() != self._shown[0].data_ptr():
            self._shown[0].copy_(self.parameter.data)
        for place, name in enumerate(self._layout.names, 1):
            now = self._state[name]
            if now is not self._shown[place]:
                self._shown[place].copy_(now)

    def _reject_new_state(self) -> None:
        """Rejects new row state for which the rows have no columns, because the next step, with
        other rows, would lose it."""
        for name, value in self._state.items():
            if name in self._layout.names or not isinstance(value, Tensor):
                continue
            if value.shape == self._shown[0].shape:
                del self._state[name]
                raise InvalidArgumentError(
                    f"the optimizer started to use row state {name!r}, for which the rows of its "
                    "tables have no columns; pass the hyper-parameter that needs it when you create "
                    "the Optimizer, and change its value later",
                    state=name,
                )

    def unload(self) -> None:
        """Releases the rows."""
        self.parameter.grad = None
        self.parameter.data = self._empty
        self._rows = self._gradients = self._empty
        self._shown = ()
        self._before = {}
        for name in self._layout.names:
            self._state.pop(name, None)

    def scalars(self) -> dict[str, Any]:
        """Returns the optimizer state of the table, without row state; tensors are copied."""
        return {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in self._state.items()
            if name not in self._layout.names
        }

    def num_steps(self, otherwise: int) -> int:
        """Returns the number of steps of the table, or `otherwise` if it is not counted."""
        return int(self._state["step"]) if "step" in self._state else otherwise

    def count_step(self) -> None:
        """Counts a step that was taken without this parameter."""
        if "step" in self._state:
            self._state["step"] += 1

    def set_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Sets the values that `scalars` returned, converted to the types of the optimizer."""
        for name, value in scalars.items():
            now = self._state.get(name)
            if isinstance(now, Tensor):
                self._state[name] = torch.as_tensor(
                    value, dtype=now.dtype, device=now.device
                ).clone()
            else:
                self._state[name] = value.clone() if isinstance(value, Tensor) else value
