"""The nccl collective meets the contract for host buffers, over an imitation of NCCL and the driver."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sparring import LocalGroup
from sparring_nccl.collective import NcclCollective
from sparring_nccl.testing import open_fake_nccl
from sparring_testing.collectives.collective_tests import CollectiveTests


def run_threads(
    world_size: int, body: Any, *arguments: Any, deadline_seconds: float = 60.0
) -> list[Any]:
    """Runs `body` once per rank, each on a separate thread."""
    gpus, group = open_fake_nccl(), LocalGroup(world_size, deadline_seconds=deadline_seconds)
    gpus.library.fake_reset()

    def run(rank: int) -> Any:
        with NcclCollective(group.join(rank), gpus.nccl, gpus.cuda, device=rank) as collective:
            return body(collective, *arguments)

    with ThreadPoolExecutor(world_size) as threads:
        futures = [threads.submit(run, rank) for rank in range(world_size)]
        return [future.result() for future in futures]


class TestNcclCollective(CollectiveTests):
    @pytest.fixture
    def run_ranks(self) -> Any:
        return run_threads
