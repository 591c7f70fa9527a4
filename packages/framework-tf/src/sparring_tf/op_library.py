"""The library of ops, loaded into TensorFlow and connected to core and to Python."""

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
    """Module of `tf.load_op_library`: a function for each op.

    Raises:
        PluginError: the library is missing, or TensorFlow cannot load it.
        VersionError: it is of another version than core.
    """
    loaded, library = load_library(_LIBRARY)
    connect = library.sparring_tf_connect
    connect.argtypes, connect.restype = [ctypes.c_void_p], ctypes.c_int32
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.argtypes, pointer_of.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    if not connect(pointer_of(lookups(), _CAPSULE)):
        raise VersionError(
            "sparring and sparring-tf speak different versions of lookup_abi.h; upgrade both"
        )
    serve = library.sparring_tf_serve
    serve.argtypes, serve.restype = [ctypes.c_void_p, ctypes.c_void_p], None
    serve(*(ctypes.cast(each, ctypes.c_void_p) for each in (OPEN_TABLES, CLOSE_TABLES)))
    # Models are dropped after that too, when no thread may call Python any more.
    atexit.register(serve, None, None)
    return loaded


def load_library(name: str) -> tuple[Any, ctypes.CDLL]:
    """A library of ops of this package: a function for each op, and its C functions.

    Args:
        name: of the file.

    Raises:
        PluginError: it is missing, or TensorFlow cannot load it.
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
            f"sparring-tf was installed without its library {name}; install it again: "
            "pip install --force-reinstall sparring-tf"
        )
    _show_c_api()
    try:
        loaded = tf.load_op_library(str(path))
    except tf.errors.OpError as error:
        raise PluginError(
            f"sparring-tf: TensorFlow {tf.__version__} cannot load {path}: {error}; install a "
            "TensorFlow that sparring-tf was tested with, 2.16 to 2.21"
        ) from error
    return loaded, ctypes.CDLL(str(path))


def _show_c_api() -> None:
    """Lets libraries that are loaded from now on find TensorFlow's C functions.

    Some releases load the library that has them for themselves only.
    """
    path = Path(tf.sysconfig.get_lib()) / "libtensorflow_framework.so.2"
    if path.exists():
        ctypes.CDLL(str(path), mode=os.RTLD_GLOBAL | os.RTLD_NOLOAD)
