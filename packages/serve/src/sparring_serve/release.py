"""Release of this package, for error messages that name both sides."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

__all__ = ["release"]


@cache
def release() -> str:
    """Returns the name and version, for example ``sparring-serve 0.1.0``."""
    try:
        return f"sparring-serve {version('sparring-serve')}"
    except PackageNotFoundError:
        return "sparring-serve, not installed"
