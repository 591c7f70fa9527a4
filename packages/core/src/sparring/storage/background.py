"""Where a storage may run what its callers need not wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from sparring.execution import Task

__all__ = ["Background"]


class Background(Protocol):
    """Runs calls on threads of its own, and tells of those that fail; `sparring.events.EventLoop`
    is one. Whoever hands it to a storage asks it for failures before each step."""

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
