"""Locks and threads that a forked child makes again: a thread of the parent may hold a lock for ever."""

from __future__ import annotations

import logging
import os
import weakref
from abc import ABC, abstractmethod

__all__ = ["Forkable"]

_log = logging.getLogger(__name__)


class Forkable(ABC):
    """Has locks, or waits for threads, and goes on in a forked child without those of its parent."""

    def __init__(self) -> None:
        _made.add(self)

    @abstractmethod
    def begin_anew(self) -> None:
        """In a forked child: makes locks, and forgets what threads of the parent are at. What they
        guard may be used, as another thread may have left it."""


_made: weakref.WeakSet[Forkable] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for each in list(_made):
        try:
            each.begin_anew()
        except Exception:
            # The others still have locks that would never be released.
            _log.exception("after a fork, a %s could not begin again", type(each).__name__)


os.register_at_fork(after_in_child=_after_fork_in_child)
