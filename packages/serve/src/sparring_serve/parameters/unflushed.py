"""Clients with queued pushes since their last flush, which are flushed at the end of the program.

They are kept here until they flush or close. Otherwise, a program that drops its client would not
learn that a queued push was not applied.
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
    """Registers a client to close at the end of the program, unless it is discarded before. Errors
    are logged.

    Args:
        name: Name of the client.
        close: Flushes and closes the client. Forked children do not call it.
    """
    _waiting[name] = (os.getpid(), close)


def discard_unflushed(name: str) -> None:
    """Removes a client because it flushes or closes; does nothing if it is unknown."""
    _waiting.pop(name, None)


@atexit.register
def _close_all() -> None:
    for process, close in list(_waiting.values()):
        if process != os.getpid():
            continue
        try:
            close()
        except SparringError as error:
            _log.error("at exit: flushing queued pushes failed: %s", error)
