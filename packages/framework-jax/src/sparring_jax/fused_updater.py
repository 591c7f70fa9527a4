"""Updates rows with one of sparring's update methods, in one pass over the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sparring.adapter import (
    collect_open_storages,
    hypers_by_table,
    set_learning_rate,
    set_method_states,
)
from sparring.contracts import MethodChoice, UpdateMethod
from sparring_jax.tables import Tables

__all__ = ["FusedUpdater"]


class FusedUpdater:
    """Implements `Optimizer` for update methods.

    The step number of a table is the number of steps in which it had a gradient on any rank. It is
    computed as the number of steps of the container minus the number of steps without a gradient.
    This number remains valid if a snapshot of another framework is loaded.

    Args:
        tables: the tables to update.
        method: the update method.
        hyperparameters: hyper-parameters for all tables; `lr` may be a schedule.
        by_table: table → hyper-parameters that override `hyperparameters`.
    """

    def __init__(
        self,
        tables: Tables,
        method: UpdateMethod,
        hyperparameters: Mapping[str, Any],
        by_table: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self._container, self._method = tables.container, method
        given = dict(hyperparameters)
        self._schedule: Callable[[int], Any] | None = None
        if callable(given.get("lr")):
            self._schedule = given["lr"]
            given["lr"] = float(given["lr"](0))
        self._follows = {name for name in tables.table_names if "lr" not in by_table.get(name, {})}
        self._hypers = dict(hypers_by_table(method, tables.table_names, given, by_table))
        self._idle = dict.fromkeys(tables.table_names, 0)
        set_method_states(
            self._container.state, method, self._hypers, collect_open_storages([tables])
        )

    def step(self) -> None:
        """Applies the gradients that were accumulated since the last step."""
        number = self._container.counters.steps
        if self._schedule is not None:
            rate = float(self._schedule(number))
            set_learning_rate(self._method, self._hypers, self._follows, rate)
        choices = {
            name: MethodChoice(self._method, hyper, number - self._idle[name] + 1)
            for name, hyper in self._hypers.items()
        }
        stepped = set(self._container.apply_methods(choices))
        for name in self._idle.keys() - stepped:
            self._idle[name] += 1

    def state_tree(self) -> Any:
        """Returns table → number of steps of the container in which the table had no gradient."""
        return dict(self._idle)

    def set_state_tree(self, tree: Any) -> None:
        """Restores the result of `state_tree`."""
        self._idle = dict(tree)
