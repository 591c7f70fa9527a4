"""Rows updated by an update method of sparring, fused into one visit of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparring import StepContainer, Storage
from sparring.errors import InvalidArgumentError
from sparring.names import suggestion
from sparring.table_holder import check_given_width
from sparring.updates import HyperParameters, MethodChoice, UpdateMethod
from sparring.updates.resolving import hyper_from

__all__ = ["MethodRoute"]


class MethodRoute:
    """How `Optimizer` updates tables by an update method.

    Args:
        container: where the tables live.
        tables: their names.
        method: what updates them.
        hyperparameters: of the method, for all tables; `lr` comes with each step.
        by_table: hyper-parameters of single tables, which override these.
        given: the storages that were given open, by table.
    """

    def __init__(
        self,
        container: StepContainer,
        tables: Sequence[str],
        method: UpdateMethod,
        hyperparameters: Mapping[str, Any],
        by_table: Mapping[str, Mapping[str, Any]],
        given: Mapping[str, Storage],
    ) -> None:
        for name in by_table:
            if name not in tables:
                raise InvalidArgumentError(
                    f"tables: none of the layers holds table {name!r}; " + suggestion(name, tables),
                    table=name,
                )
        self._container, self._method = container, method
        self._own_rate = {name for name, own in by_table.items() if "lr" in own}
        self._hypers: dict[str, HyperParameters] = {}
        self.variables: list[Any] = []
        # All that can be refused is refused before the state of the first table is set.
        for name in tables:
            self._hypers[name] = hyper_from(method, {**hyperparameters, **by_table.get(name, {})})
            width = method.state_width(container.tables[name].dim)
            check_given_width(given.get(name), width, f"update method {method.name!r}")
            container.check_state(name, width, method.name)
        for name, hyper in self._hypers.items():
            table = container.tables[name]
            state = method.initial_state(table.dim, hyper, table.computing_dtype)
            container.set_state(name, state, method.name)
            # Opened now: a backend that is missing should not be found out by the first step.
            container.storage(name)

    def step(self, learning_rate: float, iterations: int) -> None:
        """Applies the gradients since the last step."""
        choices = {}
        for name, hyper in self._hypers.items():
            if name not in self._own_rate:
                hyper = hyper.model_copy(update={"lr": learning_rate})  # noqa: PLW2901
            choices[name] = MethodChoice(self._method, hyper, iterations + 1)
        self._container.apply_methods(choices)
