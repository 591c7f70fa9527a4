"""Updates rows with one of sparring's update methods, in one pass over the rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sparring import StepContainer
from sparring.adapter import (
    TableScalars,
    hypers_by_table,
    set_learning_rate,
    set_method_states,
    uses_steps,
)
from sparring.contracts import MethodChoice, Storage, UpdateMethod

__all__ = ["FusedUpdater"]


class FusedUpdater:
    """Implements `Optimizer` for update methods.

    Args:
        container: container of the tables.
        tables: names of the tables.
        method: the update method.
        hyperparameters: hyper-parameters for all tables; `lr` is an argument of each step.
        by_table: table → hyper-parameters that override `hyperparameters`.
        given: table → storage, for tables whose storage was passed as an open `Storage`.
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
        self._unknown: set[str] = set()
        """Tables whose rows have state of an unknown number of steps."""
        set_method_states(container.state, method, self._hypers, given)
        with tf.init_scope():
            for place, name in enumerate(self._hypers):
                # Without a reference to this object, which would be a cycle with the container.
                read = partial(_read_steps, self.steps, place)
                write = partial(_continue_steps, self.steps, place, self._unknown, name)
                container.entry(name).attach_scalars(TableScalars(method.name, read, write))

    @property
    def variables(self) -> list[Any]:
        """Number of steps of each table in which it had a gradient on any rank."""
        return [self.steps]

    @property
    def routes(self) -> dict[str, str]:
        """Table → name of the update method."""
        return dict.fromkeys(self._hypers, self._method.name)

    def step(self, learning_rate: float, _: int, /) -> None:
        """Applies the gradients that were collected since the last step."""
        self._set_rate(learning_rate)
        if self._unknown:
            self._guess_steps()
        steps = self.steps.numpy()
        choices = {
            name: MethodChoice(self._method, hyper, number + 1)
            for (name, hyper), number in zip(self._hypers.items(), steps.tolist(), strict=True)
        }
        stepped = set(self._container.apply_methods(choices))
        self.steps.value.assign(steps + [name in stepped for name in self._hypers])

    def _guess_steps(self) -> None:
        """Continues tables that count 0 steps, but have state, from the steps of the container."""
        steps, known = self.steps.numpy().copy(), self._container.counters.steps
        for place, (name, hyper) in enumerate(self._hypers.items()):
            parts = self._container.entry(name).parts
            has_rows = any(part.storage is not None and part.storage.size for part in parts)
            is_alone = self._container.collective.world_size == 1
            # Others were loaded by Keras, with the variables of the optimizer.
            if name not in self._unknown or steps[place] or (is_alone and not has_rows):
                continue
            steps[place] = known
            if uses_steps(self._method, hyper):
                warnings.warn(
                    f"Optimizer: the rows of table {name!r} have optimizer state of an unknown number of "
                    f"steps; counting continues from the {known} steps of the container. Load a file "
                    "that contains the optimizer, or, to reset the state, call "
                    f"container.drop_state({name!r}) before creating the optimizer",
                    stacklevel=2,
                )
        self.steps.value.assign(steps)
        self._unknown.clear()

    def _set_rate(self, rate: float) -> None:
        """Sets the learning rate of this step for all tables that do not override it."""
        if rate == self._rate:
            return
        set_learning_rate(self._method, self._hypers, self._hypers.keys() - self._own_rate, rate)
        self._rate = rate


def _read_steps(steps: keras.Variable, place: int) -> dict[str, int]:
    return {"step": int(steps.numpy()[place])}


def _continue_steps(
    steps: keras.Variable,
    place: int,
    unknown: set[str],
    table: str,
    scalars: Mapping[str, Any] | None,
) -> None:
    """Continues the steps of a former optimizer of the rows, or of loaded rows."""
    unknown.discard(table)
    if scalars is not None:
        values = steps.numpy().copy()
        values[place] = int(scalars.get("step", 0))
        steps.assign(values)
    else:
        unknown.add(table)
