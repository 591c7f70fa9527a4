"""Finds the row state of a native optimizer by probing it on a tiny parameter.

A row is the embedding, followed by the optimizer's state. To find the state, the optimizer
performs one step with a zero gradient on a zero parameter of 4 rows. State with the parameter's shape
is row state (`exp_avg` of Adam, `sum` of Adagrad), and single numbers are scalars of the table
(`step`, `mu_product`). An optimizer with other state is rejected.

The probe also performs the following tests, with the engine's memory layout:

- Rows are independent: updating 4 rows together must have the same result as updating the first 2 rows
  and the last 2 rows separately. LAMB, LBFGS and Adafactor fail this test.
- A step may process its rows in blocks. Optimizers that count steps in their attributes fail this test.
- Rows must change like an ordinary parameter that has gradients in the same steps. Optimizers that start
  their state with the first gradient, such as SGD with dampening, fail this test.
- Columns are independent. Tables that are split into blocks of columns require this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch.optim.block_step import step_in_blocks, unhooked_step
from sparring_torch.optim.row_state import RowState
from sparring_torch.optim.shadow_parameter import ShadowParameter

__all__ = ["probe"]

_ROWS, _DIM = 4, 3
_STEPS = 3
_COUPLED = {
    "LBFGS": "it estimates the curvature of all parameters together, and calls a closure several times",
    "Adafactor": "it stores the second moments of a matrix as one number per row and per column",
    "Muon": "it orthogonalizes the update of a whole matrix",
}
"""Why classes of `torch.optim` cannot update separate rows."""
_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def probe(
    optimizer_class: type[Optimizer],
    hyperparameters: Mapping[str, Any],
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> RowState:
    """Finds the state of an optimizer, and checks that it can be stored per row.

    Args:
        optimizer_class: a class of `torch.optim`, or a compatible one.
        hyperparameters: its keyword arguments.
        dtype: the dtype in which the tables compute; float32 or float64.
        device: device of the rows; None means the CPU.

    Raises:
        InvalidArgumentError: the optimizer rejects these hyper-parameters.
        UnsupportedError: its state cannot be stored per row, or rows depend on each other.
    """
    device = device or torch.device("cpu")
    for each in optimizer_class.__mro__:
        if each.__name__ in _COUPLED and each.__module__.startswith("torch.optim"):
            raise _make_error(optimizer_class, _COUPLED[each.__name__])
    # Keep tensors without an explicit device on the CPU, even if torch has another default: a step
    # count on a GPU would have to be copied to the host in each step.
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.device("cpu"):
        layout = _find_state(optimizer_class, hyperparameters, dtype, device)
        trial = _Trial(optimizer_class, hyperparameters, dtype, device)
        with _find_rejection(optimizer_class):
            stepped = trial.over_rows(layout, slice(None))
            halves = [trial.over_rows(layout, half) for half in (slice(0, 2), slice(2, 4))]
        if not trial.is_close(stepped, torch.cat(halves)):
            reason = (
                "rows that are updated together change differently from rows updated separately"
            )
            if hyperparameters.get("fused"):
                reason += " (found fused=True, which requires contiguous rows; omit it)"
            raise _make_error(optimizer_class, reason)
        layout = _with_counting_scalars(layout, trial, stepped)
        return replace(
            layout,
            takes_blocks=trial.takes_blocks(layout),
            why_coupled=trial.why_coupled(layout, stepped),
        )


class _FirstValues(dict[str, Any]):
    """A parameter's state that records the first value of each entry."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
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


def _find_state(
    optimizer_class: type[Optimizer],
    hyperparameters: Mapping[str, Any],
    dtype: torch.dtype,
    device: torch.device,
) -> RowState:
    parameter = torch.nn.Parameter(torch.zeros(_ROWS, _DIM, dtype=dtype, device=device))
    try:
        optimizer = optimizer_class([parameter], **hyperparameters)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"optimizer {optimizer_class.__name__} does not accept {dict(hyperparameters)}: {error}; "
            "change them",
            optimizer=optimizer_class.__name__,
        ) from error
    state = _FirstValues(optimizer.state.get(parameter, {}))
    optimizer.state[parameter] = state
    parameter.grad = torch.zeros_like(parameter)
    with _find_rejection(optimizer_class):
        unhooked_step(optimizer)()
    names, initial, scalars = [], [], {}
    for name, value in optimizer.state[parameter].items():
        is_tensor = isinstance(value, Tensor)
        if is_tensor and value.shape == parameter.shape:
            if value.dtype != dtype:
                raise _make_error(
                    optimizer_class, f"state {name!r} is {value.dtype}, but rows are {dtype}"
                )
            filling = value.reshape(-1)
            if not bool((filling == filling[0]).all()):
                raise _make_error(
                    optimizer_class, f"state {name!r} of a new row is not a single number"
                )
            names.append(name)
            initial.append(float(filling[0]))
        elif not is_tensor or value.dim() == 0:
            scalars[name] = state.first.get(name, value)
        else:
            raise _make_error(
                optimizer_class,
                f"state {name!r} has shape {tuple(value.shape)} for a parameter of shape "
                f"{tuple(parameter.shape)}",
            )
    return RowState(tuple(names), tuple(initial), scalars)


class _Trial:
    """A few steps with generated gradients."""

    def __init__(
        self,
        optimizer_class: type[Optimizer],
        hyperparameters: Mapping[str, Any],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.optimizer_class, self.hyperparameters = optimizer_class, hyperparameters
        self._dtype, self._device = dtype, device
        generator = torch.Generator("cpu").manual_seed(1)
        start = torch.randn(_ROWS, _DIM, dtype=dtype, generator=generator, device="cpu")
        gradients = torch.randn(_STEPS, _ROWS, _DIM, dtype=dtype, generator=generator, device="cpu")
        self._start, self._gradients = start.to(self._device), gradients.to(self._device)

    def over_parameter(self) -> Tensor:
        """Returns the rows after the steps, updated as an ordinary parameter."""
        parameter = torch.nn.Parameter(self._start.clone())
        optimizer = self.optimizer_class([parameter], **self.hyperparameters)
        step = unhooked_step(optimizer)
        for gradient in self._gradients:
            parameter.grad = gradient.clone()
            step()
        return parameter.detach()

    def takes_blocks(self, layout: RowState) -> bool:
        """Returns whether blocks of 3 and 1 rows give the same result as all rows at once."""
        whole = self.over_rows(layout, slice(None))
        try:
            in_blocks = self.over_rows(layout, slice(None), num_block_rows=_ROWS - 1)
        except Exception:
            # The optimizer kept state of one block that does not fit the next block.
            return False
        return torch.equal(whole, in_blocks)

    def why_coupled(self, layout: RowState, stepped: Tensor) -> str:
        """Returns why columns cannot be updated separately; empty if they are independent.

        Args:
            stepped: result of `over_rows` for all rows.
        """
        start, gradients = self._start, self._gradients
        self._start, self._gradients = start.clone(), gradients.clone()
        self._start[:, 0] += 1
        self._gradients[:, :, 0] *= -3
        try:
            other = self.over_rows(layout, slice(None))
        finally:
            self._start, self._gradients = start, gradients
        if torch.equal(other[:, 1:], stepped[:, 1:]):
            return ""
        return "its update of an element depends on other elements of the row"

    def over_rows(self, layout: RowState, part: slice, num_block_rows: int | None = None) -> Tensor:
        """Returns some rows after the steps, updated with the engine's memory layout."""
        start = self._start[part]
        state = torch.tensor(layout.initial_row(_DIM), dtype=self._dtype, device=self._device)
        rows = torch.cat([start, state.expand(len(start), -1)], 1)
        shadow = ShadowParameter(_DIM, self._dtype, layout, self._device)
        optimizer = self.optimizer_class([shadow.parameter], **self.hyperparameters)
        shadow.adopt(optimizer.state)
        step = unhooked_step(optimizer)
        for gradient in self._gradients[:, part]:
            shadow.load(rows, gradient.clone())
            block_bytes = None if num_block_rows is None else num_block_rows * shadow.row_bytes
            step_in_blocks(step, [shadow], optimizer.param_groups, block_bytes)
            shadow.unload()
        return rows[:, :_DIM]

    def is_close(self, one: Tensor, other: Tensor) -> bool:
        difference = (one - other).abs().max()
        # Written so that the result is False for NaN.
        return bool(difference <= _TOLERANCE[self._dtype] * one.abs().max().clamp(min=1.0))


def _with_counting_scalars(layout: RowState, trial: _Trial, stepped: Tensor) -> RowState:
    """Returns the layout without initial scalars if only then new tables count steps correctly.

    If an optimizer writes ``state["step"] = state.get("step", 0) + 1``, the probe cannot observe the
    value before the first step. The layout must then contain no scalars, so that the optimizer creates
    them.

    Raises:
        UnsupportedError: both layouts differ from an ordinary parameter. For example, SGD with
            dampening starts its momentum with the first gradient.
    """
    with _find_rejection(trial.optimizer_class):
        expected = trial.over_parameter()
    if trial.is_close(expected, stepped):
        return layout
    without = replace(layout, scalars={})
    try:
        is_better = trial.is_close(expected, trial.over_rows(without, slice(None)))
    except Exception:
        # The optimizer reads a scalar that does not exist, and may raise any error.
        is_better = False
    if is_better:
        return without
    raise _make_error(
        trial.optimizer_class,
        "rows would change differently from a parameter, because it initializes its state in another "
        "way than by a step with a zero gradient, for example with the first gradient"
        + (
            "; with SGD, set dampening=0, and lr=lr*(1-dampening) for the same size of steps"
            if trial.hyperparameters.get("dampening")
            else ""
        ),
    )


@contextmanager
def _find_rejection(optimizer_class: type[Optimizer]) -> Iterator[None]:
    """Converts any error of a probe step to `UnsupportedError`."""
    try:
        yield
    except Exception as error:
        reason = f"a test step with rows of a table failed with {type(error).__name__}: {error}"
        raise _make_error(optimizer_class, reason) from error


def _make_error(optimizer_class: type[Optimizer], reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"optimizer {optimizer_class.__name__} cannot update rows of a table: {reason}; use an "
        "elementwise optimizer, for example SGD, Adagrad, Adam, AdamW, RMSprop, Adadelta or NAdam",
        optimizer=optimizer_class.__name__,
        reason=reason,
    )
