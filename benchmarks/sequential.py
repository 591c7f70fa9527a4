"""Pull and push without overlap: all rows are found, then one all-to-all; the reference for the ring.

It sends the same bytes in the same layout as the ring, each stream in one message.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparring.contracts.device.kernel_set import KernelSet
from sparring.exchange.messages import (
    Codec,
    OwnedGradients,
    PullRequest,
    PullResult,
    PushRequest,
    gradient_bytes,
    reply_bytes,
    write_failure,
)
from sparring.exchange.messenger import MessageKind, Messenger
from sparring.exchange.push import GradientSums
from sparring.exchange.refresh import PullRecord
from sparring.exchange.ring import RingExchange
from sparring.exchange.routing import RoutedKeys, whole_stream
from sparring.exchange.table_rows import TableRows
from sparring.exchange.two_levels import TwoLevels

__all__ = ["EXCHANGES", "SequentialExchange"]

Bytes = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.int64]

_NOTHING: Bytes = np.empty(0, np.uint8)


class SequentialExchange(RingExchange):
    """A ring exchange whose pulls and pushes do not overlap; sums are computed in the same order."""

    def _pull_sharded(
        self,
        requests: Sequence[PullRequest],
        codecs: Sequence[Codec],
        routed: RoutedKeys,
        served_counts: Counts,
        record: PullRecord | None,
        kernels: KernelSet,
        levels: TwoLevels | None,
    ) -> list[PullResult]:
        messenger = self.session.messenger
        rank = messenger.collective.rank
        asked = _all_to_all(
            messenger, MessageKind.KEYS, [each.view(np.uint8) for each in routed.streams]
        )
        results = [
            PullResult(
                np.empty((len(each.keys), each.width), each.table.numpy_dtype),
                np.empty(len(each.keys), np.bool_),
            )
            for each in requests
        ]
        rows = TableRows(requests, codecs, routed, results)
        error: BaseException | None = None
        replies = []
        for peer, keys in enumerate(asked):
            chunk = whole_stream(served_counts[peer])
            if chunk is None or peer == rank:
                replies.append(_NOTHING)
                continue
            if record is not None:
                record.add(peer, keys.view(np.int64))
            message = np.empty(reply_bytes(chunk, codecs), np.uint8)
            try:
                with messenger.span("find", peer):
                    rows.find(message, chunk, keys.view(np.int64))
            except BaseException as failure:
                error = error or failure
                write_failure(message)
            replies.append(message)
        own = whole_stream(routed.counts[rank])
        try:
            if own is not None:
                rows.find_own(own, rank)
        except BaseException as failure:
            error = error or failure
        for owner, message in enumerate(_all_to_all(messenger, MessageKind.ROWS, replies)):
            chunk = whole_stream(routed.counts[owner])
            if chunk is None or owner == rank:
                continue
            try:
                rows.place(message, chunk, owner)
            except BaseException as failure:
                error = error or failure
        if error is not None:
            raise error
        return results

    def _push_sharded(
        self,
        requests: Sequence[PushRequest],
        codecs: Sequence[Codec],
        routed: RoutedKeys,
        coming: Counts,
        kernels: KernelSet,
        levels: TwoLevels | None,
    ) -> list[OwnedGradients]:
        messenger = self.session.messenger
        rank, world_size = messenger.collective.rank, messenger.collective.world_size
        messages = []
        sums = GradientSums(requests, codecs, routed)
        for owner in range(world_size):
            chunk = whole_stream(routed.counts[owner])
            is_sent = chunk is not None and owner != rank
            message = _NOTHING
            if is_sent and chunk is not None:
                message = np.empty(gradient_bytes(chunk, codecs), np.uint8)
                sums.pack(message, chunk, owner)
            messages.append(message)
        received = _all_to_all(messenger, MessageKind.GRADIENTS, messages)
        sums.add_own(rank)
        for hop in range(1, world_size):
            sender = (rank - hop) % world_size
            chunk = whole_stream(coming[sender])
            if chunk is None:
                continue
            assert received[sender].nbytes == gradient_bytes(chunk, codecs)
            with messenger.span("add up", sender):
                sums.add_message(received[sender], chunk)
        return sums.take()


EXCHANGES: dict[str, type[RingExchange]] = {"ring": RingExchange, "sequential": SequentialExchange}
"""Schedule → its exchange. Assign it to ``exchange.__class__`` to change an existing exchange, because a
collective supports only one."""


def _all_to_all(messenger: Messenger, kind: MessageKind, parts: list[Bytes]) -> list[Bytes]:
    rank = messenger.collective.rank
    parts = [_NOTHING if peer == rank else part for peer, part in enumerate(parts)]
    with messenger.span(f"all-to-all {kind.value}", rank):
        received = messenger.collective.all_to_all(parts)
    messenger.counters.wire_bytes_sent.add(kind, sum(part.nbytes for part in parts))
    messenger.counters.wire_bytes_received.add(kind, sum(part.nbytes for part in received))
    return received
