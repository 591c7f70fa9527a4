"""sparring: distributed, dynamic embedding tables for recommender systems.

Each name is imported from its module when it is first used. ``__init__.pyi`` lists the names.
"""

from __future__ import annotations

from sparring._lazy import attach_stub
from sparring._loader import load_native

_name, __all__ = attach_stub(__file__, globals())


def __getattr__(name: str) -> object:
    # The native library is only loaded here, so that all its load errors have a clear message.
    return load_native() if name == "_native" else _name(name)
