"""Updates rows with a Keras optimizer: by an equivalent update method, or by the optimizer itself."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sparring import StepContainer
from sparring.adapter import TableScalars, TableState, TableUpdate, set_states
from sparring.contracts import HyperParameters, MethodChoice, Storage
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_tf.optim.keras_shadow import KerasShadow
from sparring_tf.optim.known_optimizers import KnownOptimizer, known_optimizer

__all__ = ["NativeUpdater"]

_log = logging.getLogger(__name__)

# Under PyTorch and Keras, these optimizers store the same state in a row, in the same order.
# Therefore each framework can continue to train rows of the other.
_SHARED_STATE = ("Adagrad", "Adam", "AdamW")


class NativeUpdater:
    """Implements `Optimizer` for Keras optimizers.

    Each step takes one of two routes, which use the same columns of rows. On the route ``fused``,
    an update method that computes the same rows takes the step (`known_optimizers`). On the route
    ``shadow``, the optimizer itself takes the step, over rows in one variable per dim and dtype.

    Args:
        container: container of the tables.
        tables: names of the tables.
        native: the optimizer. It is copied once per dim and dtype.
        given: table → storage, for tables whose storage was passed as an open `Storage`.
        update: ``auto``, ``shadow`` or ``method``; see `Optimizer`.
        iterations: number of steps of the `Optimizer`.

    Raises:
        UnsupportedError: `update` is ``method``, but no update method computes the same rows.
    """

    def __init__(
        self,
        container: StepContainer,
        tables: Sequence[str],
        native: Any,
        given: Mapping[str, Storage],
        update: str,
        iterations: keras.Variable,
    ) -> None:
        self._container = container
        name = type(native).__name__
        method = name if name in _SHARED_STATE else f"keras.{name}"
        self._rate, self._iterations = 0.0, 0
        self._shadows: dict[str, KerasShadow] = {}
        layouts: dict[tuple[int, str], KerasShadow] = {}
        for table in tables:
            config = container.tables[table]
            # If the columns of the table are sharded, the optimizer updates one block of them.
            width = config.dim // container.layout(table).num_blocks
            layout = width, config.computing_dtype.name
            if layout not in layouts:
                layouts[layout] = KerasShadow(native, *layout)
            self._shadows[table] = layouts[layout]
        self.name, self._route, self._must_fuse = name, "", update == "method"
        self._known: KnownOptimizer | str = "update='shadow' was given"
        if update != "shadow":
            self._known = known_optimizer(
                native, [(shadow, *layout) for layout, shadow in layouts.items()]
            )
        known = self._known
        self._check_fused(known)
        if self._must_fuse and isinstance(known, KnownOptimizer):
            method = known.method.name
        states = {
            table: TableState(
                method, shadow.initial_row(container.tables[table].dim), shadow.why_coupled
            )
            for table, shadow in self._shadows.items()
        }
        set_states(container.state, states, given, name)
        self._former: dict[str, int | None] = {}
        """Table → number of steps before its rows came to this optimizer; None if it is unknown."""
        with tf.init_scope():
            for table in tables:
                # Without a reference to this object, which would be a cycle with the container.
                read = partial(_read_steps, iterations, self._former, table)
                write = partial(_note_steps, self._former, table)
                container.entry(table).attach_scalars(TableScalars(method, read, write))
        self._note("shadow: " + known if isinstance(known, str) else known.method.name)

    @property
    def routes(self) -> dict[str, str]:
        """Table → the update method of the last step, or ``shadow`` and the reason."""
        return dict.fromkeys(self._shadows, self._route)

    @property
    def variables(self) -> list[Any]:
        """Variables that belong to tables as a whole."""
        shadows = {id(shadow): shadow for shadow in self._shadows.values()}
        return [each for shadow in shadows.values() for each in shadow.scalars]

    def step(self, learning_rate: float, iterations: int, /) -> None:
        """Applies the gradients that were collected since the last step."""
        if self._former and iterations == 0:
            self._warn_of_former_steps()
        choices = self._choices(learning_rate, iterations)
        self._check_fused(choices)

        def settings() -> dict[str, Any]:
            return {"learning_rate": float(learning_rate), "iterations": int(iterations)}

        if isinstance(choices, str):
            self._note("shadow: " + choices)
            self._rate, self._iterations = learning_rate, iterations
            self._container.apply(self._update, settings=settings)
            self._former.clear()
            return
        for choice in choices.values():
            self._note(choice.method.name)
        self._container.apply_methods(choices, settings=settings)
        self._former.clear()

    def _warn_of_former_steps(self) -> None:
        """Warns if rows have state of steps that `iterations` does not count, but that their updates
        depend on."""
        for table, steps in self._former.items():
            parts = self._container.entry(table).parts
            has_rows = any(part.storage is not None and part.storage.size for part in parts)
            if steps == 0 or not has_rows or not self._shadows[table].uses_iterations():
                continue
            known = "an unknown number of" if steps is None else str(steps)
            given = "the number of steps" if steps is None else str(steps)
            warnings.warn(
                f"Optimizer: the rows of table {table!r} have the state of {known} steps, but "
                f"optimizer.iterations is 0, so {self.name} treats this step as their first; call "
                f"optimizer.iterations.assign({given}) before the first step, or, to reset the state, "
                f"container.drop_state({table!r}) before creating the optimizer",
                stacklevel=2,
            )

    def _choices(self, rate: float, iterations: int) -> dict[str, MethodChoice] | str:
        """Returns the update method of each table in this step, or the reason why there is none."""
        known = self._known
        if isinstance(known, str):
            return known
        hypers: dict[str, HyperParameters] = {}
        choices = {}
        for name in self._shadows:
            dtype = self._container.tables[name].computing_dtype.name
            if dtype not in hypers:
                hyper = known.hyper(rate, iterations, dtype)
                if isinstance(hyper, str):
                    return hyper
                hypers[dtype] = hyper
            step = self._container.state.counters.steps + 1
            choices[name] = MethodChoice(known.method, hypers[dtype], step)
        return choices

    def _check_fused(self, found: object) -> None:
        if self._must_fuse and isinstance(found, str):
            raise UnsupportedError(
                f"update='method': no update method computes the same rows as {self.name}: {found}; "
                "use SGD, Adagrad, RMSprop or Adam with settings that an update method supports",
                optimizer=self.name,
            )

    def _note(self, route: str) -> None:
        if route != self._route:
            tables = ", ".join(self._shadows)
            _log.info("%s updates tables %s by route %s", self.name, tables, route)
            self._route = route

    def _update(self, updates: Sequence[TableUpdate]) -> None:
        grouped: dict[int, list[TableUpdate]] = {}
        for update in updates:
            shadow = self._shadows.get(update.table.name)
            if shadow is None:
                raise InvalidArgumentError(
                    f"table {update.table.name!r} has gradients, but this Optimizer was created for "
                    f"{', '.join(self._shadows)}; give it all layers whose tables are trained",
                    table=update.table.name,
                )
            grouped.setdefault(id(shadow), []).append(update)
        for group in grouped.values():
            # Tables of one layout are updated in one call, because each call of a graph has a fixed cost.
            shadow = self._shadows[group[0].table.name]
            rows = shadow.step(
                _concatenate([update.rows for update in group]),
                _concatenate([update.gradients for update in group]),
                self._rate,
                self._iterations,
            )
            begin = 0
            for update in group:
                end = begin + len(update.rows)
                update.rows[...] = rows[begin:end]
                begin = end


def _concatenate(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _read_steps(
    iterations: keras.Variable, former: Mapping[str, int | None], table: str
) -> dict[str, int]:
    # The name that PyTorch's optimizers use, which can continue rows of the same state.
    return {"step": int(iterations.numpy()) or former.get(table) or 0}


def _note_steps(
    former: dict[str, int | None], table: str, scalars: Mapping[str, Any] | None
) -> None:
    """Notes the steps of a former optimizer of the rows, or of loaded rows."""
    former[table] = None if scalars is None else int(scalars.get("step", 0))
