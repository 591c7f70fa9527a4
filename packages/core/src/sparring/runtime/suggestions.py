"""Suggestions for misspelled names in error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["find_closest_name", "format_suggestion"]

_MAX_SHOWN = 20


def find_closest_name(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that is most similar to another one, or None if none is close.

    Args:
        name: the misspelled name. Case is ignored.
        known: names to choose from.
    """
    by_lower_case = {candidate.lower(): candidate for candidate in known}
    # Bounded, because the time grows with the square of the length and names come from users.
    matches = difflib.get_close_matches(name.lower()[:200], by_lower_case, n=1, cutoff=0.6)
    return by_lower_case[matches[0]] if matches else None


def format_suggestion(name: object, known: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name: ``did you mean 'x'? known: …``.

    Args:
        name: the unknown name.
        known: names to choose from. The message lists at most 20 of them.
    """
    names = list(known)
    meant = find_closest_name(str(name), names)
    listed = ", ".join(repr(each) for each in names[:_MAX_SHOWN]) or "none"
    if len(names) > _MAX_SHOWN:
        listed += f", … ({len(names)} in all)"
    return (f"did you mean {meant!r}? " if meant else "") + f"known: {listed}"
