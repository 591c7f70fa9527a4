"""State of TensorFlow in addition to the rows of tables, saved as arrays without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import keras
import numpy as np

from sparring import State
from sparring.errors import InvalidArgumentError
from sparring_tf.saving.anchors import trained_table

__all__ = ["gather_state", "kept_variables", "restore_state"]


class _Variables(Protocol):
    @property
    def variables(self) -> list[Any]: ...


def gather_state(**parts: _Variables) -> State:
    """Copies the variables of models, layers and optimizers, for `StepContainer.save`.

    Rows of tables and their slots are saved with the tables. The state of a `sparring_tf.Optimizer`
    consists of its state for ordinary variables and for whole tables.

    Args:
        **parts: name → object with `variables`, which must be built.
    """
    arrays, paths = {}, {}
    for name, part in parts.items():
        kept = kept_variables(part)
        paths[name] = [each.path for each in kept]
        for number, each in enumerate(kept):
            arrays[_array(name, number)] = keras.ops.convert_to_numpy(each)
    return State(paths, arrays)


def restore_state(state: State, **parts: _Variables) -> None:
    """Restores the variables that `gather_state` copied.

    Args:
        state: a result of `StepContainer.load`.
        **parts: the built objects under the names that were saved. Saved parts that are left out are
            ignored.

    Raises:
        InvalidArgumentError: the state contains nothing under a name, or variables of other shapes.
            Nothing was changed.
    """
    values, anchors = [], []
    for name, part in parts.items():
        if not isinstance(state.values, Mapping) or name not in state.values:
            raise InvalidArgumentError(
                f"restore_state: the state contains nothing for {name!r}; it contains "
                f"{', '.join(state.values or ()) or 'nothing'}",
                name=name,
            )
        values += _match_state(state, name, kept_variables(part))
        anchors += list(filter(None, map(trained_table, part.variables)))
    for variable, value in values:
        variable.assign(value)
    for trained in anchors:
        # Rows are loaded by `StepContainer.load`, together with this state.
        trained.agent.on_rows_replaced(trained.name)


def _match_state(state: State, name: str, variables: list[Any]) -> list[tuple[Any, Any]]:
    """Returns pairs of variable and saved value."""
    saved = state.values[name]
    if not saved and all(_is_constant(each) for each in variables):
        return []  # saved before the model had these variables, which are arguments of its constructor
    if len(saved) != len(variables):
        raise InvalidArgumentError(
            f"restore_state: the state has {len(saved)} variables for {name!r}, which has "
            f"{len(variables)}; create and build it as it was saved",
            name=name,
        )
    matched = []
    for number, (path, variable) in enumerate(zip(saved, variables, strict=True)):
        # Not compared by path, because a second model in the same process has other paths.
        value = np.asarray(state.arrays[_array(name, number)])
        if value.shape != tuple(variable.shape):
            raise InvalidArgumentError(
                f"restore_state: the state has {path} of shape {value.shape}, but {name!r} has "
                f"{variable.path} of shape {tuple(variable.shape)}; create it as it was saved",
                name=name,
            )
        matched.append((variable, value))
    return matched


def kept_variables(part: _Variables) -> list[Any]:
    """Returns the variables of a part that are not anchors of tables."""
    return [each for each in part.variables if trained_table(each) is None]


def _is_constant(variable: Any) -> bool:
    """Whether a variable is an argument of a model's constructor, such as the mean of ratings."""
    return not variable.trainable and variable.path.endswith("/mean")


def _array(name: str, number: int) -> str:
    return f"{name}.{number}"
