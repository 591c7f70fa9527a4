"""Lazy imports of public modules: names are imported from their defining module on first use."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path

from sparring._loader import load_native

__all__ = ["attach_stub"]


def attach_stub(
    path: str, namespace: dict[str, object]
) -> tuple[Callable[[str], object], list[str]]:
    """Returns ``__getattr__`` and ``__all__`` for a module whose names are listed in its stub.

    The stub contains lines ``from module import name as name``, which type checkers also read.

    Args:
        path: ``__file__`` of the module; the stub is next to it.
        namespace: ``globals()`` of the module, where imported names are stored.
    """
    stub = ast.parse(Path(path).with_suffix(".pyi").read_bytes())
    home_of = {
        alias.name: str(line.module)
        for line in stub.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }

    def get(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        home = home_of[name]
        module = load_native() if home == "sparring._native" else importlib.import_module(home)
        found = namespace[name] = getattr(module, name)
        return found

    return get, sorted(home_of)
