"""Ranks as threads, with simulated links of a given bandwidth, and storages with a given delay.

The time of a transfer is waited for, not computed. Therefore threads of one process overlap as processes
on several machines do, and figures do not depend on the loopback of this machine.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparring import open_storage
from sparring.contracts import Collective, Storage, TableConfig, Work

__all__ = ["ShapedGroup", "run_ranks", "slow_storage"]


class ShapedGroup:
    """Each rank sends through one link, like a machine through its network card.

    Args:
        world_size: number of ranks.
        bytes_per_second: bandwidth of each rank's link.
        latency_seconds: additional latency per message.
    """

    def __init__(
        self, world_size: int, bytes_per_second: float, latency_seconds: float = 50e-6
    ) -> None:
        self.world_size = world_size
        self.bytes_per_second = bytes_per_second
        self.latency_seconds = latency_seconds
        self.lock = threading.Lock()
        self.free_at = [0.0] * world_size
        # (source, destination, tag) -> (arrival time, message) in the order of sending
        self.boxes: dict[tuple[int, int, int], deque[tuple[float, Any]]] = defaultdict(deque)

    def join(self, rank: int) -> Collective:
        """Returns the collective of one rank."""
        return _Shaped(self, rank)


@dataclass
class _Sending(Work):
    gone_at: float

    def done(self) -> bool:
        return time.perf_counter() >= self.gone_at

    def wait(self) -> None:
        time.sleep(max(0.0, self.gone_at - time.perf_counter()))


@dataclass
class _Receiving(Work):
    group: ShapedGroup
    box: tuple[int, int, int]
    buffer: Any
    is_done: bool = False

    def done(self) -> bool:
        if self.is_done:
            return True
        messages = self.group.boxes[self.box]
        return bool(messages) and time.perf_counter() >= messages[0][0]

    def wait(self) -> None:
        while not self.done():
            messages = self.group.boxes[self.box]
            left = messages[0][0] - time.perf_counter() if messages else 50e-6
            time.sleep(max(left, 1e-6))
        if not self.is_done:
            self.is_done = True
            _, message = self.group.boxes[self.box].popleft()
            self.buffer.reshape(-1).view(np.uint8)[...] = message


class _Shaped(Collective):
    def __init__(self, group: ShapedGroup, rank: int) -> None:
        super().__init__(rank, group.world_size)
        self.group = group

    def close(self) -> None:
        """Does nothing, because there are no resources to release."""

    def _send_impl(self, buffer: Any, destination: int, tag: int) -> Work:
        group = self.group
        message = buffer.reshape(-1).view(np.uint8).copy()
        with group.lock:
            begin = max(group.free_at[self.rank], time.perf_counter())
            gone_at = begin + message.nbytes / group.bytes_per_second
            group.free_at[self.rank] = gone_at
            arrival = gone_at + group.latency_seconds
            group.boxes[(self.rank, destination, tag)].append((arrival, message))
        return _Sending(gone_at)

    def _receive_impl(self, buffer: Any, source: int, tag: int) -> Work:
        return _Receiving(self.group, (source, self.rank, tag), buffer)


def slow_storage(table: TableConfig, seconds_per_row: float) -> Storage:
    """A storage whose finds take the given time and which stores no rows."""
    storage = open_storage("memory", table)

    def find(keys: Any, _columns: Any, rows: Any, found: Any) -> None:
        end = time.perf_counter() + len(keys) * seconds_per_row
        rows[...] = 0
        found[...] = False
        time.sleep(max(0.0, end - time.perf_counter()))

    storage._find_impl = find  # type: ignore[method-assign]
    storage._upsert_impl = lambda *_: storage._nothing_evicted()  # type: ignore[method-assign]
    return storage


def run_ranks(group: ShapedGroup, body: Callable[[Collective], float]) -> list[float]:
    """Runs `body` on each rank, each on its own thread."""
    with ThreadPoolExecutor(group.world_size) as threads:
        return list(threads.map(lambda rank: body(group.join(rank)), range(group.world_size)))
