"""Ranks as threads of one process, connected by the local collective."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sparring import LocalGroup
from sparring.contracts import Collective

__all__ = ["run_ranks"]


def run_ranks(
    world_size: int, body: Callable[[Collective], Any], deadline: float = 60.0
) -> list[Any]:
    """Runs `body` on each rank, each on its own thread.

    Returns:
        The results of `body`, ordered by rank.
    """
    group = LocalGroup(world_size, deadline_seconds=deadline)
    with ThreadPoolExecutor(world_size) as threads:
        futures = [threads.submit(body, group.join(rank)) for rank in range(world_size)]
        return [future.result() for future in futures]
