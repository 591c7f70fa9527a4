"""Loading of the native module, and of the oneTBB library that it needs.

``_native`` expects ``libtbb.so.12`` in the ``lib`` folder of its environment, where the ``tbb`` wheel
installs it. ``pip install --target`` and similar commands install it elsewhere. In this case the library
is found in the file list of the wheel, and loaded before ``_native``.
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
    """Loads and returns ``sparring._native``.

    Raises:
        ImportError: it cannot be loaded; the message contains the reason and the fix.
    """
    failure = native_failure()
    if failure is not None:
        raise ImportError(f"{failure}. `sparring doctor` shows details")
    return importlib.import_module("sparring._native")


def native_failure() -> str | None:
    """Loads ``sparring._native``, and returns the reason if it fails.

    Returns:
        The reason and the fix, or None if the module is loaded. No error is raised, because
        ``sparring doctor`` and pytest must start in any case.
    """
    try:
        _load()
    # A module that was built for another platform may raise any exception.
    except Exception as error:
        reason = " ".join(str(error).split())
        lost = "tbb" if _LIBRARY in reason else "sparring"
        return (
            f"the native library of sparring cannot be loaded ({type(error).__name__}: {reason}); "
            f"install it again: pip install --force-reinstall {lost}"
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
            raise ImportError(f"sparring needs {_LIBRARY}, which was not found") from error
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
