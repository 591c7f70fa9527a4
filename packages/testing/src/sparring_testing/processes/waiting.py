"""Waits for events of other threads and processes, and finds free ports."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

__all__ = ["free_ports", "wait_until"]


def wait_until(
    is_so: Callable[[], object], seconds: float = 30.0, error: str | Callable[[], object] = ""
) -> None:
    """Waits until a condition is true.

    Args:
        is_so: the condition, which is checked every 5 ms.
        seconds: maximum time to wait.
        error: text of the error, or a function that returns it.

    Raises:
        AssertionError: the condition is still false.
    """
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, error() if callable(error) else error
        time.sleep(0.005)


def free_ports(count: int) -> list[int]:
    """Returns different ports of loopback on which nothing listens."""
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
