"""Rows updated by an update method of sparring, in one visit of each row."""

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
    """How `Optimizer` updates tables by an update method.

    The step number of a table counts the steps in which it had a gradient, on any rank: those of the
    container, less those that it sat out. So it goes on over snapshots of other frameworks too.

    Args:
        tables: whose rows.
        method: what updates them.
        hyperparameters: of the method, for all tables; `lr` may be a schedule.
        by_table: of single tables, which override these.
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
        """Applies the gradients since the last step."""
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
        """Table → steps of the container in which it had no gradient."""
        return dict(self._idle)

    def set_state_tree(self, tree: Any) -> None:
        """Takes back what `state_tree` gave."""
        self._idle = dict(tree)
