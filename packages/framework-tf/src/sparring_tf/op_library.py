"""Loads the library of ops into TensorFlow and connects it to core and to Python."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import tensorflow as tf

from sparring.adapter import lookups
from sparring.errors import PluginError, VersionError
from sparring_tf.opened_tables import CLOSE_TABLES, OPEN_TABLES

__all__ = ["load_library", "ops"]

_LIBRARY = "libsparring_lookup_ops.so"
_CAPSULE = b"sparring.lookups"


@lru_cache(maxsize=1)
def ops() -> Any:
    """Returns the module of `tf.load_op_library`, which has one function per op.

    Raises:
        PluginError: the library is missing, or TensorFlow cannot load it.
        VersionError: sparring and sparring-tf were built with different versions of the lookup ABI.
    """
    loaded, library = load_library(_LIBRARY)
    connect = library.sparring_tf_connect
    connect.argtypes, connect.restype = [ctypes.c_void_p], ctypes.c_int32
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.argtypes, pointer_of.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    if not connect(pointer_of(lookups(), _CAPSULE)):
        raise VersionError(
            "sparring and sparring-tf use different versions of lookup_abi.h; upgrade both: "
            "pip install --upgrade sparring sparring-tf"
        )
    serve = library.sparring_tf_serve
    serve.argtypes, serve.restype = [ctypes.c_void_p, ctypes.c_void_p], None
    serve(*(ctypes.cast(each, ctypes.c_void_p) for each in (OPEN_TABLES, CLOSE_TABLES)))
    # Models may be deleted after Python's exit, when no thread may call Python any more.
    atexit.register(serve, None, None)
    return loaded


def load_library(name: str) -> tuple[Any, ctypes.CDLL]:
    """Loads a library of ops of this package, and returns its Python functions and its C functions.

    Args:
        name: name of the file.

    Raises:
        PluginError: the library is missing, or TensorFlow cannot load it.
    """
    path = next(
        (
            candidate
            for folder in sys.modules[__package__].__path__
            if (candidate := Path(folder) / name).exists()
        ),
        None,
    )
    if path is None:
        raise PluginError(
            f"the library {name} of sparring-tf is missing; install it again: "
            "pip install --force-reinstall sparring-tf"
        )
    _show_c_api()
    try:
        loaded = tf.load_op_library(str(path))
    except tf.errors.OpError as error:
        raise PluginError(
            f"TensorFlow {tf.__version__} cannot load {path} of sparring-tf: {error}; install a "
            "TensorFlow version that sparring-tf was tested with, 2.16 to 2.21"
        ) from error
    return loaded, ctypes.CDLL(str(path))


def _show_c_api() -> None:
    """Makes TensorFlow's C functions visible to libraries that are loaded later.

    Some releases of TensorFlow load the library that contains them without making them visible.
    """
    path = Path(tf.sysconfig.get_lib()) / "libtensorflow_framework.so.2"
    if path.exists():
        ctypes.CDLL(str(path), mode=os.RTLD_GLOBAL | os.RTLD_NOLOAD)
