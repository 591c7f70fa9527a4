"""Updates rows by an update method of sparring, in one pass over each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from sparring import StepContainer
from sparring.adapter import (
    TableScalars,
    hypers_by_table,
    method_state,
    parse_hyper,
    set_method_states,
    uses_steps,
)
from sparring.contracts import HyperParameters, MethodChoice, Storage, UpdateMethod

__all__ = ["FusedUpdater"]


class FusedUpdater:
    """Updates the tables of an `Optimizer` by an update method.

    Each table has a separate param_group, whose ``table`` is the table's name. Changes to a group, for
    example by a scheduler, apply to later steps.

    Args:
        container: the container of the tables.
        tables: names of the tables.
        method: the update method.
        hyperparameters: hyper-parameters of the method for all tables.
        by_table: hyper-parameters of single tables, which override those for all.
        given: storages that the user opened, by table.
        resets: whether to reset the state of rows that exist.
    """

    def __init__(
        self,
        container: StepContainer,
        tables: Sequence[str],
        method: UpdateMethod,
        hyperparameters: Mapping[str, Any],
        by_table: Mapping[str, Mapping[str, Any]],
        given: Mapping[str, Storage],
        *,
        resets: bool = False,
    ) -> None:
        self._container = container
        self._method = method
        self.name = method.name
        self.defaults = parse_hyper(method, hyperparameters).model_dump()
        self._steps = dict.fromkeys(tables, 0)
        self._checked: dict[str, tuple[tuple[Any, ...], HyperParameters]] = {}
        self.param_groups: list[dict[str, Any]] = []
        # torch's optimizers require parameters, so an empty one represents each table.
        self.parameters = [nn.Parameter(torch.empty(0)) for _ in tables]
        self.state: Any = {}
        hypers = hypers_by_table(method, tables, hyperparameters, by_table)
        self.unknown: set[str] = set()
        """Tables whose rows have state of an unknown number of steps."""
        self._loaded: set[str] = set()
        """Tables whose number of steps `set_scalars` has set since the last step, because it may be
        called before rows are loaded."""
        set_method_states(container.state, method, hypers, given, resets=resets)
        for name in tables:
            # Without a reference to this object, which would be a cycle with the container.
            read = partial(_read_scalars, self._steps, name)
            write = partial(_continue_scalars, self._steps, self.unknown, self._loaded, name)
            container.entry(name).attach_scalars(TableScalars(method.name, read, write))
        for name, parameter in zip(tables, self.parameters, strict=True):
            group = {"params": [parameter], "table": name, **hypers[name].model_dump()}
            self.param_groups.append(group)

    @property
    def routes(self) -> dict[str, str]:
        """Table → name of the update method."""
        return dict.fromkeys(self._steps, self.name)

    def step(self) -> None:
        """Applies the gradients since the last step."""
        choices = {
            group["table"]: MethodChoice(
                self._method, self._hyper(group), self._steps[group["table"]] + 1
            )
            for group in self.param_groups
        }
        for name in self._container.apply_methods(choices):
            self._steps[name] += 1
        self._loaded.clear()

    def _hyper(self, group: dict[str, Any]) -> HyperParameters:
        """Returns the current values of a group; validates them only after a change."""
        values = tuple(map(group.get, self.defaults))
        name = group["table"]
        known = self._checked.get(name)
        if known is None or known[0] != values:
            given = dict(zip(self.defaults, values, strict=True))
            known = values, parse_hyper(self._method, given)
            # The initial state of new rows may depend on the values.
            state = method_state(self._method, known[1], self._container.tables[name])
            self._container.set_state(name, state.initial, state.method)
            self._checked[name] = known
        return known[1]

    def saved_groups(self) -> list[dict[str, Any]]:
        """Returns the param_groups with table names instead of parameters."""
        return [{**group, "params": [group["table"]]} for group in self.param_groups]

    def uses_steps(self, table: str) -> bool:
        """Returns whether updates of a table depend on its number of steps."""
        groups = {group["table"]: group for group in self.param_groups}
        return uses_steps(self._method, self._hyper(groups[table]))

    def scalars(self) -> dict[str, dict[str, Any]]:
        """Returns the number of steps of each table."""
        return {name: {"step": step} for name, step in self._steps.items()}

    def set_scalars(self, scalars: Mapping[str, Mapping[str, Any]]) -> None:
        """Sets the values that `scalars` returned."""
        for name in self._steps:
            self._steps[name] = int(scalars[name]["step"])
        self.unknown.clear()
        self._loaded.update(self._steps)

    def guess_steps(self, steps: int) -> None:
        """Sets the number of steps of tables for which it is unknown."""
        self._steps |= dict.fromkeys(self.unknown, steps)
        self.unknown.clear()


def _read_scalars(steps: Mapping[str, int], table: str) -> dict[str, Any]:
    return {"step": steps[table]}


def _continue_scalars(
    steps: dict[str, int],
    unknown: set[str],
    loaded: set[str],
    table: str,
    scalars: Mapping[str, Any] | None,
) -> None:
    """Continues the scalars of loaded rows or of a former optimizer; None: they are unknown."""
    unknown.discard(table)
    if scalars is not None:
        steps[table] = int(scalars.get("step", 0))
    elif table not in loaded:
        unknown.add(table)
