"""Ranks as threads, over the least cooperative transport that the contract allows.

A message leaves its buffer only when the receiver has requested it and polls. Only then is the send
complete, as for large messages of MPI. Code that overwrites a buffer too early, or waits for a send
before it receives, fails. Messages also need a random number of polls, so that they arrive in every
order that the contract allows.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict, deque
from typing import Any

import numpy as np

from sparring.contracts.ranks.collective import Collective, Work
from sparring.errors import PeerFailure


class LateGroup:
    """State that the ranks share.

    Args:
        seed: seed of the random number of polls that messages take.
        is_hasty: a receive takes the first message, although an earlier receive waits for it. The
            contract does not allow this, but a transport that looks up messages when it is polled
            does so, unless receives are polled in order.
    """

    def __init__(
        self,
        world_size: int,
        seed: int = 0,
        *,
        is_hasty: bool = False,
        deadline_seconds: float = 20.0,
    ) -> None:
        self.is_hasty = is_hasty
        self.world_size = world_size
        self.deadline_seconds = deadline_seconds
        self.lock = threading.Lock()
        self.random = random.Random(seed)
        # (source, destination, tag) -> sent messages, and waiting receives, in order
        self.sent: dict[tuple[int, int, int], deque[_Late]] = defaultdict(deque)
        self.wanted: dict[tuple[int, int, int], deque[_Late]] = defaultdict(deque)

    def join(self, rank: int) -> Collective:
        return _LateCollective(self, rank)


class _Late(Work):
    def __init__(self, group: LateGroup, box: tuple[int, int, int], buffer: Any) -> None:
        self.group = group
        self.box = box
        self.buffer = buffer.reshape(-1).view(np.uint8)
        self.is_done = False
        self.looks_left = group.random.randrange(4)

    def done(self) -> bool:
        group = self.group
        with group.lock:
            self.looks_left -= 1
            sent, wanted = group.sent[self.box], group.wanted[self.box]
            if self.looks_left < 0 and sent and wanted:
                target = self if group.is_hasty and self in wanted else wanted[0]
                wanted.remove(target)
                source = sent.popleft()
                assert source.buffer.nbytes == target.buffer.nbytes
                target.buffer[...] = source.buffer
                source.is_done = target.is_done = True
            return self.is_done

    def wait(self) -> None:
        limit = time.monotonic() + self.group.deadline_seconds
        while not self.done():
            if time.monotonic() > limit:
                raise PeerFailure("nothing came", rank=self.box[0])
            time.sleep(20e-6)


class _LateCollective(Collective):
    def __init__(self, group: LateGroup, rank: int) -> None:
        super().__init__(rank, group.world_size, deadline_seconds=group.deadline_seconds)
        self.group = group

    def close(self) -> None:
        """Nothing is buffered."""

    def _send_impl(self, buffer: Any, destination: int, tag: int) -> Work:
        work = _Late(self.group, (self.rank, destination, tag), buffer)
        with self.group.lock:
            self.group.sent[work.box].append(work)
        return work

    def _receive_impl(self, buffer: Any, source: int, tag: int) -> Work:
        work = _Late(self.group, (source, self.rank, tag), buffer)
        with self.group.lock:
            self.group.wanted[work.box].append(work)
        return work
