"""Functions and classes that a plugin registers: their modules are imported by the first call."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["lazy_import"]


def lazy_import(home: str) -> Callable[..., Any]:
    """A function or class of this package, as ``cli.train:add_train``, to be called."""
    module, _, name = home.partition(":")

    def call(*arguments: Any) -> Any:
        return getattr(importlib.import_module(f"sparring_train.{module}"), name)(*arguments)

    return call
