"""The tail of a message about an unknown name."""

from __future__ import annotations

from collections.abc import Iterable

from sparring.names import closest_name

__all__ = ["suggestion"]

_MOST_SHOWN = 20


def suggestion(name: object, known: Iterable[str]) -> str:
    """``did you mean 'x'? known: …`` for a name that is not among `known`."""
    names = list(known)
    meant = closest_name(str(name), names)
    listed = ", ".join(repr(each) for each in names[:_MOST_SHOWN]) or "none"
    if len(names) > _MOST_SHOWN:
        listed += f", … ({len(names)} in all)"
    return (f"did you mean {meant!r}? " if meant else "") + f"known: {listed}"
