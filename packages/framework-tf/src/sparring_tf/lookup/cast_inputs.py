"""Detects floats that a functional model casts to ids before a layer receives them.

`keras.Input(dtype="int64")` accepts floats, truncates them, and passes int64 to the layers. The original
input of the model is found in the stack frames of the calls that lead to the layer.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import keras
import tensorflow as tf

__all__ = ["find_float_input"]

_FEW_CALLS = 12
"""Maximum number of stack frames between a layer and the functional model that contains it."""

_CALLING = (".models.sequential", ".layers.layer", ".ops.operation", ".utils.traceback_utils")
"""Modules of Keras that call a model."""


def find_float_input(ids: Any) -> str | None:
    """Returns the dtype of the floats that a functional model cast to these ids, or None.

    Args:
        ids: the input of a layer.
    """
    frame: FrameType | None = sys._getframe(2)
    left = _FEW_CALLS
    while frame is not None and left:
        left -= 1
        if frame.f_code.co_name == "call" and _is_functional_model(frame):
            given = _find_model_input(ids, frame)
            if given is None:
                return None
            dtype = _dtype_name(given)
            if "float" in dtype:
                return dtype
            # The model may be nested in another model.
            ids, left = given, _FEW_CALLS
        frame = frame.f_back
    return None


def _is_functional_model(frame: FrameType) -> bool:
    """Whether the frame is a call of a functional model that has converted its inputs to tensors."""
    is_there = _module(frame).endswith(".models.functional")
    return is_there and isinstance(frame.f_locals.get("inputs"), list)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _find_model_input(ids: Any, frame: FrameType) -> Any:
    """Returns the input from which a model's call got `ids`, or None if `ids` is not an input."""
    model: Any = frame.f_locals.get("self")
    converted = frame.f_locals["inputs"]
    places = [place for place, each in enumerate(converted) if each is ids]
    if not places or len(converted) != len(getattr(model, "inputs", ())):
        return None
    given, caller = None, frame.f_back
    while caller is not None and _module(caller).endswith(_CALLING):
        structure = _argument(caller.f_locals)
        flat = [] if structure is None else _flat(structure, model.inputs)
        if len(flat) == len(converted):
            # Use the outermost call, because a sequential model casts more than once.
            given = flat[places[0]]
        caller = caller.f_back
    return given


def _argument(variables: Mapping[str, Any]) -> Any:
    """Returns the inputs of a model's call before the model converts them."""
    if variables.get("inputs") is not None:
        return variables["inputs"]
    args = variables.get("args")
    if not isinstance(args, tuple):
        return None
    given = [each for each in args if not isinstance(each, keras.Layer)]
    return given[0] if given else None


def _flat(structure: Any, inputs: Sequence[Any]) -> list[Any]:
    """Flattens a structure to one element per input of a model."""
    names = [each.name for each in inputs]
    if isinstance(structure, Mapping) and set(names) <= set(structure):
        return [structure[name] for name in names]
    return list(tf.nest.flatten(structure))


def _dtype_name(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    return "" if dtype is None else str(keras.backend.standardize_dtype(dtype))
