"""The release of this package, for messages that name both sides."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

__all__ = ["release"]


@cache
def release() -> str:
    """The name and version, as ``sparring-serve 0.1.0``."""
    try:
        return f"sparring-serve {version('sparring-serve')}"
    except PackageNotFoundError:
        return "sparring-serve, not installed"
