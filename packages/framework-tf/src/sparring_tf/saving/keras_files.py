"""Finds the file that Keras is currently saving to or loading from.

Keras passes an open store to a layer. While a ``.keras`` file is loaded, the store does not contain the
path. The path is found in the stack frames, as the argument ``filepath`` of `keras.models.load_model`,
`Model.save` and similar functions. This is its public name in all releases of Keras 3.
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
    """Returns the path of the file, or of the folder that is saved instead of a file.

    Raises:
        UnsupportedError: the file is an open file, or is not on a file system of this machine.
    """
    given = _filepath()
    if isinstance(given, (str, os.PathLike)) and "://" not in os.fspath(given):
        return Path(given).absolute()
    found = "an open file" if given is None else repr(given)
    raise UnsupportedError(
        "rows of tables are saved in a snapshot next to the file of Keras, but nothing can be stored "
        f"next to {found}; pass a path on a file system of this machine to Keras"
    )


def check_file_contains_rows(layer: str) -> None:
    """Rejects Keras's legacy ``.h5`` file of a whole model, which only contains the weights of layers.

    Raises:
        UnsupportedError: Keras is writing such a file.
    """
    for name, frame in _calls():
        if name == "save_model_to_hdf5" and ".legacy." in frame.f_globals["__name__"]:
            raise UnsupportedError(
                f"an .h5 file of a whole model cannot contain the rows of layer {layer!r}; save it as "
                "….keras, or save only its weights as ….weights.h5",
                layer=layer,
            )


def _filepath() -> object:
    """Returns the path that was passed to the innermost function of Keras that takes one."""
    for name, frame in _calls():
        if name in _CALLS:
            given: object = frame.f_locals.get("filepath")
            return given
    return None


def _calls() -> Iterator[tuple[str, FrameType]]:
    """Yields the active functions of Keras, the innermost first."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__", "").startswith("keras."):
            yield frame.f_code.co_name, frame
