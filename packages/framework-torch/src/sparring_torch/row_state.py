"""What a native optimizer keeps for each row, found by probing it on a tiny parameter.

A row is the embedding, then the optimizer's state. Which state there is, the optimizer itself
shows: it is stepped once, with a zero gradient, on a zero parameter of 4 rows. What it then keeps
is either of the parameter's shape (state of the rows: `exp_avg` of Adam, `sum` of Adagrad) or a
single number (a scalar of the whole table: `step`, `mu_product`). Anything else cannot be cut
into rows, and the optimizer is refused by name.

The same probe shows whether rows are independent: 4 rows stepped together must move as 2 and 2
rows stepped apart, laid out as the engine lays them out. LAMB, LBFGS and Adafactor do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from sparring.errors import InvalidArgumentError, UnsupportedError
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["RowState", "probe"]

_ROWS, _DIM = 4, 3
_STEPS = 3
_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


@dataclass(frozen=True, slots=True)
class RowState:
    """What an optimizer keeps for a table."""

    names: tuple[str, ...]
    """Row state, in the order of the columns behind the embedding, `dim` elements each."""
    initial: tuple[float, ...]
    """What each row state of a new key is filled with."""
    scalars: Mapping[str, Any]
    """What it keeps for the table as a whole, as it is before the first step."""

    def width(self, dim: int) -> int:
        """Elements of state behind an embedding of `dim` elements."""
        return len(self.names) * dim

    def initial_row(self, dim: int) -> list[float]:
        """The state of a new key: ``(width,)`` numbers."""
        return [value for value in self.initial for _ in range(dim)]

    def fresh_scalars(self) -> dict[str, Any]:
        """The scalars of a table before its first step; tensors are copies."""
        return {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in self.scalars.items()
        }


def probe(
    native: type[Optimizer], hyperparameters: Mapping[str, Any], dtype: torch.dtype
) -> RowState:
    """Finds the state of `native`, and makes sure that it can be kept by row.

    Args:
        native: a class of `torch.optim`, or another of its kind.
        hyperparameters: its keyword arguments.
        dtype: of the tables; float32 or float64.

    Raises:
        InvalidArgumentError: the optimizer does not accept these hyper-parameters.
        UnsupportedError: its state cannot be kept by row, or rows influence each other.
    """
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        layout = _found_state(native, hyperparameters, dtype)
        _check_independence(native, hyperparameters, dtype, layout)
    return layout


class _FirstValues(dict[str, Any]):
    """A parameter's state that remembers the first value of each entry."""

    def __init__(self, entries: Mapping[str, Any] = {}) -> None:  # noqa: B006 - never written
        super().__init__()
        self.first: dict[str, Any] = {}
        self.update(entries)

    def __setitem__(self, name: str, value: Any) -> None:
        self.first.setdefault(name, value.clone() if isinstance(value, Tensor) else value)
        super().__setitem__(name, value)

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]

    def update(self, *entries: Any, **named: Any) -> None:
        for name, value in dict(*entries, **named).items():
            self[name] = value


def _found_state(
    native: type[Optimizer], hyperparameters: Mapping[str, Any], dtype: torch.dtype
) -> RowState:
    parameter = torch.nn.Parameter(torch.zeros(_ROWS, _DIM, dtype=dtype))
    try:
        optimizer = native([parameter], **hyperparameters)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"optimizer {native.__name__} does not accept {dict(hyperparameters)}: {error}",
            optimizer=native.__name__,
        ) from error
    state = _FirstValues(optimizer.state.get(parameter, {}))
    optimizer.state[parameter] = state
    parameter.grad = torch.zeros_like(parameter)
    with _refusal(native):
        optimizer.step()
    names, initial, scalars = [], [], {}
    for name, value in optimizer.state[parameter].items():
        is_tensor = isinstance(value, Tensor)
        if is_tensor and value.shape == parameter.shape:
            if value.dtype != dtype:
                raise _refused(native, f"state {name!r} is {value.dtype}, but rows are {dtype}")
            filling = value.reshape(-1)
            if not bool((filling == filling[0]).all()):
                raise _refused(native, f"state {name!r} of an untouched row is not one number")
            names.append(name)
            initial.append(float(filling[0]))
        elif not is_tensor or value.dim() == 0:
            scalars[name] = state.first.get(name, value)
        else:
            raise _refused(
                native,
                f"state {name!r} has shape {tuple(value.shape)} for a parameter of shape "
                f"{tuple(parameter.shape)}",
            )
    return RowState(tuple(names), tuple(initial), scalars)


def _check_independence(
    native: type[Optimizer],
    hyperparameters: Mapping[str, Any],
    dtype: torch.dtype,
    layout: RowState,
) -> None:
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(_ROWS, _DIM, dtype=dtype, generator=generator)
    gradients = torch.randn(_STEPS, _ROWS, _DIM, dtype=dtype, generator=generator)
    with _refusal(native):
        whole = _stepped(native, hyperparameters, layout, start, gradients)
        halves = [
            _stepped(native, hyperparameters, layout, start[half], gradients[:, half])
            for half in (slice(0, 2), slice(2, 4))
        ]
    difference = (whole - torch.cat(halves)).abs().max()
    scale = whole.abs().max().clamp(min=1.0)
    if not bool(difference <= _TOLERANCE[dtype] * scale):
        raise _refused(
            native, "rows that are stepped together move differently from rows stepped apart"
        )


def _stepped(
    native: type[Optimizer],
    hyperparameters: Mapping[str, Any],
    layout: RowState,
    start: Tensor,
    gradients: Tensor,
) -> Tensor:
    """Whole rows ``(rows, width)`` after some steps, state and all, in the engine's layout."""
    rows = torch.cat([start, torch.empty(len(start), layout.width(_DIM), dtype=start.dtype)], 1)
    rows[:, _DIM:] = torch.tensor(layout.initial_row(_DIM), dtype=start.dtype)
    views = rows.split(_DIM, dim=1)
    parameter = torch.nn.Parameter(torch.empty(0, dtype=start.dtype))
    parameter.data = views[0]
    optimizer = native([parameter], **hyperparameters)
    optimizer.state[parameter] = layout.fresh_scalars()
    for gradient in gradients:
        optimizer.state[parameter].update(zip(layout.names, views[1:], strict=True))
        parameter.grad = gradient.clone()
        optimizer.step()
        for name, view in zip(layout.names, views[1:], strict=True):
            now = optimizer.state[parameter][name]
            if now is not view:
                view.copy_(now)
    if parameter.data_ptr() != rows.data_ptr():
        views[0].copy_(parameter.data)
    return rows


@contextmanager
def _refusal(native: type[Optimizer]) -> Iterator[None]:
    """Whatever a probe step raises is the reason why this optimizer will not do."""
    try:
        yield
    except Exception as error:
        reason = f"a step over gathered rows failed with {type(error).__name__}: {error}"
        raise _refused(native, reason) from error


def _refused(native: type[Optimizer], reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"optimizer {native.__name__} cannot update rows of a table: {reason}; choose one that "
        "works element by element, as SGD, Adagrad, Adam, AdamW, RMSprop, Adadelta or NAdam",
        optimizer=native.__name__,
        reason=reason,
    )
