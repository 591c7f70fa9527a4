"""The tail of a message about an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["suggestion"]


def suggestion(name: object, known: Iterable[str]) -> str:
    """``did you mean 'x'? known: …`` for a name that is not among `known`."""
    names = list(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    listed = ", ".join(repr(each) for each in names[:20]) or "none"
    if len(names) > 20:
        listed += f", … ({len(names)} in all)"
    return (f"did you mean {close[0]!r}? " if close else "") + f"known: {listed}"
