"""The local collective passes the conformance kit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sparring.collective.local import LocalGroup
from sparring_testing.collectives.collective_tests import CollectiveTests


def run_threads(
    world_size: int, body: Any, *arguments: Any, deadline_seconds: float = 60.0
) -> list[Any]:
    """Runs `body` once per rank, each on a separate thread."""
    group = LocalGroup(world_size, deadline_seconds=deadline_seconds)

    def run(rank: int) -> Any:
        with group.join(rank) as collective:
            return body(collective, *arguments)

    with ThreadPoolExecutor(world_size) as threads:
        futures = [threads.submit(run, rank) for rank in range(world_size)]
        return [future.result() for future in futures]


class TestLocalCollective(CollectiveTests):
    @pytest.fixture
    def run_ranks(self) -> Any:
        return run_threads
