"""`SilentCalls`: limits the open calls whose message has not arrived."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparring_serve.wire.fields import MAX_BYTES

__all__ = ["MAX_SILENT_CALLS", "SLOW_SECONDS", "SilentCall", "SilentCalls", "num_slow_calls"]

MAX_SILENT_CALLS = 256
"""Maximum number of open calls without a message."""
SLOW_SECONDS = 2.0
"""Maximum time to wait for the message of a call, if as many calls as may be slow wait already."""
_MIN_SLOW_CALLS = 4


def num_slow_calls(max_bytes_in_flight: int) -> int:
    """Returns the number of calls whose messages may arrive slowly, so that parts of messages do not need
    more memory than `max_bytes_in_flight`; at least 4."""
    return min(max(max_bytes_in_flight // MAX_BYTES, _MIN_SLOW_CALLS), MAX_SILENT_CALLS)


class SilentCall:
    """A call whose message is awaited.

    Args:
        cancel: Ends the call, which may have ended.
        may_be_slow: Whether its message may take longer than `SLOW_SECONDS`.
    """

    def __init__(self, cancel: Callable[[], object], *, may_be_slow: bool) -> None:
        self._cancel, self.may_be_slow = cancel, may_be_slow
        self.is_ended = False
        """Whether `end` was called; gRPC reports the cancellation of a call later than its end."""

    def end(self) -> None:
        """Cancels the call."""
        self.is_ended = True
        self._cancel()


class SilentCalls:
    """Open calls whose headers have arrived and whose message has not. Thread-safe.

    The message of an ordinary call follows its headers at once. If there are too many calls without a
    message, the oldest one of the address that has most of them is cancelled, so that an address
    cannot prevent calls of others, and a client cannot do so for longer than the others need to send.

    Args:
        max_calls: Maximum number of calls.
        num_slow: Number of calls whose messages may arrive slowly. A call that arrives while there are as
            many has `SLOW_SECONDS`, because parts of messages are not in `max_bytes_in_flight`.
    """

    def __init__(self, max_calls: int = MAX_SILENT_CALLS, num_slow: int = MAX_SILENT_CALLS) -> None:
        self._max_calls, self._num_slow = max_calls, num_slow
        self._lock = threading.Lock()
        self._num_calls = 0
        self._of_hosts: dict[str, dict[SilentCall, None]] = {}
        """Calls per host, oldest first."""

    @contextmanager
    def wait(self, peer: str, cancel: Callable[[], object]) -> Iterator[SilentCall]:
        """Counts a call while its message is awaited in the block.

        Args:
            peer: Address of the caller, with the port of its connection.
            cancel: Ends the call, which may have ended.
        """
        host, evicted = peer.rpartition(":")[0], None
        with self._lock:
            call = SilentCall(cancel, may_be_slow=self._num_calls < self._num_slow)
            if self._num_calls >= self._max_calls:
                greediest = max(self._of_hosts, key=lambda each: len(self._of_hosts[each]))
                evicted = next(iter(self._of_hosts[greediest]))
                self._remove(greediest, evicted)
            self._of_hosts.setdefault(host, {})[call] = None
            self._num_calls += 1
        if evicted is not None:
            evicted.end()
        try:
            yield call
        finally:
            with self._lock:
                if call in self._of_hosts.get(host, ()):
                    self._remove(host, call)

    def _remove(self, host: str, call: SilentCall) -> None:
        calls = self._of_hosts[host]
        del calls[call]
        self._num_calls -= 1
        if not calls:
            del self._of_hosts[host]
