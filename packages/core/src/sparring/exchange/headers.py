"""Headers that ranks exchange at the beginning of each exchange, before anything large moves.

    ┌───────┬──────┬──────────┬──────────┬───────────┬────────────┬─────────┬────────────┐
    │ phase │ step │ settings │ requests │ has_error │ num_tables │ culprit │ counts of  │
    │       │      │ (digest) │ (digest) │           │            │         │ 57 tables  │
    └───────┴──────┴──────────┴──────────┴───────────┴────────────┴─────────┴────────────┘

512 bytes from each rank to each other one. A count is how many rows of a table it wants, or sends;
counts of further tables follow in a message of their own. So at any exchange all ranks see that one
of them has ended, is elsewhere, was set up otherwise, or refuses the step, and all of them draw the
same conclusion: no rank waits for a message that never comes.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.collective.coordinator import Coordinator
from sparring.contracts.ranks.collective import Collective, Work
from sparring.errors import ClosedError, PeerFailure
from sparring.exchange.messenger import MessageKind, Messenger, find_tag

__all__ = [
    "Header",
    "Headers",
    "HeaderInbox",
    "Phase",
    "Settings",
    "check_headers",
    "compute_digest",
    "exchange_headers",
    "exchange_more_counts",
    "make_peer_failure",
    "header_bytes",
    "raise_on_all",
    "send_shutdown_notice",
    "format_steps",
]

HEADER_BYTES = 512
_NUM_FIELDS = 7
_NUM_COUNTS = HEADER_BYTES // 8 - _NUM_FIELDS
_NOTICE_SHARE, _MAX_NOTICE_SECONDS = 0.02, 1.0
"""Share of a deadline, and the most time, that a rank waits for its shutdown notice to leave. Some
transports keep it until the receiver asks for it, and one that has given up too never does."""

_ENDED_SECONDS = 0.5
"""How long what a rank sent before it ended may take to arrive."""

Counts = npt.NDArray[np.int64]

Settings = Mapping[str, Any]
"""Settings that all ranks must have alike: names to JSON values or further such mappings."""


class Phase(IntEnum):
    """Operation that a rank is about to begin."""

    LOOKUP = 1
    """Pull rows for training."""
    READ = 2
    """Pull rows, no gradient will come."""
    PUSH = 3
    """Push gradients: the step is being applied."""
    COMMIT = 4
    """Write: everything that can be refused was looked at."""
    ENDED = 5
    """Nothing more."""
    REFRESH = 6
    """Pull rows again that were pulled before and that a step has changed."""
    BACKWARD = 7
    """Ask owners that pool for the gradients of weights."""

    @property
    def verb(self) -> str:
        return {
            Phase.LOOKUP: "looks rows up to train on",
            Phase.READ: "looks rows up without training",
            Phase.PUSH: "applies a step",
            Phase.COMMIT: "is about to write a step",
            Phase.ENDED: "has ended",
            Phase.REFRESH: "refreshes prefetched rows",
            Phase.BACKWARD: "takes gradients of weights",
        }[self]


@dataclass(frozen=True, slots=True)
class Header:
    """Where a rank is."""

    phase: Phase
    step: int
    """Steps applied so far."""
    settings: int
    requests: int
    """Digests of 63 bits: of what all ranks must have alike, and of the tables that are meant."""
    has_error: bool
    num_tables: int
    culprit: int = -1
    """The rank because of which this one has ended; -1: none."""

    def pack(self, counts: Counts) -> Counts:
        message = np.zeros(HEADER_BYTES // 8, np.int64)
        message[:_NUM_FIELDS] = (
            self.phase,
            self.step,
            self.settings,
            self.requests,
            self.has_error,
            self.num_tables,
            self.culprit,
        )
        message[_NUM_FIELDS : _NUM_FIELDS + len(counts)] = counts[:_NUM_COUNTS]
        return message

    @classmethod
    def unpack(cls, message: Counts) -> Header:
        phase, step, settings, requests, has_error, num_tables, culprit = message[
            :_NUM_FIELDS
        ].tolist()
        return cls(Phase(phase), step, settings, requests, bool(has_error), num_tables, culprit)


@dataclass(frozen=True, slots=True)
class Headers:
    """Headers of all ranks."""

    headers: list[Header]
    """In the order of ranks, this one's among them."""
    counts: Counts
    """``(world_size, first tables)``: rows that each rank wants of this one, or sends it."""


def header_bytes(num_tables: int) -> int:
    """Bytes that one rank sends to one other at the beginning of an exchange of `num_tables`."""
    return HEADER_BYTES + 8 * max(0, num_tables - _NUM_COUNTS)


class HeaderInbox:
    """Where headers arrive.

    A rank that gives up in the middle of an exchange tells the others by a header. They look here
    when nothing moves, so that all of them name the rank that failed, not one that failed because of
    it.
    """

    def __init__(self, messenger: Messenger) -> None:
        self._messenger = messenger
        # What was asked for ahead of its time, and what came of it.
        self._coming: dict[int, tuple[Work, Counts]] = {}
        self._arrived: dict[int, Counts] = {}

    def poll(self) -> None:
        """Raises `PeerFailure` if a rank has given up, or has ended and owes something; keeps the
        headers of ranks that are ahead."""
        rank, world_size = self._messenger.collective.rank, self._messenger.collective.world_size
        for peer in range(world_size):
            if peer in self._arrived:
                header = Header.unpack(self._arrived[peer])
                # What it sent before it ended may still be on its way.
                is_over = header.phase is Phase.ENDED
                if is_over and self._messenger.silent_seconds(peer) > _ENDED_SECONDS:
                    raise make_peer_failure(self._messenger.collective, peer, header)
                continue
            if peer == rank:
                continue
            if peer not in self._coming:
                buffer = np.empty(HEADER_BYTES // 8, np.int64)
                work = self._messenger.collective.receive(
                    buffer, peer, find_tag(MessageKind.HEADERS)
                )
                self._coming[peer] = work, buffer
            work, buffer = self._coming[peer]
            if not work.done():
                continue
            work.wait()
            del self._coming[peer]
            self._messenger.counters.wire_bytes_received.add(MessageKind.HEADERS, buffer.nbytes)
            self._arrived[peer] = buffer
            header = Header.unpack(buffer)
            if header.phase is Phase.ENDED and header.culprit >= 0:
                raise make_peer_failure(self._messenger.collective, peer, header)

    def find_shutdown_notice(self, peer: int) -> Header | None:
        """Last header of a rank that ended; None where none has arrived."""
        if peer not in self._arrived:
            return None
        header = Header.unpack(self._arrived[peer])
        return header if header.phase is Phase.ENDED else None

    def take(self, peer: int) -> Counts:
        """The next header of a rank; waits for it.

        Raises:
            PeerFailure: it is gone or silent.
        """
        if peer in self._arrived:
            return self._arrived.pop(peer)
        if peer in self._coming:
            work, buffer = self._coming[peer]
            work.wait()
            del self._coming[peer]
            self._messenger.counters.wire_bytes_received.add(MessageKind.HEADERS, buffer.nbytes)
            return buffer
        buffer = np.empty(HEADER_BYTES // 8, np.int64)
        self._messenger.wait(self._messenger.receive(MessageKind.HEADERS, buffer, peer, "header"))
        return buffer


def format_steps(count: int) -> str:
    """``1 step``, ``2 steps``."""
    return f"{count} step{'' if count == 1 else 's'}"


def make_peer_failure(collective: Collective, peer: int, theirs: Header) -> PeerFailure:
    """Error of a rank that finds another one ended."""
    context = collective.context
    here = f"rank {collective.rank} was in {context.operation} at step {context.step}"
    if theirs.culprit >= 0:
        text = (
            f"rank {theirs.culprit} failed: rank {peer} gave up because of it after "
            f"{format_steps(theirs.step)}, while {here}; find out what became of rank "
            f"{theirs.culprit}, then restart all ranks from the last snapshot"
        )
    else:
        text = (
            f"rank {peer} ended training after {format_steps(theirs.step)}, while {here}; give all ranks "
            "the same number of batches, empty ones where a rank has no more samples, or end all "
            "of them together"
        )
    return PeerFailure(
        text,
        rank=theirs.culprit if theirs.culprit >= 0 else peer,
        operation=context.operation,
        table=context.table,
        step=context.step,
        is_certain=True,
    )


def exchange_headers(
    messenger: Messenger, inbox: HeaderInbox, mine: Header, counts: Counts
) -> Headers:
    """Tells all ranks where this one is, and learns where they are.

    Args:
        counts: ``(world_size, tables)``: rows of each table that this rank wants of each rank,
            or sends to it.

    Raises:
        PeerFailure: a rank is gone or silent.
    """
    rank, world_size = messenger.collective.rank, messenger.collective.world_size
    peers = [(rank + hop) % world_size for hop in range(1, world_size)]
    going = []
    for peer in peers:
        message = mine.pack(counts[peer, :_NUM_COUNTS])
        going.append(messenger.send(MessageKind.HEADERS, message, peer, "header"))
    headers = [mine] * world_size
    theirs = np.zeros((world_size, min(mine.num_tables, _NUM_COUNTS)), np.int64)
    for peer in reversed(peers):
        message = inbox.take(peer)
        headers[peer] = Header.unpack(message)
        theirs[peer] = message[_NUM_FIELDS : _NUM_FIELDS + theirs.shape[1]]
    for transfer in going:
        # Who has ended takes nothing any more.
        if headers[transfer.peer].phase is not Phase.ENDED:
            messenger.wait(transfer)
    return Headers(headers, theirs)


def exchange_more_counts(messenger: Messenger, counts: Counts, first: Counts) -> Counts:
    """The counts of all tables: `first`, and those that headers have no room for.

    They are no headers, which a rank that gives up sends at any time.
    """
    if counts.shape[1] <= _NUM_COUNTS:
        return first
    rank, world_size = messenger.collective.rank, messenger.collective.world_size
    theirs = np.zeros_like(counts)
    theirs[:, :_NUM_COUNTS] = first
    transfers = []
    more = {peer: np.empty(counts.shape[1] - _NUM_COUNTS, np.int64) for peer in range(world_size)}
    for peer in range(world_size):
        if peer == rank:
            continue
        transfers.append(messenger.receive(MessageKind.COUNTS, more[peer], peer, "counts"))
        mine = np.ascontiguousarray(counts[peer, _NUM_COUNTS:])
        transfers.append(messenger.send(MessageKind.COUNTS, mine, peer, "counts"))
    for transfer in transfers:
        messenger.wait(transfer)
    for peer, received in more.items():
        if peer != rank:
            theirs[peer, _NUM_COUNTS:] = received
    return theirs


def compute_digest(value: Any) -> int:
    """63 bits of a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def check_headers(
    collective: Collective, headers: Sequence[Header], settings: Settings, requests: Sequence[str]
) -> None:
    """Returns if all ranks are in one place, with one set-up, and about to do the same.

    Args:
        headers: of all ranks.
        settings: of this rank.
        requests: descriptions of what this rank is about to exchange.

    Raises:
        PeerFailure: a rank has ended, or is elsewhere.
        InvalidArgumentError: ranks were set up otherwise, or exchange other tables, and none
            refuses the exchange anyway.
    """
    mine = headers[collective.rank]
    elsewhere = [
        rank
        for rank, theirs in enumerate(headers)
        if (theirs.phase, theirs.step) != (mine.phase, mine.step)
    ]
    if elsewhere:
        # A rank that has ended explains why others are elsewhere.
        peer = min(elsewhere, key=lambda rank: headers[rank].phase is not Phase.ENDED)
        raise _out_of_step_failure(collective, mine, peer, headers[peer])
    if any(each.has_error for each in headers):
        return  # what a rank refuses may be why it differs: `raise_on_all` says it
    if any(each.settings != mine.settings for each in headers):
        Coordinator(collective, f"step {mine.step}").all_equal(
            settings,
            "ranks were set up differently",
            "start all ranks with one configuration, one set of tables and one version of the code",
        )
    if any(each.requests != mine.requests for each in headers):
        Coordinator(collective, f"step {mine.step}").all_equal(
            {"request": list(requests)},
            f"at step {mine.step} ranks exchange rows of different tables",
            "all ranks must look up the same tables in the same order, with empty batches where "
            "they have no ids",
        )


def raise_on_all(
    collective: Collective, headers: Sequence[Header], error: BaseException | None
) -> None:
    """Raises on all ranks an error that any of them has; returns if there is none.

    Args:
        headers: of all ranks.
        error: why this rank cannot go on.

    Raises:
        BaseException: `error`.
        SparringError: another rank's error, of its class, naming that rank as `rank`.
        PeerFailure: another rank's error is none of sparring's.
    """
    if not any(each.has_error for each in headers):
        return
    mine = headers[collective.rank]
    is_applied = mine.phase in (Phase.PUSH, Phase.COMMIT)
    became = "apply it" if is_applied else "look its rows up"
    operation = "apply" if is_applied else "pull"
    Coordinator(collective, f"step {mine.step}").raise_first(
        error,
        f"cannot {became}, so no rank does",
        partial(PeerFailure, operation=operation, table=None, is_certain=True),
        step=mine.step,
    )


def _out_of_step_failure(
    collective: Collective, mine: Header, peer: int, theirs: Header
) -> PeerFailure:
    is_training = mine.phase in (Phase.LOOKUP, Phase.PUSH, Phase.BACKWARD)
    if theirs.phase is Phase.ENDED or (theirs.phase is Phase.READ and is_training):
        return make_peer_failure(collective, peer, theirs)
    return PeerFailure(
        f"rank {peer} {theirs.phase.verb}, step {theirs.step}, while rank {collective.rank} "
        f"{mine.phase.verb}, step {mine.step}; all ranks must make the same lookups and steps in "
        "the same order",
        rank=peer,
        operation=collective.context.operation,
        table=collective.context.table,
        step=mine.step,
        is_certain=True,
    )


def send_shutdown_notice(messenger: Messenger, step: int, culprit: int | None) -> None:
    """Tells the others that this rank will take part in nothing more. Waits for no answer.

    Args:
        culprit: the rank whose failure is the reason.
    """
    rank, world_size = messenger.collective.rank, messenger.collective.world_size
    mine = Header(Phase.ENDED, step, 0, 0, False, 0, -1 if culprit is None else culprit)
    going = []
    for hop in range(1, world_size):
        peer = (rank + hop) % world_size
        if peer == culprit:
            continue
        try:
            message = mine.pack(np.empty(0, np.int64))
            going.append(messenger.send(MessageKind.HEADERS, message, peer, "shutdown notice"))
        except (PeerFailure, ClosedError):
            continue  # a rank that is gone needs no shutdown notice
    seconds = _NOTICE_SHARE * messenger.collective.deadline_seconds
    limit = time.monotonic() + min(_MAX_NOTICE_SECONDS, seconds)
    while not all(each.work.done() for each in going) and time.monotonic() < limit:
        time.sleep(0.001)
