"""The messages of one rank's exchange: counted, traced, and given up at the deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sparring.collective import Collective, Work, WorkContext
from sparring.errors import PeerFailure
from sparring.exchange.beside import Lane
from sparring.exchange.counters import ExchangeCounters, MessageKind
from sparring.trace import Trace

__all__ = ["Link", "Transfer", "tag_of"]

_TAGS = {kind: number for number, kind in enumerate(MessageKind, start=1)}

# Between two looks at messages under way. Looking is also what moves messages of MPI.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 20e-6, 500e-6

_SPIN_SECONDS = 0.5e-3
"""So long after the last progress the thread only yields: messages of small batches come sooner than
a thread that sleeps wakes up."""

_SLACK = 1.01
"""The collective's own deadline comes first: it knows better who is to blame."""

_STALL_SECONDS = 0.02
"""When nothing has moved for so long, it is time to ask why."""


def tag_of(kind: MessageKind) -> int:
    """By which messages of a kind are told from others."""
    return _TAGS[kind]


@dataclass(slots=True)
class Transfer:
    """A message under way."""

    work: Work
    buffer: Any
    peer: int
    kind: MessageKind
    is_sent: bool
    begin_ns: int
    what: str


class Link:
    """Starts messages and looks after them. Used by the thread that drives the exchange.

    Args:
        collective: this rank's place in the group.
        counters: where bytes are counted.
    """

    def __init__(self, collective: Collective, counters: ExchangeCounters) -> None:
        self.collective = collective
        self.counters = counters
        self.trace: Trace | None = None
        self.on_stall: Callable[[], None] = _nothing
        """Called again and again while nothing moves; may raise `PeerFailure`."""
        # Also those of an exchange that failed: a transport may still write to their buffers.
        self._under_way: dict[int, Transfer] = {}
        self._num_outstanding = [0] * collective.world_size
        self._heard = [0.0] * collective.world_size
        self._pause = _SHORTEST_PAUSE
        self._moved = 0.0

    def begin(self, operation: str, table: str | None, step: int | None) -> None:
        """Says what follows, for errors."""
        self.collective.context = WorkContext(operation, table, step)
        self._num_outstanding = [0] * self.collective.world_size
        self._moved = time.monotonic()

    def send(
        self,
        kind: MessageKind,
        buffer: Any,
        peer: int,
        what: str = "",
        *,
        stream: int | None = None,
    ) -> Transfer:
        """Starts sending an array; in a device's memory, after what is on the stream."""
        on = {} if stream is None else {"stream": stream}
        work = self.collective.send(buffer, peer, _TAGS[kind], **on)
        self.counters.wire_bytes_sent.add(kind, buffer.nbytes)
        self.counters.num_messages_sent += 1
        return self._started(Transfer(work, buffer, peer, kind, True, 0, what))

    def receive(
        self,
        kind: MessageKind,
        buffer: Any,
        peer: int,
        what: str = "",
        *,
        stream: int | None = None,
    ) -> Transfer:
        """Starts filling an array; in a device's memory, after what is on the stream."""
        on = {} if stream is None else {"stream": stream}
        work = self.collective.receive(buffer, peer, _TAGS[kind], **on)
        return self._started(Transfer(work, buffer, peer, kind, False, 0, what))

    @contextmanager
    def span(self, name: str, peer: int) -> Iterator[None]:
        """Traces what the driving thread does in the block."""
        if self.trace is None:
            yield
            return
        with self.trace.span(name, peer=peer):
            yield

    def is_done(self, transfer: Transfer) -> bool:
        """Whether a message has come, or its buffer may be used again.

        Raises:
            PeerFailure: it never will.
        """
        if not transfer.work.done():
            return False
        self.wait(transfer)
        return True

    def wait(self, transfer: Transfer) -> None:
        """Returns when the message has come, or its buffer may be used again.

        Raises:
            PeerFailure: the peer is gone, or the deadline passed.
        """
        transfer.work.wait()
        del self._under_way[id(transfer)]
        self._num_outstanding[transfer.peer] -= 1
        self._heard[transfer.peer] = time.monotonic()
        if not transfer.is_sent:
            self.counters.wire_bytes_received.add(transfer.kind, transfer.buffer.nbytes)
        if self.trace is not None:
            verb = "send" if transfer.is_sent else "receive"
            self.trace.add_transfer(
                f"{verb} {transfer.kind.value}",
                transfer.begin_ns,
                time.perf_counter_ns(),
                {"peer": transfer.peer, "bytes": transfer.buffer.nbytes, "of": transfer.what},
            )

    def silent_seconds(self, peer: int) -> float:
        """How long this rank has waited for a rank; 0 where it waits for nothing of it."""
        if self._num_outstanding[peer] <= 0:
            return 0.0
        return time.monotonic() - self._heard[peer]

    def pause(self, lane: Lane, *, has_progressed: bool) -> None:
        """Between two looks: at once after progress, then less and less often.

        Raises:
            PeerFailure: a peer that messages are under way with was silent up to the deadline.
        """
        now = time.monotonic()
        if has_progressed:
            self._pause = _SHORTEST_PAUSE
            self._moved = now
            return
        if lane.is_idle and now - self._moved < _SPIN_SECONDS:
            os.sched_yield()
            return
        if now - self._moved > _STALL_SECONDS:
            self.on_stall()
            self._check_deadline()
        lane.pause(self._pause)
        self._pause = min(self._pause * 1.5, _LONGEST_PAUSE)

    def _started(self, transfer: Transfer) -> Transfer:
        if not self._num_outstanding[transfer.peer]:
            self._heard[transfer.peer] = time.monotonic()
        self._num_outstanding[transfer.peer] += 1
        self._under_way[id(transfer)] = transfer
        if self.trace is not None:
            transfer.begin_ns = time.perf_counter_ns()
        return transfer

    def _check_deadline(self) -> None:
        waiting = [peer for peer, count in enumerate(self._num_outstanding) if count > 0]
        if not waiting:
            return
        # Whoever has been silent the longest: others may be waiting for that one themselves.
        peer = min(waiting, key=lambda each: self._heard[each])
        deadline = self.collective.deadline_seconds
        if time.monotonic() - self._heard[peer] <= deadline * _SLACK:
            return
        context = self.collective.context
        where = f" of table {context.table!r}" if context.table is not None else ""
        when = f" at step {context.step}" if context.step is not None else ""
        raise PeerFailure(
            f"rank {self.collective.rank} waited for rank {peer} in {context.operation}{where}"
            f"{when}: nothing came within {deadline:g} s; find out what became of that rank, then "
            "restart all ranks from the last snapshot",
            rank=peer,
            operation=context.operation,
            table=context.table,
            step=context.step,
        )


def _nothing() -> None:
    return
