"""Faces of packages: names that are imported from their homes when they are first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from sparring._loader import load_native

__all__ = ["names_from"]


def names_from(face: dict[str, object], homes: Mapping[str, str]) -> Callable[[str], object]:
    """Returns a module's ``__getattr__``, which imports a name from its home and keeps it.

    Args:
        face: ``globals()`` of the module.
        homes: full name of a module → the names that it is the home of, with spaces.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def get(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {face['__name__']!r} has no attribute {name!r}")
        home = home_of[name]
        module = load_native() if home == "sparring._native" else importlib.import_module(home)
        found = getattr(module, name)
        face[name] = found
        return found

    return get
