"""Updates rows with a torch optimizer, either by an equivalent update method or by the optimizer
itself."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from sparring import StepContainer
from sparring.adapter import (
    TableScalars,
    TableState,
    TableUpdate,
    find_storage_device,
    format_suggestion,
    set_states,
    uses_steps,
)
from sparring.contracts import MethodChoice, Storage
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch.device.kernels import tensor_device
from sparring_torch.device.memory import make_memory_error
from sparring_torch.optim.block_step import BLOCK_BYTES, step_in_blocks, unhooked_step
from sparring_torch.optim.known_optimizers import (
    FusedForm,
    KnownOptimizer,
    find_known_optimizer,
    without_fused,
)
from sparring_torch.optim.optimizer_probe import probe
from sparring_torch.optim.row_state import RowState
from sparring_torch.optim.shadow_parameter import ShadowParameter
from sparring_torch.optim.sparse_adam import over_rows

__all__ = ["NativeUpdater"]

_NO_SETTINGS = {"foreach", "fused", "capturable", "differentiable"}
"""Hyper-parameters that do not change the result of a step."""

_log = logging.getLogger(__name__)


class NativeUpdater:
    """Updates the tables of an `Optimizer` by a class of torch.

    Each step takes one of two routes. Both use the same columns of rows and the same scalars of tables,
    so steps may alternate:

    - fused: an update method that is known to give the same rows (`known_optimizers`);
    - shadow: the optimizer's own step, over rows in one parameter per table.

    Args:
        container: the container of the tables.
        tables: names of the tables.
        optimizer_class: class of the optimizer.
        hyperparameters: its keyword arguments.
        by_table: hyper-parameters of single tables, which override those for all; if given, each
            table has a separate param_group, whose ``table`` is the table's name.
        given: storages that the user opened, by table.
        may_fuse: whether steps may take the fused route.
        resets: whether to reset the state of rows that exist.
    """

    def __init__(
        self,
        container: StepContainer,
        tables: Sequence[str],
        optimizer_class: type[torch.optim.Optimizer],
        hyperparameters: dict[str, Any],
        by_table: Mapping[str, Mapping[str, Any]],
        given: Mapping[str, Storage],
        *,
        may_fuse: bool,
        resets: bool = False,
    ) -> None:
        self._container = container
        optimizer_class = over_rows(optimizer_class)
        hyperparameters = without_fused(optimizer_class, hyperparameters)
        by_table = {
            name: without_fused(optimizer_class, dict(own)) for name, own in by_table.items()
        }
        groups = _groups(tables, hyperparameters, by_table)
        layouts: dict[str, RowState] = {}
        self._known: list[KnownOptimizer | str] = []
        """For each param_group, its update methods, or the reason why it has none."""
        for names, values in groups:
            found = _layouts(container, names, optimizer_class, values)
            layouts |= {name: found[_kind(container, name)] for name in names}
            known: KnownOptimizer | str = "update='shadow' was given"
            if may_fuse:
                known = _uncounted_steps(container, names, found) or find_known_optimizer(
                    optimizer_class, values, found
                )
            self._known.append(known)
        self.unknown: set[str] = set()
        """Tables whose rows have state of an unknown number of steps."""
        self._loaded: set[str] = set()
        """Tables whose number of steps `set_scalars` has set since the last step, because it may be
        called before rows are loaded."""
        self._shadows = _make_shadows(
            container, tables, optimizer_class, layouts, given, resets=resets
        )
        self.parameters: list[Any] = [shadow.parameter for shadow in self._shadows.values()]
        if by_table:
            self.parameters = [
                {"params": [self._shadows[name].parameter], "table": name, **values}
                for (name,), values in groups
            ]
        self._native = optimizer_class(self.parameters, **hyperparameters)
        # The hooks of `Optimizer` run instead.
        self._native_step = unhooked_step(self._native)
        # The probe used this value; if it became True, rows of tables could become NaN.
        self._fused = self._native.defaults.get("fused")
        self.name = optimizer_class.__name__
        self.defaults = self._native.defaults
        self.param_groups = self._native.param_groups
        self.state: Any = self._native.state
        for shadow in self._shadows.values():
            shadow.adopt(self.state)
        for name, shadow in self._shadows.items():
            # Without a reference to this object, which would be a cycle with the container.
            write = partial(_continue_scalars, shadow, self.unknown, self._loaded, name)
            container.entry(name).attach_scalars(TableScalars(self.name, shadow.scalars, write))
        takes_blocks = all(shadow.takes_blocks for shadow in self._shadows.values())
        self._block_bytes = BLOCK_BYTES if takes_blocks else None

        self._route = ""
        forms = self._forms()
        self._note("shadow: " + forms if isinstance(forms, str) else _methods(forms))

    @property
    def routes(self) -> dict[str, str]:
        """Table → update method of the last step, or ``shadow`` and the reason."""
        return dict.fromkeys(self._shadows, self._route)

    def step(self, why_not_fused: str | None = None) -> None:
        """Applies the gradients since the last step.

        Args:
            why_not_fused: why this step must not take the fused route; None if it may.
        """
        forms = why_not_fused or self._forms()
        if isinstance(forms, str):
            self._note("shadow: " + forms)
            self._check_dampening()
            self._container.apply(self._update, settings=self._settings)
            self._loaded.clear()
            return
        self._note(_methods(forms))
        num_steps = self._container.state.counters.steps
        choices = {}
        for name, form in forms.items():
            step = self._shadows[name].num_steps(num_steps) + 1
            choices[name] = MethodChoice(form.method, form.hyper, step)
        for name in self._container.apply_methods(choices, settings=self._settings):
            self._shadows[name].count_step()
        self._loaded.clear()

    def _forms(self) -> dict[str, FusedForm] | str:
        """Returns the update method of each table, or why one of them has none."""
        forms: dict[str, FusedForm] = {}
        for known, group in zip(self._known, self.param_groups, strict=True):
            form = known if isinstance(known, str) else known.find_form(group)
            if isinstance(form, str):
                return form
            forms |= dict.fromkeys(self._list_tables(group), form)
        return forms

    def _check_dampening(self) -> None:
        """Rejects a value that was set after the probe, which would have rejected it."""
        for group in self.param_groups:
            if group.get("dampening") and group.get("momentum"):
                raise UnsupportedError(
                    f"step: found dampening={group['dampening']}, but torch starts the momentum of a "
                    "parameter with its first gradient, which is not possible for rows that appear "
                    "later; set dampening=0, and lr=lr*(1-dampening) for the same size of steps"
                )

    def _settings(self) -> dict[str, Any]:
        """Returns the settings of the next step, which must be equal on all ranks; its route need not
        be."""
        steps = {name: shadow.num_steps(0) for name, shadow in self._shadows.items()}
        names = self.defaults.keys() - _NO_SETTINGS
        groups = {
            f"param_groups[{position}]": {name: _to_json(group.get(name)) for name in names}
            for position, group in enumerate(self.param_groups)
        }
        return {"steps": steps, **groups}

    def _list_tables(self, group: Mapping[str, Any]) -> list[str]:
        return [group["table"]] if "table" in group else list(self._shadows)

    def _note(self, route: str) -> None:
        if route != self._route:
            tables = ", ".join(self._shadows)
            _log.info("%s updates tables %s by route %s", self.name, tables, route)
            self._route = route

    def _update(self, updates: Sequence[TableUpdate]) -> None:
        loaded, on_device = [], None
        for update in updates:
            shadow = self._shadows.get(update.table.name)
            if shadow is None:
                raise InvalidArgumentError(
                    f"step: table {update.table.name!r} has gradients, but this Optimizer updates only "
                    f"{', '.join(self._shadows)}; give it the table's module, too",
                    table=update.table.name,
                )
            shadow.load(update.rows, update.gradients)
            loaded.append(shadow)
            if shadow.is_on_device and on_device is None:
                on_device = shadow.parameter.device
        for group in self.param_groups:
            if "fused" in group:
                group["fused"] = self._fused
        try:
            step_in_blocks(
                self._native_step,
                loaded,
                self.param_groups,
                self._block_bytes if on_device is None else None,
            )
        except torch.OutOfMemoryError as error:
            # The optimizer's temporaries are on the device of the rows.
            raise make_memory_error(on_device or torch.device("cpu"), error) from error
        finally:
            for shadow in loaded:
                shadow.unload()

    def saved_groups(self) -> list[dict[str, Any]]:
        """Returns the param_groups with table names instead of parameters."""
        return [{**group, "params": self._list_tables(group)} for group in self.param_groups]

    def uses_steps(self, table: str) -> bool:
        """Returns whether updates of a table depend on its number of steps."""
        forms = self._forms()
        return isinstance(forms, str) or uses_steps(forms[table].method, forms[table].hyper)

    def scalars(self) -> dict[str, dict[str, Any]]:
        """Returns the optimizer state of each table, without row state."""
        return {name: shadow.scalars() for name, shadow in self._shadows.items()}

    def set_scalars(self, scalars: Mapping[str, Mapping[str, Any]]) -> None:
        """Sets the values that `scalars` returned."""
        for name, shadow in self._shadows.items():
            shadow.set_scalars(scalars[name])
        self.unknown.clear()
        self._loaded.update(self._shadows)

    def guess_steps(self, steps: int) -> None:
        """Sets the number of steps of tables for which it is unknown."""
        for name in self.unknown:
            self._shadows[name].set_scalars({"step": steps})
        self.unknown.clear()


def _continue_scalars(
    shadow: ShadowParameter,
    unknown: set[str],
    loaded: set[str],
    table: str,
    scalars: Mapping[str, Any] | None,
) -> None:
    """Continues the scalars of loaded rows or of a former optimizer; None: they are unknown."""
    unknown.discard(table)
    if scalars is not None:
        shadow.set_scalars(scalars)
    elif table not in loaded and shadow.num_steps(otherwise=-1) >= 0:
        unknown.add(table)


def _to_json(value: Any) -> Any:
    """Converts a hyper-parameter, so that equal numbers have equal texts."""
    if isinstance(value, (torch.Tensor, np.generic)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return list(map(_to_json, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    # Other values, such as functions, cannot be compared.
    return value if value is None or isinstance(value, (bool, float, str)) else "…"


def _methods(forms: Mapping[str, FusedForm]) -> str:
    return ", ".join(dict.fromkeys(form.method.name for form in forms.values()))


def _groups(
    tables: Sequence[str],
    hyperparameters: dict[str, Any],
    by_table: Mapping[str, Mapping[str, Any]],
) -> list[tuple[Sequence[str], dict[str, Any]]]:
    """Returns the tables and hyper-parameters of each param_group."""
    for name in by_table:
        if name not in tables:
            raise InvalidArgumentError(
                f"tables: this optimizer has no table {name!r}; {format_suggestion(name, tables)}",
                table=name,
            )
    if not by_table:
        return [(tables, hyperparameters)]
    return [([name], {**hyperparameters, **by_table.get(name, {})}) for name in tables]


_Kind = tuple[torch.dtype, torch.device]


def _kind(container: StepContainer, table: str) -> _Kind:
    """Returns the dtype in which a table computes, and the device of its rows. Optimizers may keep
    scalars on that device, or compute differently there."""
    entry = container.entry(table)
    device = tensor_device(find_storage_device(entry.choice or entry.storage))
    return getattr(torch, entry.config.computing_dtype.name), device


def _layouts(
    container: StepContainer,
    tables: Sequence[str],
    optimizer_class: type[torch.optim.Optimizer],
    hyperparameters: dict[str, Any],
) -> dict[_Kind, RowState]:
    kinds = dict.fromkeys(_kind(container, name) for name in tables)
    return {kind: probe(optimizer_class, hyperparameters, *kind) for kind in kinds}


def _uncounted_steps(
    container: StepContainer, tables: Sequence[str], layouts: Mapping[_Kind, RowState]
) -> str | None:
    """Returns why update methods would count steps differently from the shadow, or None.

    The shadow counts no step in which a filter admits no id of a table. Update methods count all steps
    in which the table has gradients, because other ranks do not know which ids an owner admits.
    """
    if not any("step" in layout.scalars for layout in layouts.values()):
        return None
    filtered = [name for name in tables if container.entry(name).admission_filter is not None]
    return f"it counts steps, and ids of {', '.join(filtered)} are admitted" if filtered else None


def _make_shadows(
    container: StepContainer,
    tables: Sequence[str],
    optimizer_class: type[torch.optim.Optimizer],
    layouts: Mapping[str, RowState],
    given: Mapping[str, Storage],
    *,
    resets: bool,
) -> dict[str, ShadowParameter]:
    states, shadows = {}, {}
    for name in tables:
        table = container.tables[name]
        dtype, device = _kind(container, name)
        layout = layouts[name]
        initial = np.array(layout.initial_row(table.dim), table.computing_dtype)
        states[name] = TableState(optimizer_class.__name__, initial, layout.why_coupled)
        # The width of a block, if columns of the table are sharded.
        width = table.dim // container.layout(name).num_blocks
        shadows[name] = ShadowParameter(width, dtype, layout, device)
    set_states(container.state, states, given, optimizer_class.__name__, resets=resets)
    return shadows
