"""Checks of deadlines, where a machine that does other things may be late."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

__all__ = ["DEADLINES", "check_with_deadlines"]

DEADLINES = (0.7, 3.0, 12.0)
"""Seconds. The next one is tried where the one before it was missed: a machine that is busy with other
things may be late by a second, which is little of the longest."""


def check_with_deadlines(
    check: Callable[[float], None], deadlines: tuple[float, ...] | None = None
) -> None:
    """Checks with one deadline after the other until it passes; what is always broken fails with each.

    Each that was missed is a warning. What may be broken now and then is better checked afterwards,
    outside of `check`.

    Args:
        check: takes a deadline in seconds, each call from scratch; its waits and limits are in
            proportion to that.
        deadlines: in seconds, at least one, in place of `DEADLINES`.

    Whatever the check raises with the last is raised.
    """
    *first, last = DEADLINES if deadlines is None else deadlines
    for deadline in first:
        try:
            check(deadline)
        # What ranks raised may come as an error of a fixture's own; pytest's is no Exception.
        except (Exception, pytest.fail.Exception) as error:
            text = f"missed with a deadline of {deadline:g} s: {error!r}"
            warnings.warn(text, stacklevel=2)
            continue
        return
    check(last)
