"""Loads the native module, and the run-time library of oneTBB that it needs.

``_native`` looks for ``libtbb.so.12`` in the ``lib`` folder of its own environment, where the ``tbb``
wheel puts it. ``pip install --target`` and the like put it elsewhere; the wheel's own list of files
says where, and loading it first satisfies the dynamic linker.
"""

from __future__ import annotations

import ctypes
import importlib
from importlib import metadata
from pathlib import Path
from types import ModuleType

__all__ = ["load_native", "native_failure"]

_LIBRARY = "libtbb.so.12"


def load_native() -> ModuleType:
    """``sparring._native``, loaded.

    Raises:
        ImportError: it cannot be loaded; the message says why and what to do.
    """
    failure = native_failure()
    if failure is not None:
        raise ImportError(f"{failure}. `sparring doctor` says more")
    return importlib.import_module("sparring._native")


def native_failure() -> str | None:
    """Imports ``sparring._native``; where the linker finds no oneTBB, loads it first.

    Returns:
        Why it cannot be loaded and what to do, or None if it is. Nothing is raised, because
        ``sparring doctor`` and pytest have to start in any case.
    """
    try:
        _load()
    # A module that was built for something else may fail in any way.
    except Exception as error:
        reason = " ".join(str(error).split())
        return (
            f"the native library of sparring cannot be loaded ({type(error).__name__}: {reason}); "
            "install it again: pip install --force-reinstall sparring"
        )
    return None


def _load() -> None:
    try:
        importlib.import_module("sparring._native")
    except ImportError as error:
        if _LIBRARY not in str(error):
            raise
        path = _installed_library()
        if path is None:
            raise ImportError(
                f"sparring needs {_LIBRARY} and found none; run: pip install tbb"
            ) from error
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        importlib.import_module("sparring._native")


def _installed_library() -> Path | None:
    try:
        files = metadata.files("tbb") or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == _LIBRARY:
            path = Path(str(file.locate()))
            if path.exists():
                return path
    return None
