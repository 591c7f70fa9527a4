"""`CircuitBreaker`: calls to a replica that does not reply fail immediately, except one per 100 ms."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import Enum

from sparring_serve.client.transport import Outcome

__all__ = ["CIRCUIT_SECONDS", "CircuitBreaker", "CircuitState"]

CIRCUIT_SECONDS = 0.1
"""Interval at which single calls are sent to a replica that does not reply."""

_MORE_PATIENT = 4
"""A call is always sent if its timeout is this many times the one of calls that timed out."""


class CircuitState(Enum):
    """State of the circuit to a replica."""

    CLOSED = "closed"
    """The call is sent."""
    HALF_OPEN = "half open"
    """The call is sent to check whether the replica replies again."""
    OPEN = "open"
    """The call is not sent and fails immediately."""


@dataclass(slots=True)
class _Hang:
    since: float
    seconds: float
    """Longest timeout of a call without a reply."""
    next_call: float


class CircuitBreaker:
    """Tracks the replicas that do not reply, for one client. All methods are thread-safe.

    A circuit opens when an attempt times out and the replica has sent no reply since that attempt
    began; a slow replica replies to other calls in the meantime. Any reply closes it, including
    errors. Only timeouts count, because a failed connection costs no time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hangs: dict[str, _Hang] = {}
        self._answered: dict[str, float] = {}

    def state(self, address: str, now: float, seconds: float) -> CircuitState:
        """Returns the state of the circuit for a call with the timeout `seconds`."""
        if address not in self._hangs:
            return CircuitState.CLOSED
        with self._lock:
            hang = self._hangs.get(address)
            if hang is None or seconds > _MORE_PATIENT * hang.seconds:
                return CircuitState.CLOSED
            if now < hang.next_call:
                return CircuitState.OPEN
            hang.next_call = now + CIRCUIT_SECONDS
            return CircuitState.HALF_OPEN

    def outcome(self, address: str, now: float) -> Outcome:
        """Returns the outcome of a call that is not sent."""
        with self._lock:
            hang = self._hangs.get(address)
        since = "" if hang is None else f" for {now - hang.since:.3g} s"
        return Outcome(
            None,
            "DEADLINE_EXCEEDED",
            f"no reply{since}; until it replies, one call per {1000 * CIRCUIT_SECONDS:.0f} ms is sent",
        )

    def note_answer(self, address: str, now: float) -> None:
        self._answered[address] = now
        if address in self._hangs:
            with self._lock:
                self._hangs.pop(address, None)

    def note_deadline(self, address: str, began: float, seconds: float) -> None:
        """Records an attempt that timed out.

        Args:
            address: Address of the replica.
            began: Time when the attempt was sent.
            seconds: Timeout of the attempt.
        """
        with self._lock:
            if self._answered.get(address, began - 1) >= began:
                return
            hang = self._hangs.get(address)
            if hang is None:
                # The attempt has ended just now.
                next_call = began + seconds + CIRCUIT_SECONDS
                self._hangs[address] = _Hang(began, seconds, next_call)
            else:
                hang.seconds = max(hang.seconds, seconds)
