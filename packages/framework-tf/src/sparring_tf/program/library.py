"""The ops of exported programs, and the functions that bind tables to them, of this process."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

from sparring.adapter import ProgramError, ProgramLibrary, c_reader
from sparring.errors import PluginError
from sparring_tf.op_library import load_library

__all__ = ["LIBRARY", "ProgramError", "operators", "reading_library"]

LIBRARY = "libsparring_program.so"


@lru_cache(maxsize=1)
def _loaded() -> tuple[Any, Path]:
    functions, library = load_library(LIBRARY)
    read_by = library.sparring_tf_read_programs_by
    read_by.argtypes, read_by.restype = [ctypes.c_char_p], ctypes.c_char_p
    fault = read_by(c_reader().library.encode())
    if fault is not None:
        raise PluginError(f"sparring-packed: {fault.decode(errors='replace')}")
    # TensorFlow gave the name by which it has opened the library.
    return functions, Path(library._name)


def operators() -> tuple[Any, Path]:
    """A function for each op, and the library that they are in.

    Raises:
        PluginError: sparring-packed is not installed, or TensorFlow cannot load the library.
    """
    return _loaded()


@lru_cache(maxsize=1)
def reading_library() -> ProgramLibrary:
    """The functions that bind tables.

    Raises:
        PluginError: as `operators`.
    """
    operators()
    return ProgramLibrary(c_reader().library)
