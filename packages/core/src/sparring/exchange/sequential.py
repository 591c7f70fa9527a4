"""Pull and push without overlap: everything is found, then one all-to-all. For comparison.

It moves the same bytes in the same layout as the ring, each stream in one message.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.exchange.counters import MessageKind
from sparring.exchange.link import Link
from sparring.exchange.pushing import Sums, gradient_bytes, pack_gradients
from sparring.exchange.record import PullRecord
from sparring.exchange.reply import find_into, find_rows, place_reply, refuse_into, reply_bytes
from sparring.exchange.requests import OwnedGradients, Pulled, PullRequest, PushRequest
from sparring.exchange.routing import Routed, whole_stream
from sparring.exchange.wire import Codec

__all__ = ["pull_at_once", "push_at_once"]

Bytes = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.int64]

_NOTHING: Bytes = np.empty(0, np.uint8)


def pull_at_once(
    link: Link,
    requests: Sequence[PullRequest],
    codecs: Sequence[Codec],
    routed: Routed,
    served_counts: Counts,
    record: PullRecord | None = None,
) -> list[Pulled]:
    """As `RingPull.run`."""
    rank = link.collective.rank
    asked = _all_to_all(link, MessageKind.KEYS, [each.view(np.uint8) for each in routed.streams])
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
            with link.span("find", peer):
                find_into(message, chunk, keys.view(np.int64), requests, codecs)
        except BaseException as failure:
            error = error or failure
            refuse_into(message)
        replies.append(message)
    results = [
        Pulled(
            np.empty(
                (len(each.keys), each.columns.end - each.columns.begin), each.table.numpy_dtype
            ),
            np.empty(len(each.keys), np.bool_),
        )
        for each in requests
    ]
    for table, request in enumerate(requests):
        places = _own_places(routed, table, rank)
        own = request.keys[places]
        try:
            found = find_rows(request.storage, request.table, own, request.columns)
        except BaseException as failure:
            error = error or failure
            continue
        _native.place_rows(found.rows, places, results[table].rows)
        results[table].found[places] = found.found
    for owner, message in enumerate(_all_to_all(link, MessageKind.ROWS, replies)):
        chunk = whole_stream(routed.counts[owner])
        if chunk is None or owner == rank:
            continue
        try:
            place_reply(message, chunk, owner, routed, codecs, results)
        except BaseException as failure:
            error = error or failure
    if error is not None:
        raise error
    return results


def push_at_once(
    link: Link,
    requests: Sequence[PushRequest],
    codecs: Sequence[Codec],
    routed: Routed,
    coming_counts: Counts,
) -> list[OwnedGradients]:
    """As `RingPush.run`; sums are taken in the same order."""
    rank, world_size = link.collective.rank, link.collective.world_size
    messages = []
    for owner in range(world_size):
        chunk = whole_stream(routed.counts[owner])
        is_sent = chunk is not None and owner != rank
        message = _NOTHING
        if is_sent and chunk is not None:
            message = np.empty(gradient_bytes(chunk, codecs), np.uint8)
            pack_gradients(message, chunk, owner, routed, requests, codecs)
        messages.append(message)
    received = _all_to_all(link, MessageKind.GRADIENTS, messages)
    sums = Sums(requests, codecs)
    sums.add_own(rank, routed)
    for hop in range(1, world_size):
        sender = (rank - hop) % world_size
        chunk = whole_stream(coming_counts[sender])
        if chunk is None:
            continue
        assert received[sender].nbytes == gradient_bytes(chunk, codecs)
        with link.span("add up", sender):
            sums.add_message(received[sender], chunk)
    return sums.take()


def _own_places(routed: Routed, table: int, rank: int) -> npt.NDArray[np.int64]:
    offsets = routed.offsets[table]
    return routed.orders[table][int(offsets[rank]) : int(offsets[rank + 1])]


def _all_to_all(link: Link, kind: MessageKind, parts: list[Bytes]) -> list[Bytes]:
    rank = link.collective.rank
    parts = [_NOTHING if peer == rank else part for peer, part in enumerate(parts)]
    with link.span(f"all-to-all {kind.value}", rank):
        received = link.collective.all_to_all(parts)
    link.counters.wire_bytes_sent.add(kind, sum(part.nbytes for part in parts))
    link.counters.wire_bytes_received.add(kind, sum(part.nbytes for part in received))
    return received
