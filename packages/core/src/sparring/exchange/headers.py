"""Headers that ranks send at the beginning of each exchange, before large messages.

    ┌───────┬──────┬──────────┬──────────┬───────────┬────────────┬─────────┬────────────┐
    │ phase │ step │ settings │ requests │ has_error │ num_tables │ culprit │ counts of  │
    │       │      │ (digest) │ (digest) │           │            │         │ 57 tables  │
    └───────┴──────┴──────────┴──────────┴───────────┴────────────┴─────────┴────────────┘

Each rank sends 512 bytes to each other rank. A count is the number of rows of a table that the rank
requests or sends; the counts of further tables follow in a separate message. The headers show
whether a rank has ended, is in another operation, has other settings, or rejects the step. All
ranks react to this in the same way. Therefore no rank waits for a message that never arrives.
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
from sparring.exchange.two_levels import TwoLevels

__all__ = [
    "Header",
    "Headers",
    "HeaderInbox",
    "NUM_LEVEL_COUNTS",
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
NUM_LEVEL_COUNTS = 3
"""Counts before those of tables, if ranks exchange messages in two levels: the keys of the longest stream
of the rank, and the bytes of the message that follows and of its reply."""

_MESSAGE_SIZES = slice(_NUM_FIELDS + 1, _NUM_FIELDS + NUM_LEVEL_COUNTS)
_NOTICE_SHARE, _MAX_NOTICE_SECONDS = 0.02, 1.0
"""How long a rank waits until its shutdown notice is sent: a share of the deadline, but at most
this many seconds. Some transports send the notice only when the receiver polls, and a receiver that
has also aborted never polls."""

_ENDED_SECONDS = 0.5
"""Maximum time that messages of a rank may take to arrive after its shutdown notice."""

Counts = npt.NDArray[np.int64]

Settings = Mapping[str, Any]
"""Settings that must be equal on all ranks: a mapping of names to JSON values or to further
mappings."""


class Phase(IntEnum):
    """Operation that a rank is about to start."""

    LOOKUP = 1
    """Pull rows for training."""
    READ = 2
    """Pull rows without a later gradient."""
    PUSH = 3
    """Push gradients to apply a step."""
    COMMIT = 4
    """Write a step, after all checks."""
    ENDED = 5
    """No further operation; the header is a shutdown notice."""
    REFRESH = 6
    """Pull rows again that a step has changed since they were pulled."""
    BACKWARD = 7
    """Request the gradients of weights from owners that pool."""

    @property
    def verb(self) -> str:
        return {
            Phase.LOOKUP: "looks up rows for training",
            Phase.READ: "looks up rows without training",
            Phase.PUSH: "applies a step",
            Phase.COMMIT: "is about to write a step",
            Phase.ENDED: "has ended",
            Phase.REFRESH: "refreshes prefetched rows",
            Phase.BACKWARD: "computes gradients of weights",
        }[self]


@dataclass(frozen=True, slots=True)
class Header:
    """Current operation and state of a rank."""

    phase: Phase
    step: int
    """Number of applied steps."""
    settings: int
    requests: int
    """63-bit digests of the settings that all ranks must share, and of the requested tables."""
    has_error: bool
    num_tables: int
    culprit: int = -1
    """Rank whose failure is the reason for a shutdown; -1: none."""

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
    """In the order of ranks, including this rank."""
    counts: Counts
    """``(world_size, first tables)``: rows that each rank requests from this one, or sends to it."""


def header_bytes(num_tables: int) -> int:
    """Returns the bytes that one rank sends to another at the beginning of an exchange of
    `num_tables`."""
    return HEADER_BYTES + 8 * max(0, num_tables - _NUM_COUNTS)


class HeaderInbox:
    """Receives headers.

    A rank that aborts during an exchange notifies the others with a header. They poll for it when no
    message makes progress, so that all of them report the rank that failed first.
    """

    def __init__(self, messenger: Messenger) -> None:
        self._messenger = messenger
        # Headers that are being received early, and headers that were received early.
        self._coming: dict[int, tuple[Work, Counts]] = {}
        self._arrived: dict[int, Counts] = {}

    def poll(self) -> None:
        """Raises `PeerFailure` if a rank has aborted, or has ended although messages of it are missing.
        Stores the headers of ranks that are ahead."""
        for peer in range(self._messenger.collective.world_size):
            if peer in self._arrived:
                header = Header.unpack(self._arrived[peer])
                # Messages that it sent before it ended may still arrive.
                is_over = header.phase is Phase.ENDED
                if is_over and self._messenger.silent_seconds(peer) > _ENDED_SECONDS:
                    raise make_peer_failure(self._messenger.collective, peer, header)
                continue
            if peer not in self._messenger.direct_ranks:
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
        """Returns the shutdown notice of a rank, or None if none has arrived."""
        if peer not in self._arrived:
            return None
        header = Header.unpack(self._arrived[peer])
        return header if header.phase is Phase.ENDED else None

    def take(self, peer: int) -> Counts:
        """Waits for the next header of a rank and returns it.

        Raises:
            PeerFailure: the rank is gone or does not respond.
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
    """Formats a number of steps: ``1 step``, ``2 steps``."""
    return f"{count} step{'' if count == 1 else 's'}"


def make_peer_failure(collective: Collective, peer: int, theirs: Header) -> PeerFailure:
    """Creates the error of a rank that detects that another one has ended."""
    context = collective.context
    here = f"rank {collective.rank} was in {context.operation} at step {context.step}"
    if theirs.culprit >= 0:
        text = (
            f"rank {theirs.culprit} failed: rank {peer} aborted because of it after "
            f"{format_steps(theirs.step)}, while {here}; find out why rank {theirs.culprit} failed, "
            "then restart all ranks from the last snapshot"
        )
    else:
        text = (
            f"rank {peer} ended training after {format_steps(theirs.step)}, while {here}; pass the same "
            "number of batches on all ranks, with empty batches if a rank has no more samples, or end "
            "all of them together"
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
    messenger: Messenger,
    inbox: HeaderInbox,
    mine: Header,
    counts: Counts,
    levels: TwoLevels | None = None,
) -> Headers:
    """Sends this rank's header to all ranks, and receives theirs.

    Args:
        messenger: sends and receives messages.
        inbox: receives headers.
        mine: header of this rank.
        counts: ``(world_size, tables)``: rows of each table that this rank requests from each rank,
            or sends to it.
        levels: routes of messages in two levels; None: one level.

    Raises:
        PeerFailure: a rank is gone or does not respond.
    """
    world_size = messenger.collective.world_size
    messages = {peer: mine.pack(counts[peer, :_NUM_COUNTS]) for peer in messenger.later_ranks}
    going = [
        messenger.send(MessageKind.HEADERS, message, peer, "header")
        for peer, message in messages.items()
        if peer in messenger.direct_ranks
    ]
    sources = [peer for peer in messenger.earlier_ranks if peer in messenger.direct_ranks]
    if levels is None:
        received = {peer: inbox.take(peer) for peer in sources}
    else:
        received = levels.exchange_headers(
            messages, sources, inbox.take, _has_ended, _MESSAGE_SIZES
        )
    headers = [mine] * world_size
    theirs = np.zeros((world_size, min(mine.num_tables, _NUM_COUNTS)), np.int64)
    for peer, message in received.items():
        headers[peer] = Header.unpack(message)
        theirs[peer] = message[_NUM_FIELDS : _NUM_FIELDS + theirs.shape[1]]
    for transfer in going if len(received) == world_size - 1 else ():
        # A rank that has ended receives no more messages.
        if headers[transfer.peer].phase is not Phase.ENDED:
            messenger.wait(transfer)
    return Headers(headers, theirs)


def _has_ended(message: Counts) -> bool:
    return Header.unpack(message).phase is Phase.ENDED


def exchange_more_counts(
    messenger: Messenger, counts: Counts, first: Counts, levels: TwoLevels | None = None
) -> Counts:
    """Exchanges the counts that do not fit into headers, and returns the counts of all tables.

    They are separate messages, because a rank that aborts may send a header at any time.

    Args:
        messenger: sends and receives messages.
        counts: ``(world_size, tables)``: counts of this rank.
        first: counts of the other ranks from their headers.
        levels: routes of messages in two levels; None: one level.
    """
    if counts.shape[1] <= _NUM_COUNTS:
        return first
    theirs = np.zeros_like(counts)
    theirs[:, :_NUM_COUNTS] = first
    peers = messenger.later_ranks
    mine = {peer: np.ascontiguousarray(counts[peer, _NUM_COUNTS:]) for peer in peers}
    num_bytes = 8 * (counts.shape[1] - _NUM_COUNTS)
    if levels is not None:
        sizes = dict.fromkeys(peers, num_bytes)
        more = levels.exchange(MessageKind.COUNTS, mine, sizes, part_bytes=num_bytes)
    else:
        more = {peer: np.empty(num_bytes, np.uint8) for peer in peers}
        transfers = []
        for peer in peers:
            transfers.append(messenger.receive(MessageKind.COUNTS, more[peer], peer, "counts"))
            transfers.append(messenger.send(MessageKind.COUNTS, mine[peer], peer, "counts"))
        for transfer in transfers:
            messenger.wait(transfer)
    for peer, received in more.items():
        theirs[peer, _NUM_COUNTS:] = received.view(np.int64)
    return theirs


def compute_digest(value: Any) -> int:
    """Returns a 63-bit digest of a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def check_headers(
    collective: Collective,
    headers: Sequence[Header],
    settings: Settings,
    requests: Sequence[str] | Settings,
) -> None:
    """Checks that all ranks are at the same step with the same settings, and start the same operation.

    Args:
        collective: connection to the other ranks.
        headers: headers of all ranks.
        settings: settings of this rank.
        requests: descriptions of the tables that this rank exchanges; or settings of the update that
            it applies.

    Raises:
        PeerFailure: a rank has ended, or is in another operation.
        InvalidArgumentError: ranks have different settings, exchange different tables or apply
            different updates, and no rank has an error.
    """
    mine = headers[collective.rank]
    elsewhere = [
        rank
        for rank, theirs in enumerate(headers)
        if (theirs.phase, theirs.step) != (mine.phase, mine.step)
    ]
    if elsewhere:
        # A rank that has ended may be the reason why others are in another operation.
        peer = min(elsewhere, key=lambda rank: headers[rank].phase is not Phase.ENDED)
        raise _out_of_step_failure(collective, mine, peer, headers[peer])
    if any(each.has_error for each in headers):
        return  # the error may be the reason for a difference: `raise_on_all` raises it
    if any(each.settings != mine.settings for each in headers):
        Coordinator(collective, f"step {mine.step}").all_equal(
            settings,
            "ranks were set up differently",
            "start all ranks with the same configuration, tables and version of the code",
        )
    if any(each.requests != mine.requests for each in headers):
        if isinstance(requests, Mapping):
            Coordinator(collective, f"step {mine.step}").all_equal(
                requests,
                f"step {mine.step + 1} was not applied, because ranks would update rows differently",
                "set the same hyper-parameters on all ranks, and load the optimizer's state on all or "
                "none of them; if they depend on a metric, average it over the ranks",
            )
            return
        Coordinator(collective, f"step {mine.step}").all_equal(
            {"request": list(requests)},
            f"at step {mine.step} ranks exchange rows of different tables",
            "all ranks must look up the same tables in the same order, with empty batches if "
            "they have no ids",
        )


def raise_on_all(
    collective: Collective, headers: Sequence[Header], error: BaseException | None
) -> None:
    """Raises an error of any rank on all ranks; returns if there is none.

    Args:
        collective: connection to the other ranks.
        headers: headers of all ranks.
        error: error of this rank, if it has one.

    Raises:
        BaseException: `error`.
        SparringError: the error of another rank, with its class; the attribute `rank` is its number.
        PeerFailure: the error of another rank is not a `SparringError`.
    """
    if not any(each.has_error for each in headers):
        return
    mine = headers[collective.rank]
    is_applied = mine.phase in (Phase.PUSH, Phase.COMMIT)
    became = "apply it" if is_applied else "look up its rows"
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
    """Notifies the others that this rank takes part in no further operation, without waiting for
    replies.

    Args:
        messenger: sends messages.
        step: number of applied steps.
        culprit: rank whose failure is the reason; None: none.
    """
    mine = Header(Phase.ENDED, step, 0, 0, False, 0, -1 if culprit is None else culprit)
    going = []
    for peer in messenger.later_ranks:
        if peer == culprit or peer not in messenger.direct_ranks:
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
