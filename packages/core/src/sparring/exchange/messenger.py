"""Sends and receives the messages of one rank's exchange, and reuses their buffers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.ranks.collective import Collective, Work, WorkContext
from sparring.errors import PeerFailure
from sparring.runtime.threads import SerialExecutor
from sparring.runtime.trace import Trace

__all__ = [
    "Buffers",
    "ExchangeCounters",
    "Messenger",
    "MessageKind",
    "Transfer",
    "WireBytes",
    "pass_messages",
    "find_tag",
]


class MessageKind(Enum):
    """Kinds of messages of an exchange; see ``docs/explanation/ring-exchange.md``."""

    HEADERS = "headers"
    """First message of each exchange: operation and step of a rank, and the number of rows it
    requests."""
    KEYS = "keys"
    ROWS = "rows"
    """Rows, with flags whether they were found."""
    GRADIENTS = "gradients"
    """Gradients with their keys."""
    COUNTS = "counts"
    """Counts of tables that do not fit into headers. Their bytes are counted as headers."""


@dataclass(slots=True)
class WireBytes:
    """Bytes of messages that are passed to the collective, without the overhead of its transport."""

    headers: int = 0
    keys: int = 0
    rows: int = 0
    gradients: int = 0

    def add(self, kind: MessageKind, num_bytes: int) -> None:
        name = (MessageKind.HEADERS if kind is MessageKind.COUNTS else kind).value
        setattr(self, name, getattr(self, name) + num_bytes)

    @property
    def total(self) -> int:
        """Total bytes."""
        return self.headers + self.keys + self.rows + self.gradients

    def __add__(self, other: WireBytes) -> WireBytes:
        return WireBytes(
            self.headers + other.headers,
            self.keys + other.keys,
            self.rows + other.rows,
            self.gradients + other.gradients,
        )


@dataclass(slots=True)
class ExchangeCounters:
    """Bytes sent to and received from other ranks since the exchange was created."""

    wire_bytes_sent: WireBytes = field(default_factory=WireBytes)
    wire_bytes_received: WireBytes = field(default_factory=WireBytes)
    num_messages_sent: int = 0


Bytes = npt.NDArray[np.uint8]

_TAGS = {kind: number for number, kind in enumerate(MessageKind, start=1)}

# Seconds between two polls of messages in flight. With MPI, polling also advances messages.
_MIN_PAUSE, _MAX_PAUSE = 20e-6, 500e-6

_SPIN_SECONDS = 0.5e-3
"""For this time after the last progress, the thread yields instead of sleeping, because messages of
small batches arrive before a sleeping thread wakes up."""

_SLACK = 1.01
"""Factor of the deadline, so that the collective's deadline expires first: its error is more
precise."""

_STALL_SECONDS = 0.02
"""After this time without progress, `on_stall` is called."""

_MIN_BUFFER_BYTES = 1 << 12
_MAX_UNUSED_BYTES = 256 << 20


def find_tag(kind: MessageKind) -> int:
    """Returns the tag of messages of a kind."""
    return _TAGS[kind]


@dataclass(slots=True)
class Transfer:
    """A message in flight."""

    work: Work
    buffer: Any
    peer: int
    kind: MessageKind
    is_sent: bool
    begin_ns: int
    label: str


class Messenger:
    """Starts messages and polls them. Used by the thread that drives the exchange.

    Args:
        collective: connection to the other ranks.
        counters: counters of bytes and messages.
    """

    def __init__(self, collective: Collective, counters: ExchangeCounters) -> None:
        self.collective = collective
        self.counters = counters
        rank, world_size = collective.rank, collective.world_size
        self.later_ranks = [(rank + hop) % world_size for hop in range(1, world_size)]
        """The other ranks in the order in which this rank sends requests: hop 1, hop 2, ..."""
        self.earlier_ranks = self.later_ranks[::-1]
        """The other ranks in the order in which this rank serves their requests."""
        self.direct_ranks = frozenset(self.later_ranks)
        """The other ranks with which this rank exchanges headers itself: all, or with two levels some."""
        self.trace: Trace | None = None
        self.on_stall: Callable[[], None] = _nothing
        """Called repeatedly while no message makes progress; may raise `PeerFailure`."""
        # Includes messages of a failed exchange, because a transport may still write to their buffers.
        self._under_way: dict[int, Transfer] = {}
        self._num_outstanding = [0] * collective.world_size
        self._last_heard = [0.0] * collective.world_size
        self._pause = _MIN_PAUSE
        self._moved = 0.0
        self._waits_since_ns = 0

    def begin(self, operation: str, table: str | None, step: int | None) -> None:
        """Sets the operation that errors name."""
        self.collective.context = WorkContext(operation, table, step)
        self._num_outstanding = [0] * self.collective.world_size
        self._moved = time.monotonic()
        self._waits_since_ns = 0

    def send(
        self,
        kind: MessageKind,
        buffer: Any,
        peer: int,
        label: str = "",
        *,
        stream: int | None = None,
        tag: int | None = None,
    ) -> Transfer:
        """Starts sending an array. An array in device memory is sent after the stream's current work.
        By default, the tag depends on the kind."""
        on = {} if stream is None else {"stream": stream}
        work = self.collective.send(buffer, peer, _TAGS[kind] if tag is None else tag, **on)
        self.counters.wire_bytes_sent.add(kind, buffer.nbytes)
        self.counters.num_messages_sent += 1
        return self._register(Transfer(work, buffer, peer, kind, True, 0, label))

    def receive(
        self,
        kind: MessageKind,
        buffer: Any,
        peer: int,
        label: str = "",
        *,
        stream: int | None = None,
        tag: int | None = None,
    ) -> Transfer:
        """Starts receiving an array. Device memory is written after the stream's current work.
        By default, the tag depends on the kind."""
        on = {} if stream is None else {"stream": stream}
        work = self.collective.receive(buffer, peer, _TAGS[kind] if tag is None else tag, **on)
        return self._register(Transfer(work, buffer, peer, kind, False, 0, label))

    @contextmanager
    def span(self, name: str, peer: int) -> Iterator[None]:
        """Records a block on the driving thread as a span of the trace."""
        if self.trace is None:
            yield
            return
        with self.trace.span(name, peer=peer):
            yield

    def is_done(self, transfer: Transfer) -> bool:
        """Whether a message was received, or was sent so that its buffer may be reused.

        Raises:
            PeerFailure: the transfer failed.
        """
        if not transfer.work.done():
            return False
        self.wait(transfer)
        return True

    def wait(self, transfer: Transfer) -> None:
        """Waits until a message was received, or was sent so that its buffer may be reused.

        Raises:
            PeerFailure: the peer is gone, or the deadline expired.
        """
        transfer.work.wait()
        del self._under_way[id(transfer)]
        self._num_outstanding[transfer.peer] -= 1
        self._last_heard[transfer.peer] = time.monotonic()
        if not transfer.is_sent:
            self.counters.wire_bytes_received.add(transfer.kind, transfer.buffer.nbytes)
        if self.trace is not None:
            verb = "send" if transfer.is_sent else "receive"
            self.trace.add_transfer(
                f"{verb} {transfer.kind.value}",
                transfer.begin_ns,
                time.perf_counter_ns(),
                {"peer": transfer.peer, "bytes": transfer.buffer.nbytes, "of": transfer.label},
            )

    def silent_seconds(self, peer: int) -> float:
        """Returns the seconds since the last message of a rank; 0 if no message is expected from it."""
        if self._num_outstanding[peer] <= 0:
            return 0.0
        return time.monotonic() - self._last_heard[peer]

    def pause(self, executor: SerialExecutor, *, has_progressed: bool) -> None:
        """Waits between two polls. Does not wait after progress; otherwise pauses become longer.

        Args:
            executor: executor whose jobs may end the pause.
            has_progressed: whether the last poll made progress.

        Raises:
            PeerFailure: a peer of a message in flight did not respond within the deadline.
        """
        now = time.monotonic()
        if self.trace is not None:
            self._trace_wait(self.trace, has_progressed=has_progressed)
        if has_progressed:
            self._pause = _MIN_PAUSE
            self._moved = now
            return
        if executor.is_idle and now - self._moved < _SPIN_SECONDS:
            os.sched_yield()
            return
        if now - self._moved > _STALL_SECONDS:
            self.on_stall()
            self._check_deadline()
        executor.pause(self._pause)
        self._pause = min(self._pause * 1.5, _MAX_PAUSE)

    def _trace_wait(self, trace: Trace, *, has_progressed: bool) -> None:
        """Records the time from the first poll without progress to the next progress."""
        if not has_progressed:
            self._waits_since_ns = self._waits_since_ns or time.perf_counter_ns()
        elif self._waits_since_ns:
            trace.add("wait", self._waits_since_ns, time.perf_counter_ns())
            self._waits_since_ns = 0

    def _register(self, transfer: Transfer) -> Transfer:
        if not self._num_outstanding[transfer.peer]:
            self._last_heard[transfer.peer] = time.monotonic()
        self._num_outstanding[transfer.peer] += 1
        self._under_way[id(transfer)] = transfer
        if self.trace is not None:
            transfer.begin_ns = time.perf_counter_ns()
        return transfer

    def _check_deadline(self) -> None:
        waiting = [peer for peer, count in enumerate(self._num_outstanding) if count > 0]
        if not waiting:
            return
        # The rank that has not responded for the longest time; others may be waiting for it.
        peer = min(waiting, key=lambda each: self._last_heard[each])
        deadline = self.collective.deadline_seconds
        if time.monotonic() - self._last_heard[peer] <= deadline * _SLACK:
            return
        context = self.collective.context
        where = f" of table {context.table!r}" if context.table is not None else ""
        when = f" at step {context.step}" if context.step is not None else ""
        raise PeerFailure(
            f"rank {self.collective.rank} waited for rank {peer} in {context.operation}{where}"
            f"{when}: no message arrived within {deadline:g} s; find out why that rank failed, then "
            "restart all ranks from the last snapshot",
            rank=peer,
            operation=context.operation,
            table=context.table,
            step=context.step,
        )


def pass_messages(collective: Collective, count: int) -> None:
    """Sends small messages from this rank to itself and receives them, one after the other.

    Its duration is the processing cost of messages in an exchange, which the planner measures.

    Args:
        collective: connection of this rank; other ranks do not take part.
        count: number of messages.
    """
    messenger = Messenger(collective, ExchangeCounters())
    messenger.begin("calibration", None, None)
    outgoing, incoming = np.zeros(64, np.uint8), np.empty(64, np.uint8)
    for _ in range(count):
        coming = messenger.receive(MessageKind.KEYS, incoming, collective.rank)
        going = messenger.send(MessageKind.KEYS, outgoing, collective.rank)
        while not (messenger.is_done(coming) and messenger.is_done(going)):
            pass


def _nothing() -> None:
    return


def _allocate(num_bytes: int) -> Bytes:
    return np.empty(num_bytes, np.uint8)


class Buffers:
    """Pool of message buffers, because new memory costs a page fault per 4 KiB. Used by one thread.

    Args:
        make: allocates a buffer of the given number of bytes.
    """

    def __init__(self, make: Callable[[int], Bytes] = _allocate) -> None:
        self._make = make
        self._kept_bytes = 0
        # Rounded size -> buffers of that size.
        self._kept: dict[int, list[Bytes]] = {}

    def take(self, num_bytes: int) -> Bytes:
        """Returns a buffer of `num_bytes` with undefined content, aligned to 16 bytes."""
        size = max(_MIN_BUFFER_BYTES, 1 << (max(1, num_bytes) - 1).bit_length())
        kept = self._kept.get(size)
        if kept:
            self._kept_bytes -= size
            return kept.pop()[:num_bytes]
        return self._make(size)[:num_bytes]

    def give_back(self, buffer: Bytes) -> None:
        """Returns a buffer of `take` to the pool; the caller must not use it afterwards."""
        whole = buffer.base
        assert isinstance(whole, np.ndarray)
        if self._kept_bytes + whole.nbytes > _MAX_UNUSED_BYTES:
            return
        self._kept_bytes += whole.nbytes
        self._kept.setdefault(whole.nbytes, []).append(whole)
