"""Rows updated by an update method of sparring, fused into one visit of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sparring import StepContainer
from sparring.adapter import hypers_by_table, set_learning_rate, set_method_states
from sparring.contracts import MethodChoice, Storage, UpdateMethod

__all__ = ["FusedUpdater"]


class FusedUpdater:
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
        self._container, self._method = container, method
        self._own_rate = {name for name, own in by_table.items() if "lr" in own}
        self._hypers = dict(hypers_by_table(method, tables, hyperparameters, by_table))
        self._rate: float | None = None
        with tf.init_scope():
            self.steps = keras.Variable(
                np.zeros(len(self._hypers)), dtype="int64", trainable=False, name="steps_of_tables"
            )
        set_method_states(container.state, method, self._hypers, given)

    @property
    def variables(self) -> list[Any]:
        """The number of steps of each table: those in which it had a gradient, on any rank."""
        return [self.steps]

    @property
    def routes(self) -> dict[str, str]:
        """Table → the update method."""
        return dict.fromkeys(self._hypers, self._method.name)

    def step(self, learning_rate: float, _: int, /) -> None:
        """Applies the gradients since the last step."""
        steps = self.steps.numpy()
        self._set_rate(learning_rate)
        choices = {
            name: MethodChoice(self._method, hyper, number + 1)
            for (name, hyper), number in zip(self._hypers.items(), steps.tolist(), strict=True)
        }
        stepped = set(self._container.apply_methods(choices))
        self.steps.value.assign(steps + [name in stepped for name in self._hypers])

    def _set_rate(self, rate: float) -> None:
        """The learning rate of this step, for all tables but those with one of their own."""
        if rate == self._rate:
            return
        set_learning_rate(self._method, self._hypers, self._hypers.keys() - self._own_rate, rate)
        self._rate = rate
