"""A rank that exchanges data over shared memory in an endless loop, for tests that kill or stop ranks.

    python rank_until_failure.py RANK WORLD_SIZE DEADLINE FOLDER

The ranks find each other through files in FOLDER.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from sparring.contracts import Array, Collective, Work
from sparring_shm.meeting import connect_local_ranks
from sparring_testing.faults.exchange_until_failure import exchange_until_failure


class FolderCollective(Collective):
    """Gathers buffers through files, which is all that the start of shared memory requires."""

    def __init__(self, rank: int, world_size: int, deadline_seconds: float, folder: Path) -> None:
        super().__init__(rank, world_size, deadline_seconds=deadline_seconds)
        self._folder = folder
        self._num_calls = 0

    def all_gather(self, buffer: Any) -> list[Array]:
        self._num_calls += 1
        name = f"gather-{self._num_calls}"
        unfinished = self._folder / f"{name}.{self.rank}.unfinished"
        unfinished.write_bytes(buffer.tobytes())
        unfinished.rename(self._folder / f"{name}.{self.rank}")
        paths = [self._folder / f"{name}.{rank}" for rank in range(self.world_size)]
        while not all(path.exists() for path in paths):
            time.sleep(0.002)
        return [np.frombuffer(path.read_bytes(), np.uint8) for path in paths]

    def close(self) -> None:
        self._is_closed = True

    def _send_impl(self, buffer: Array, destination: int, tag: int) -> Work:
        raise NotImplementedError

    _receive_impl = _send_impl


if __name__ == "__main__":
    rank, world_size, deadline_seconds, folder = sys.argv[1:]
    meeting = FolderCollective(int(rank), int(world_size), float(deadline_seconds), Path(folder))
    with connect_local_ranks(meeting) as collective:
        exchange_until_failure(collective, Path(folder))
