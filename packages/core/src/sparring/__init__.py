"""sparring: distributed, dynamic embedding tables for recommender systems.

Each name is imported from its module when it is first used. ``__init__.pyi`` lists the names.
"""

from __future__ import annotations

from sparring._lazy import attach_stub
from sparring._loader import load_native

_name, __all__ = attach_stub(__file__, globals())


def __getattr__(name: str) -> object:
    # The only way to the native library: what is wrong with it is said here.
    return load_native() if name == "_native" else _name(name)
