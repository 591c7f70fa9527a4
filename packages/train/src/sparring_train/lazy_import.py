"""Functions and classes that plugins register without importing their modules."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["lazy_import"]


def lazy_import(home: str) -> Callable[..., Any]:
    """Returns a function that imports ``cli.train:add_train`` of this package when it is called."""
    module, _, name = home.partition(":")

    def call(*arguments: Any) -> Any:
        return getattr(importlib.import_module(f"sparring_train.{module}"), name)(*arguments)

    return call
