"""Rows updated by an optimizer of Keras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparring import StepContainer, Storage
from sparring.errors import InvalidArgumentError
from sparring.step import TableUpdate
from sparring.table_holder import check_given_width
from sparring_tf.keras_shadow import KerasShadow

__all__ = ["NativeRoute"]

# These keep the same state for a row under PyTorch and Keras, in the same order, so rows that one
# has trained the other may go on with.
_SHARED_STATE = ("Adagrad", "Adam", "AdamW")


class NativeRoute:
    """How `Optimizer` updates tables by an optimizer of Keras.

    Args:
        container: where the tables live.
        tables: their names.
        native: the optimizer; it is copied for each table.
        given: the storages that were given open, by table.
    """

    def __init__(
        self,
        container: StepContainer,
        tables: Sequence[str],
        native: Any,
        given: Mapping[str, Storage],
    ) -> None:
        self._container = container
        name = type(native).__name__
        method = name if name in _SHARED_STATE else f"keras.{name}"
        self._rate, self._iterations = 0.0, 0
        self._shadows: dict[str, KerasShadow] = {}
        # All that can be refused is refused before the state of the first table is set.
        for table in tables:
            config = container.tables[table]
            shadow = KerasShadow(native, config.dim, config.computing_dtype.name)
            width = len(shadow.initial_state)
            check_given_width(given.get(table), width, name)
            container.check_state(table, width, method)
            self._shadows[table] = shadow
        for table, shadow in self._shadows.items():
            container.set_state(table, shadow.initial_state, method)
            # Opened now: a backend that is missing should not be found out by the first step.
            container.storage(table)

    @property
    def variables(self) -> list[Any]:
        """What is kept for tables as a whole."""
        return [each for shadow in self._shadows.values() for each in shadow.scalars]

    def step(self, learning_rate: float, iterations: int) -> None:
        """Applies the gradients since the last step."""
        self._rate, self._iterations = learning_rate, iterations
        self._container.apply(self._update)

    def _update(self, updates: Sequence[TableUpdate]) -> None:
        for update in updates:
            shadow = self._shadows.get(update.table.name)
            if shadow is None:
                raise InvalidArgumentError(
                    f"table {update.table.name!r} got gradients, but this Optimizer was made for "
                    f"{', '.join(self._shadows)}; give it all layers whose tables are trained",
                    table=update.table.name,
                )
            update.rows[...] = shadow.step(
                update.rows, update.gradients, self._rate, self._iterations
            )
