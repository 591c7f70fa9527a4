"""Loads the ops of exported programs, and the functions that bind tables to them in this process."""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.errors import PluginError, ProgramError
from sparring_tf.op_library import load_library

if TYPE_CHECKING:
    from sparring_packed import ProgramLibrary

__all__ = [
    "LIBRARY",
    "ProgramError",
    "load_operators",
    "import_packed",
    "load_reader",
]

LIBRARY = "libsparring_program.so"


def import_packed() -> Any:
    """Returns the package `sparring_packed`, which writes and loads bundles of programs.

    Raises:
        PluginError: sparring-packed is not installed.
    """
    try:
        import sparring_packed
    except ImportError as error:
        raise PluginError(
            "exported programs read serving snapshots with sparring-packed, which is not installed; "
            "run: pip install sparring-packed"
        ) from error
    return sparring_packed


@lru_cache(maxsize=1)
def _loaded() -> tuple[Any, Path]:
    functions, library = load_library(LIBRARY)
    read_by = library.sparring_tf_read_programs_by
    read_by.argtypes, read_by.restype = [ctypes.c_char_p], ctypes.c_char_p
    fault = read_by(os.fsencode(import_packed().library_path()))
    if fault is not None:
        raise PluginError(
            f"the library of sparring-packed cannot be loaded: {fault.decode(errors='replace')}; install "
            "it again: pip install --force-reinstall sparring-packed"
        )
    # The program must load the library by the same name as TensorFlow.
    return functions, Path(library._name)


def load_operators() -> tuple[Any, Path]:
    """Returns one function per op, and the path of their library.

    Raises:
        PluginError: sparring-packed is not installed, or TensorFlow cannot load the library.
    """
    return _loaded()


@lru_cache(maxsize=1)
def load_reader() -> ProgramLibrary:
    """Returns the functions that bind tables.

    Raises:
        PluginError: sparring-packed is not installed, or TensorFlow cannot load the library.
    """
    load_operators()
    made: ProgramLibrary = import_packed().ProgramLibrary()
    return made
