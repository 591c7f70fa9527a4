"""Rows updated by an optimizer of torch, as one parameter per table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from sparring.adapter import StepContainer, TableState, TableUpdate, give_states, storage_device
from sparring.contracts import Storage
from sparring.errors import InvalidArgumentError
from sparring_torch.block_step import BLOCK_BYTES, step_in_blocks
from sparring_torch.device_kernels import tensor_device
from sparring_torch.device_memory import memory_error
from sparring_torch.optimizer_probe import probe
from sparring_torch.row_state import RowState
from sparring_torch.shadow_parameter import ShadowParameter

__all__ = ["ShadowUpdater"]


class ShadowUpdater:
    """How `Optimizer` updates tables by a class of torch.

    Args:
        container: where the tables live.
        tables: their names.
        native: the optimizer class.
        hyperparameters: of `native`.
        given: the storages that were given open, by table.
    """

    def __init__(
        self,
        container: StepContainer,
        tables: Sequence[str],
        native: type[torch.optim.Optimizer],
        hyperparameters: dict[str, Any],
        given: Mapping[str, Storage],
    ) -> None:
        self._container = container
        self._shadows = _make_shadows(container, tables, native, hyperparameters, given)
        self.parameters = [shadow.parameter for shadow in self._shadows.values()]
        self._native = native(self.parameters, **hyperparameters)
        # The step without the hooks around it: those of `Optimizer` run already.
        self._native_step = _unhooked(native)
        self.name = native.__name__
        self.defaults = self._native.defaults
        self.param_groups = self._native.param_groups
        self.state: Any = self._native.state
        for shadow in self._shadows.values():
            shadow.adopt(self.state)
        takes_blocks = all(shadow.takes_blocks for shadow in self._shadows.values())
        self._block_bytes = BLOCK_BYTES if takes_blocks else None

    def step(self) -> None:
        """Applies the gradients since the last step."""
        self._container.apply(self._update)

    def _update(self, updates: Sequence[TableUpdate]) -> None:
        loaded, on_device = [], None
        for update in updates:
            shadow = self._shadows.get(update.table.name)
            if shadow is None:
                raise InvalidArgumentError(
                    f"table {update.table.name!r} has gradients, but its module was not given to "
                    f"this Optimizer; it updates {', '.join(self._shadows)}",
                    table=update.table.name,
                )
            shadow.load(update.rows, update.gradients)
            loaded.append(shadow)
            if shadow.is_on_device and on_device is None:
                on_device = shadow.parameter.device
        try:
            step_in_blocks(
                partial(self._native_step, self._native),
                loaded,
                self.param_groups,
                self._block_bytes if on_device is None else None,
            )
        except torch.OutOfMemoryError as error:
            # Tensors that the optimizer makes on the way are made on the device of the rows.
            raise memory_error(on_device or torch.device("cpu"), error) from error
        finally:
            for shadow in loaded:
                shadow.unload()

    def saved_groups(self) -> list[dict[str, Any]]:
        """The param_groups with table names in place of parameters."""
        return [{**group, "params": list(self._shadows)} for group in self.param_groups]

    def scalars(self) -> dict[str, dict[str, Any]]:
        """State that is kept for each table as a whole."""
        return {name: shadow.scalars() for name, shadow in self._shadows.items()}

    def set_scalars(self, scalars: Mapping[str, Mapping[str, Any]]) -> None:
        """Takes over what `scalars` gave."""
        for name, shadow in self._shadows.items():
            shadow.set_scalars(scalars[name])


def _make_shadows(
    container: StepContainer,
    tables: Sequence[str],
    native: type[torch.optim.Optimizer],
    hyperparameters: dict[str, Any],
    given: Mapping[str, Storage],
) -> dict[str, ShadowParameter]:
    layouts: dict[tuple[torch.dtype, torch.device], RowState] = {}
    states, shadows = {}, {}
    for name in tables:
        table = container.tables[name]
        dtype = getattr(torch, table.computing_dtype.name)
        entry = container.entry(name)
        device = tensor_device(storage_device(entry.choice or entry.storage))
        kind = dtype, device
        if kind not in layouts:
            # Where the rows lie: optimizers may keep their scalars there, or work otherwise there.
            layouts[kind] = probe(native, hyperparameters, dtype, device)
        initial = np.array(layouts[kind].initial_row(table.dim), table.computing_dtype)
        states[name] = TableState(native.__name__, initial)
        shadows[name] = ShadowParameter(table.dim, dtype, layouts[kind], device)
    give_states(container.state, states, given, native.__name__)
    return shadows


def _unhooked(native: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """The optimizer's own step, without what torch wraps around it for hooks and profiling."""
    step: Any = native.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[no-any-return]
