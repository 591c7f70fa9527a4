"""Pull and push in two levels, for streams of at most one chunk on all ranks.

They do the work of `RingPull` and `RingPush` in the same order, but exchange all messages of a kind
together, in rounds of `TwoLevels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from sparring.exchange.messages import KEY_BYTES, Codec, reply_bytes, write_failure
from sparring.exchange.messenger import MessageKind
from sparring.exchange.pull import RingPull
from sparring.exchange.push import GradientSums, RingPush, RowPrefetch
from sparring.exchange.routing import ChunkTransfer
from sparring.exchange.two_levels import TwoLevels

__all__ = ["TwoLevelPull", "TwoLevelPush", "stream_bytes"]


@dataclass(slots=True)
class TwoLevelPull(RingPull):
    """A pull in two levels. Its executor must be inline."""

    levels: TwoLevels = field(kw_only=True)

    def _run_in_order(
        self,
        to_ask: Sequence[ChunkTransfer],
        to_serve: Sequence[ChunkTransfer],
        to_find: Sequence[ChunkTransfer],
    ) -> None:
        def find_own() -> None:
            for planned in to_find:
                find = partial(self._rows.find_own, planned.chunk, planned.peer)
                self._ended(self._submit(find), "hop 0")

        keys = self.levels.exchange(
            MessageKind.KEYS,
            {each.peer: self.routed.streams[each.peer] for each in to_ask},
            {each.peer: each.chunk.count * KEY_BYTES for each in to_serve},
            meanwhile=find_own,
        )
        replies = {}
        for planned in to_serve:
            theirs = keys[planned.peer].view(np.int64)
            if self.record is not None:
                self.record.add(planned.peer, theirs)
            message = self.buffers.take(reply_bytes(planned.chunk, self.codecs))
            job = self._submit(partial(self._rows.find, message, planned.chunk, theirs))
            self._ended(job, planned.label)
            if job.error is not None:
                write_failure(message)
            replies[planned.peer] = message
        rows = self.levels.exchange(
            MessageKind.ROWS,
            replies,
            {each.peer: reply_bytes(each.chunk, self.codecs) for each in to_ask},
        )
        for planned in to_ask:
            self._place(rows[planned.peer], planned)
        for message in replies.values():
            self.buffers.give_back(message)


@dataclass(slots=True)
class TwoLevelPush(RingPush):
    """A push in two levels. Its executors must be inline."""

    levels: TwoLevels = field(kw_only=True)

    def _run_in_order(
        self,
        to_send: Sequence[ChunkTransfer],
        to_receive: Sequence[ChunkTransfer],
        sums: GradientSums,
        ahead: RowPrefetch,
    ) -> None:
        messages = {}
        for planned in to_send:
            messages[planned.peer] = self.buffers.take(self._bytes(planned))
            sums.pack(messages[planned.peer], planned.chunk, planned.peer)
        received = self.levels.exchange(
            MessageKind.GRADIENTS,
            messages,
            {each.peer: self._bytes(each) for each in to_receive},
            meanwhile=ahead.advance,
        )
        # In the order of hops, as in the ring.
        for planned in to_receive:
            add = partial(sums.add_message, received[planned.peer], planned.chunk)
            self._ended(self.executor.submit(add), planned.label)
            ahead.advance()
        for message in messages.values():
            self.buffers.give_back(message)


def stream_bytes(
    counts: npt.NDArray[np.int64], codecs: Sequence[Codec], *, is_push: bool
) -> npt.NDArray[np.int64]:
    """Returns the bytes of the messages of whole streams, ``(world_size, 2)``: of keys and of the rows in
    reply, or, in a push, of gradients and 0.

    Args:
        counts: ``(world_size, tables)``: number of keys per rank and table.
        codecs: codec of each table.
        is_push: whether gradients are sent.
    """
    found = np.zeros((len(counts), 2), np.int64)
    per_key = KEY_BYTES if is_push else 1
    for column, codec in zip(counts.T, codecs, strict=True):
        found[:, 0 if is_push else 1] += -(-column * (codec.row_bytes + per_key) // 8) * 8
    if not is_push:
        found[:, 0] = counts.sum(axis=1) * KEY_BYTES
    return found
