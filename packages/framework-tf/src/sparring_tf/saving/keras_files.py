"""Which file Keras saves to, or loads from, at the moment.

Keras hands a layer an open store, and while it loads a ``.keras`` file not even the store knows where
is. What knows is the call further up: ``filepath`` of `keras.models.load_model`, `Model.save` and
their like, the public name of that argument in all of Keras 3.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from sparring.errors import UnsupportedError

__all__ = ["check_file_contains_rows", "find_keras_file"]

_CALLS = frozenset(
    {"load_model", "load_weights", "load_weights_only", "save_model", "save_weights"}
    | {"save", "save_weights_only"}
)


def find_keras_file() -> Path:
    """The file, or the folder that is saved in place of one.

    Raises:
        UnsupportedError: it is an open file, or is on another machine.
    """
    given = _filepath()
    if isinstance(given, (str, os.PathLike)) and "://" not in os.fspath(given):
        return Path(given).absolute()
    found = "an open file" if given is None else repr(given)
    raise UnsupportedError(
        "rows of tables are in a snapshot next to the file of Keras, and nothing can be stored next to "
        f"{found}; give Keras a path on a file system of this machine"
    )


def check_file_contains_rows(layer: str) -> None:
    """Refuses Keras's old ``.h5`` file of a whole model, for which layers give their weights alone.

    Raises:
        UnsupportedError: such a file is being written.
    """
    for name, frame in _calls():
        if name == "save_model_to_hdf5" and ".legacy." in frame.f_globals["__name__"]:
            raise UnsupportedError(
                f"an .h5 file of a whole model has no room for the rows of layer {layer!r}; save it as "
                "….keras, or its weights alone as ….weights.h5",
                layer=layer,
            )


def _filepath() -> object:
    """Of the innermost call of Keras that takes one."""
    for name, frame in _calls():
        if name in _CALLS:
            given: object = frame.f_locals.get("filepath")
            return given
    return None


def _calls() -> Iterator[tuple[str, FrameType]]:
    """Functions of Keras that are under way, the innermost first."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__", "").startswith("keras."):
            yield frame.f_code.co_name, frame
