"""Clients that have queued pushes since their last flush: the end of the program asks for failures.

They are kept here until they flush or close, because a program may drop its client, and would never learn
that a queued push was not applied.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable

from sparring.errors import SparringError

__all__ = ["add_unflushed", "discard_unflushed"]

_log = logging.getLogger(__name__)

_waiting: dict[str, tuple[int, Callable[[], object]]] = {}


def add_unflushed(name: str, close: Callable[[], object]) -> None:
    """Has the end of the program call `close`, and log its error, unless the client is discarded first.

    Args:
        name: of the client.
        close: flushes the client and closes it. Forked children do not call it.
    """
    _waiting[name] = (os.getpid(), close)


def discard_unflushed(name: str) -> None:
    """Forgets a client, because it flushes or closes; does nothing if it is not known."""
    _waiting.pop(name, None)


@atexit.register
def _close_all() -> None:
    for process, close in list(_waiting.values()):
        if process != os.getpid():
            continue
        try:
            close()
        except SparringError as error:
            _log.error("at exit: %s", error)
