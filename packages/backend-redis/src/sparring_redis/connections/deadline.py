"""One deadline for all waits of a call."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["BoundedSocket", "Deadline"]


class Deadline:
    """The time at which a call times out."""

    __slots__ = ("_end", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def extend(self, seconds: float) -> None:
        """Moves the deadline when it turns out that there is more to do."""
        self.seconds += seconds
        self._end += seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end

    def remaining(self) -> float:
        """Returns the seconds that remain.

        Raises:
            TimeoutError: no time remains.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline is over")
        return left


class BoundedSocket:
    """A socket whose reads and writes end at the deadline of the call that uses it.

    The client library limits each read separately, so a server that sends single bytes slowly could
    block it forever. Here each read is limited to the remaining time of the whole call.
    """

    def __init__(self, sock: Any, deadline: Deadline) -> None:
        self._sock = sock
        self.deadline = deadline

    def recv_into(self, buffer: Any, *rest: Any) -> int:
        self._sock.settimeout(self.deadline.remaining())
        return int(self._sock.recv_into(buffer, *rest))

    def recv(self, *arguments: Any) -> bytes:
        self._sock.settimeout(self.deadline.remaining())
        return bytes(self._sock.recv(*arguments))

    def sendall(self, data: Any) -> None:
        # In parts, because sendall of a TLS socket applies the timeout to each part.
        view = memoryview(data)
        while view:
            self._sock.settimeout(self.deadline.remaining())
            view = view[self._sock.send(view[: 1 << 20]) :]

    def settimeout(self, seconds: float | None) -> None:
        """Does nothing, because the deadline determines the timeout."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)
