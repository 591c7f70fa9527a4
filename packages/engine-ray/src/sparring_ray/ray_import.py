"""Imports Ray, or explains how to install it."""

from __future__ import annotations

import importlib
from typing import Any

from sparring.errors import PluginError

__all__ = ["import_ray"]


def import_ray(module: str) -> Any:
    """Returns a module of Ray.

    Args:
        module: name of the module, such as ``ray.train``.

    Raises:
        PluginError: Ray is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PluginError(
            f"sparring-ray needs {module}, which cannot be imported: {error}; run pip install "
            '"sparring[ray]"'
        ) from error
