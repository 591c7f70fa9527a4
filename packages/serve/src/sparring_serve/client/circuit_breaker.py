"""`CircuitBreaker`: calls to a replica that does not answer fail at once, except one in 100 ms."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import Enum

from sparring_serve.client.transport import Outcome

__all__ = ["CIRCUIT_SECONDS", "CircuitBreaker", "CircuitState"]

CIRCUIT_SECONDS = 0.1
"""Time in which one call is sent to a replica that does not answer."""

_MORE_PATIENT = 4
"""A call that allows so many times more than the ones that got no answer is sent in any case."""


class CircuitState(Enum):
    """State of the circuit to a replica."""

    CLOSED = "closed"
    """It is sent."""
    HALF_OPEN = "half open"
    """It is sent, to see whether the replica answers again."""
    OPEN = "open"
    """It is not sent, and fails at once."""


@dataclass(slots=True)
class _Hang:
    since: float
    seconds: float
    """The longest time that a call allowed in vain."""
    next_call: float


class CircuitBreaker:
    """The replicas of one client that do not answer. Any thread may call any method.

    A circuit opens when an attempt passes its deadline and the replica has answered nothing since that
    attempt was sent; a replica that is only slow answers other calls meanwhile. Any answer closes it, an
    error too. Only deadlines count: a connection that is refused costs no time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hangs: dict[str, _Hang] = {}
        self._answered: dict[str, float] = {}

    def state(self, address: str, now: float, seconds: float) -> CircuitState:
        """Returns what becomes of a call that allows `seconds`."""
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
        """The outcome of a call that is not sent."""
        with self._lock:
            hang = self._hangs.get(address)
        since = "" if hang is None else f" for {now - hang.since:.3g} s"
        return Outcome(
            None,
            "DEADLINE_EXCEEDED",
            f"it has not answered{since}; until then one call in {1000 * CIRCUIT_SECONDS:.0f} ms is sent",
        )

    def note_answer(self, address: str, now: float) -> None:
        self._answered[address] = now
        if address in self._hangs:
            with self._lock:
                self._hangs.pop(address, None)

    def note_deadline(self, address: str, began: float, seconds: float) -> None:
        """Notes an attempt without an answer.

        Args:
            address: of the replica.
            began: when the attempt was sent.
            seconds: that it allowed.
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
