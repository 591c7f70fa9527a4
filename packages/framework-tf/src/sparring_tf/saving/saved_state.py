"""State that TensorFlow keeps in addition to the rows of tables, as arrays: no pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import keras
import numpy as np

from sparring import State
from sparring.errors import InvalidArgumentError
from sparring_tf.saving.anchors import trained_table

__all__ = ["gather_state", "restore_state"]


class _Variables(Protocol):
    @property
    def variables(self) -> list[Any]: ...


def gather_state(**parts: _Variables) -> State:
    """Copies the variables of models, layers and optimizers, for `StepContainer.save`.

    Rows of tables, and their slots, are saved with the tables; of a `sparring_tf.Optimizer` this is
    what it keeps for ordinary variables and for whole tables.

    Args:
        **parts: by name, whatever has `variables`; all of them built.
    """
    arrays, paths = {}, {}
    for name, part in parts.items():
        kept = _kept(part)
        paths[name] = [each.path for each in kept]
        for number, each in enumerate(kept):
            arrays[_array(name, number)] = keras.ops.convert_to_numpy(each)
    return State(paths, arrays)


def restore_state(state: State, **parts: _Variables) -> None:
    """Gives parts back what `gather_state` copied.

    Args:
        state: of `StepContainer.load`.
        **parts: made and built as they were, under the same names; those that are left out stay as
            they are.

    Raises:
        InvalidArgumentError: the state has nothing under a name, or variables of other shapes.
            Nothing was changed.
    """
    values, anchors = [], []
    for name, part in parts.items():
        if not isinstance(state.values, Mapping) or name not in state.values:
            raise InvalidArgumentError(
                f"this state has nothing for {name!r}; it has "
                f"{', '.join(state.values or ()) or 'nothing'}",
                name=name,
            )
        values += _match_state(state, name, _kept(part))
        anchors += list(filter(None, map(trained_table, part.variables)))
    for variable, value in values:
        variable.assign(value)
    for trained in anchors:
        # Rows are loaded by `StepContainer.load`, together with this state.
        trained.agent.on_rows_replaced(trained.name)


def _match_state(state: State, name: str, variables: list[Any]) -> list[tuple[Any, Any]]:
    """Variables with their values to be."""
    saved = state.values[name]
    if not saved and all(_is_constant(each) for each in variables):
        return []  # saved before the model had them; they were given to it
    if len(saved) != len(variables):
        raise InvalidArgumentError(
            f"this state has {len(saved)} variables for {name!r}, which has {len(variables)}; make "
            "and build it as it was",
            name=name,
        )
    matched = []
    for number, (path, variable) in enumerate(zip(saved, variables, strict=True)):
        # Layers of a second model in one process have other paths than those of the first.
        value = np.asarray(state.arrays[_array(name, number)])
        if value.shape != tuple(variable.shape):
            raise InvalidArgumentError(
                f"this state has {path} of shape {value.shape} where {name!r} has {variable.path} "
                f"of {tuple(variable.shape)}; make it as it was",
                name=name,
            )
        matched.append((variable, value))
    return matched


def _kept(part: _Variables) -> list[Any]:
    """The variables of a part that are no anchors of tables."""
    return [each for each in part.variables if trained_table(each) is None]


def _is_constant(variable: Any) -> bool:
    """Whether it is a number that a model was made with, as the mean of ratings."""
    return not variable.trainable and variable.path.endswith("/mean")


def _array(name: str, number: int) -> str:
    return f"{name}.{number}"
