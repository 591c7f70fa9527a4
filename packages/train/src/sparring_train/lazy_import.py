"""Functions and classes that plugins register without importing their modules."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["lazy_import"]

_GC_ALLOCATIONS = 10_000
"""Number of new objects after which Python looks for cycles during an import."""


def lazy_import(home: str) -> Callable[..., Any]:
    """Returns a function that imports ``cli.train:add_train`` of this package when it is called."""
    module, _, name = home.partition(":")

    def call(*arguments: Any) -> Any:
        # torch consists of hundreds of thousands of objects, which collections would scan repeatedly.
        thresholds = gc.get_threshold()
        gc.set_threshold(max(_GC_ALLOCATIONS, thresholds[0]), *thresholds[1:])
        try:
            found = importlib.import_module(f"sparring_train.{module}")
        finally:
            gc.set_threshold(*thresholds)
        return getattr(found, name)(*arguments)

    return call
