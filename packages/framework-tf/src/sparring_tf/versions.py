"""Which TensorFlow and Keras there are, and whether they will do."""

from __future__ import annotations

import importlib.util
import os
import re
import warnings
from importlib import metadata

from sparring.errors import PluginError

__all__ = ["OLDEST", "NEWEST_TESTED", "check_tensorflow", "why_unavailable"]

OLDEST = (2, 16)
"""The first release that brings Keras 3."""
NEWEST_TESTED = (2, 21)

_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly")


def why_unavailable() -> str | None:
    """Why this adapter cannot run here, and what to do; None if it can. Imports no TensorFlow."""
    if importlib.util.find_spec("tensorflow") is None:
        return "TensorFlow is not installed; run: pip install tensorflow (or tensorflow-cpu)"
    found = _installed()
    if found is not None and found < OLDEST:
        return (
            f"TensorFlow {_text(found)} is installed, and sparring-tf needs {_text(OLDEST)} or "
            "newer, the first with Keras 3; run: pip install --upgrade tensorflow"
        )
    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        return (
            "TF_USE_LEGACY_KERAS is set, and sparring-tf works with Keras 3; unset it and start "
            "again"
        )
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        return (
            f"KERAS_BACKEND is {os.environ['KERAS_BACKEND']!r}, and sparring-tf works with the "
            "backend 'tensorflow'; unset it and start again"
        )
    return None


def check_tensorflow() -> None:
    """Raises where this adapter cannot run; warns of a TensorFlow that it was not tested with.

    Raises:
        PluginError: TensorFlow is missing or too old, or Keras is not what is needed.
    """
    reason = why_unavailable()
    if reason is not None:
        raise PluginError(f"sparring-tf: {reason}")
    found = _installed()
    if found is not None and found > NEWEST_TESTED:
        warnings.warn(
            f"sparring-tf was tested with TensorFlow {_text(OLDEST)} to {_text(NEWEST_TESTED)}, "
            f"found {_text(found)}; going on with it",
            stacklevel=3,
        )


def _installed() -> tuple[int, int] | None:
    for name in _DISTRIBUTIONS:
        try:
            found = re.match(r"(\d+)\.(\d+)", metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
        if found is not None:
            return int(found[1]), int(found[2])
    return None


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
