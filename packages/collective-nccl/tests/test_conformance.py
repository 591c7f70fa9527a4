"""The nccl collective meets the contract for host buffers, over an imitation of NCCL and the driver."""

from __future__ import annotations

from typing import Any

import pytest

from sparring import LocalGroup
from sparring_nccl.collective import NcclCollective
from sparring_nccl.testing import FakeGpus
from sparring_testing.collectives.collective_tests import CollectiveTests
from sparring_testing.processes.rank_threads import run_ranks


class TestNcclCollective(CollectiveTests):
    @pytest.fixture
    def run_ranks(self, fake_gpus: FakeGpus) -> Any:
        def join(group: LocalGroup, rank: int) -> NcclCollective:
            return NcclCollective(group.join(rank), fake_gpus.nccl, fake_gpus.cuda, device=rank)

        def run(
            world_size: int, body: Any, *arguments: Any, deadline_seconds: float = 60.0
        ) -> list[Any]:
            fake_gpus.library.fake_reset()
            return run_ranks(
                world_size, lambda each: body(each, *arguments), deadline_seconds, join
            )

        return run
