"""Gradients of replicated tables: each rank gets those of all ranks.

Replicas must stay alike bit for bit, and float addition depends on its order. So every rank adds up in
the order of ranks, from 0 on, and its own gradients arrive as those of others do: narrowed, where a
wire dtype says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparring.exchange.counters import MessageKind
from sparring.exchange.link import Link
from sparring.exchange.pushing import Sums, gradient_bytes, pack_gradients
from sparring.exchange.requests import OwnedGradients, PushRequest
from sparring.exchange.routing import Routed, whole_stream
from sparring.exchange.wire import Codec

__all__ = ["push_to_replicas"]

Bytes = npt.NDArray[np.uint8]


def push_to_replicas(
    link: Link,
    requests: Sequence[PushRequest],
    codecs: Sequence[Codec],
    coming: npt.NDArray[np.int64],
) -> list[OwnedGradients]:
    """The gradients of all ranks, added up by key: the same bits on every rank.

    Args:
        link: sends and receives.
        requests: one for each replicated table.
        codecs: how each table's gradients travel.
        coming: ``(world_size, tables)``: keys of each table that each rank sends to every other.

    Raises:
        PeerFailure: a rank is gone or silent.
    """
    rank, world_size = link.collective.rank, link.collective.world_size
    counts = coming.copy()
    counts[rank] = [len(each.keys) for each in requests]
    chunks = [whole_stream(each) for each in counts]
    messages: list[Bytes | None] = [
        None if chunk is None else np.empty(gradient_bytes(chunk, codecs), np.uint8)
        for chunk in chunks
    ]
    peers = [(rank + hop) % world_size for hop in range(1, world_size)]
    transfers = [
        link.receive(MessageKind.GRADIENTS, messages[peer], peer, "replicas")
        for peer in reversed(peers)
        if messages[peer] is not None
    ]
    chunk, mine = chunks[rank], messages[rank]
    if chunk is not None and mine is not None:
        pack_gradients(mine, chunk, 0, _to_one_owner(requests), requests, codecs)
        transfers += [link.send(MessageKind.GRADIENTS, mine, peer, "replicas") for peer in peers]
    for transfer in transfers:
        link.wait(transfer)
    sums = Sums(requests, codecs)
    for chunk, message in zip(chunks, messages, strict=True):
        if chunk is not None and message is not None:
            sums.add_message(message, chunk)
    return sums.take()


def _to_one_owner(requests: Sequence[PushRequest]) -> Routed:
    """All keys as one stream."""
    sizes = [len(each.keys) for each in requests]
    return Routed(
        [np.arange(size) for size in sizes],
        [np.array([0, size]) for size in sizes],
        np.array([sizes]),
        [np.concatenate([each.keys for each in requests])],
    )
