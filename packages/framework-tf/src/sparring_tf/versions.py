"""Finds the installed versions of TensorFlow and Keras, and checks that they are supported."""

from __future__ import annotations

import importlib.util
import os
import re
import warnings
from importlib import metadata

from sparring.errors import PluginError

__all__ = ["OLDEST", "NEWEST_TESTED", "check_tensorflow", "why_unavailable"]

OLDEST = (2, 16)
"""First release with Keras 3."""
NEWEST_TESTED = (2, 21)

_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly")


def why_unavailable() -> str | None:
    """Returns why this adapter cannot run here and how to fix it, or None. Does not import TensorFlow."""
    if importlib.util.find_spec("tensorflow") is None:
        return "TensorFlow is not installed; run: pip install tensorflow (or tensorflow-cpu)"
    found = _installed()
    if found is not None and found < OLDEST:
        return (
            f"TensorFlow {_text(found)} is installed, but sparring-tf requires {_text(OLDEST)} or "
            "newer, the first release with Keras 3; run: pip install --upgrade tensorflow"
        )
    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        return (
            "TF_USE_LEGACY_KERAS is set, but sparring-tf requires Keras 3; unset it and restart "
            "Python"
        )
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        return (
            f"KERAS_BACKEND is {os.environ['KERAS_BACKEND']!r}, but sparring-tf requires the "
            "backend 'tensorflow'; unset it and restart Python"
        )
    return None


def check_tensorflow() -> None:
    """Raises an error if this adapter cannot run, and warns about untested versions of TensorFlow.

    Raises:
        PluginError: TensorFlow is missing or too old, or Keras is not configured as required.
    """
    reason = why_unavailable()
    if reason is not None:
        raise PluginError(f"sparring-tf: {reason}")
    found = _installed()
    if found is not None and found > NEWEST_TESTED:
        warnings.warn(
            f"sparring-tf was tested with TensorFlow {_text(OLDEST)} to {_text(NEWEST_TESTED)}, "
            f"found {_text(found)}; install a tested version if errors occur",
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
