"""Checks of deadlines that tolerate a busy machine."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import pytest

from sparring.errors import SparringError

__all__ = ["DEADLINES", "check_with_deadlines", "error_within"]

DEADLINES = (0.7, 3.0, 12.0)
"""Deadlines in seconds, tried in order. On a busy machine an operation may be late by a second, which is
a small part of the longest deadline."""


def check_with_deadlines(
    check: Callable[[float], None], deadlines: tuple[float, ...] | None = None
) -> None:
    """Calls a check with increasing deadlines until it passes.

    A failure with any deadline but the last is a warning. An error that does not depend on the deadline
    fails with each of them. Check conditions that fail only sometimes outside of `check`.

    Args:
        check: takes a deadline in seconds. Each call starts from scratch, and its waits and limits are
            proportional to the deadline.
        deadlines: at least one, in seconds; the default is `DEADLINES`.

    Raises:
        Exception: the error that `check` raised with the last deadline.
    """
    *first, last = DEADLINES if deadlines is None else deadlines
    for deadline in first:
        try:
            check(deadline)
        # Errors of ranks may arrive as a fixture's own error; pytest.fail's is not an Exception.
        except (Exception, pytest.fail.Exception) as error:
            text = f"failed with a deadline of {deadline:g} s: {error!r}"
            warnings.warn(text, stacklevel=2)
            continue
        return
    check(last)


def error_within(seconds: float, call: Callable[[], object]) -> SparringError:
    """Returns the error that a call raises; fails if it raises none, or takes longer."""
    begin = time.monotonic()
    with pytest.raises(SparringError) as caught:
        call()
    assert time.monotonic() - begin < seconds
    return caught.value
