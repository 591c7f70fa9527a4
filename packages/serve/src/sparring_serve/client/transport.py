"""The part of a client that is a network: requests to addresses, and how each ended."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

__all__ = [
    "NO_ANSWER_YET",
    "PROBE_SECONDS",
    "AsyncTransport",
    "Outcome",
    "Pause",
    "Send",
    "Transport",
    "run_steps",
]

_Result = TypeVar("_Result")

PROBE_SECONDS = 0.05
"""How long a caller waits for an attempt with `Send.on_late`."""


@dataclass(frozen=True, slots=True)
class Send:
    """One attempt of one call.

    Args:
        address: of the replica.
        method: of the service, as ``Pull``.
        request: its message.
        timeout_seconds: for this attempt.
        waits: for a connection, where there is none now; otherwise the attempt fails at once.
        on_late: the caller waits for `PROBE_SECONDS` only. The attempt continues until its timeout, and
            this is called if an answer comes later.
    """

    address: str
    method: str
    request: bytes
    timeout_seconds: float
    waits: bool = False
    on_late: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Time before the next attempt."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended: an answer, or a status of gRPC by its name.

    Args:
        answer: the message; None where it failed.
        status: ``OK``, or why it failed.
        message: for a person.
        shard_map: that the server sent along, or empty.
    """

    answer: bytes | None
    status: str = "OK"
    message: str = ""
    shard_map: bytes = b""


NO_ANSWER_YET = Outcome(
    None, "DEADLINE_EXCEEDED", f"it still does not answer, after {1000 * PROBE_SECONDS:.0f} ms"
)
"""Of an attempt with `Send.on_late` that continues."""


class Transport(Protocol):
    """Connections to replicas. Any thread may call any method."""

    def exchange(self, sends: Sequence[Send]) -> Iterable[Outcome]:
        """Sends all at once. Gives the outcome of each, in the same order, when it has ended."""

    def pause(self, seconds: float) -> None:
        """Returns after some time."""

    def close(self) -> None: ...


def run_steps(
    steps: Generator[list[Send] | Pause, Iterable[Outcome], _Result], transport: Transport
) -> _Result:
    """Makes the attempts and pauses of a generator, and returns its result."""
    outcomes: Iterable[Outcome] | None = None
    while True:
        try:
            sends = next(steps) if outcomes is None else steps.send(outcomes)
        except StopIteration as ended:
            result: _Result = ended.value
            return result
        if isinstance(sends, Pause):
            transport.pause(sends.seconds)
            outcomes = ()
        else:
            outcomes = transport.exchange(sends)


class AsyncTransport(Protocol):
    """`Transport` for asyncio."""

    async def exchange(self, sends: Sequence[Send]) -> Iterable[Outcome]: ...

    async def pause(self, seconds: float) -> None: ...

    async def close(self) -> None: ...
