"""The network layer of a client: sends requests to addresses and returns their outcomes."""

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
    "run_steps_async",
]

_Result = TypeVar("_Result")

PROBE_SECONDS = 0.05
"""Time for which a caller waits for an attempt with `Send.on_late`."""


@dataclass(frozen=True, slots=True)
class Send:
    """One attempt of one call.

    Args:
        address: Address of the replica.
        method: Method of the service, for example ``Pull``.
        request: Encoded message.
        timeout_seconds: Timeout of this attempt.
        waits: Whether to wait for a connection if there is none; otherwise the attempt fails
            immediately.
        on_late: If set, the caller waits only for `PROBE_SECONDS`. The attempt continues until its
            timeout, and this function is called if a reply arrives later.
    """

    address: str
    method: str
    request: bytes
    timeout_seconds: float
    waits: bool = False
    on_late: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause before the next attempt."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of an attempt: a reply, or the name of a gRPC status.

    Args:
        answer: The reply; None if the attempt failed.
        status: ``OK``, or the status of the failure.
        message: Description of the failure.
        shard_map: Shard map attached by the server, or empty.
    """

    answer: bytes | None
    status: str = "OK"
    message: str = ""
    shard_map: bytes = b""


NO_ANSWER_YET = Outcome(
    None, "DEADLINE_EXCEEDED", f"still no reply after {1000 * PROBE_SECONDS:.0f} ms"
)
"""Outcome of an attempt with `Send.on_late` that continues."""


class Transport(Protocol):
    """Connections to replicas. All methods are thread-safe."""

    def exchange(self, sends: Sequence[Send]) -> Iterable[Outcome]:
        """Sends all attempts concurrently and yields their outcomes in the same order as they
        complete."""

    def pause(self, seconds: float) -> None:
        """Waits."""

    def close(self) -> None: ...


class AsyncTransport(Protocol):
    """`Transport` for asyncio."""

    async def exchange(self, sends: Sequence[Send]) -> Iterable[Outcome]: ...

    async def pause(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


async def run_steps_async(
    steps: Generator[list[Send] | Pause, Iterable[Outcome], _Result], transport: AsyncTransport
) -> _Result:
    """Executes the attempts and pauses that a generator yields, and returns its result."""
    outcomes: Iterable[Outcome] | None = None
    while True:
        try:
            sends = next(steps) if outcomes is None else steps.send(outcomes)
        except StopIteration as ended:
            result: _Result = ended.value
            return result
        if isinstance(sends, Pause):
            await transport.pause(sends.seconds)
            outcomes = ()
        else:
            outcomes = await transport.exchange(sends)


def run_steps(
    steps: Generator[list[Send] | Pause, Iterable[Outcome], _Result], transport: Transport
) -> _Result:
    """Executes the attempts and pauses that a generator yields, and returns its result."""
    # This coroutine never suspends, because each call of the transport ends before it returns.
    running = run_steps_async(steps, _Waiting(transport))
    try:
        running.send(None)
    except StopIteration as ended:
        result: _Result = ended.value
        return result
    raise AssertionError("a synchronous transport has suspended its caller")


class _Waiting:
    """An `AsyncTransport` whose calls wait in a synchronous one."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def exchange(self, sends: Sequence[Send]) -> Iterable[Outcome]:
        return self._transport.exchange(sends)

    async def pause(self, seconds: float) -> None:
        self._transport.pause(seconds)

    async def close(self) -> None:
        self._transport.close()
