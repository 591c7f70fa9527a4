"""Threads that a storage may use for work that its callers do not wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from sparring.runtime.pool import Task

__all__ = ["Background"]


class Background(Protocol):
    """Runs calls on its own threads and reports those that fail.

    `sparring.runtime.events.EventLoop` is one. The owner, who hands it to storages, asks it for
    failures before each step.
    """

    def submit(
        self, work: Callable[[], object], *, name: str | None = None, timeout: float | None = None
    ) -> Task[Any]:
        """Begins a call that may block.

        Args:
            work: the call, without arguments.
            name: for errors.
            timeout: seconds to wait for room.

        Raises:
            DeadlineError: no room.
            ClosedError: it takes no more work.
        """
