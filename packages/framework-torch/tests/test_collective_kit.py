"""The torch collective fulfills the contract, with processes that meet over gloo."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from sparring_testing.collectives.collective_tests import CollectiveTests
from sparring_testing.processes.rank_processes import RankProcesses

WORLD_SIZE = 3


def launch(address: str, environment: Mapping[str, str]) -> Sequence[subprocess.Popen[bytes]]:
    return [
        subprocess.Popen(
            [sys.executable, "-m", "sparring_testing.processes.rank_process", address],
            env={
                **environment,
                "RANK": str(rank),
                "WORLD_SIZE": str(WORLD_SIZE),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(WORLD_SIZE)
    ]


@pytest.fixture(scope="module")
def processes() -> Iterator[RankProcesses]:
    started = RankProcesses(WORLD_SIZE, "torch", {"init_method": "file://{meeting}"}, launch)
    yield started
    started.close()


class TestTorchCollective(CollectiveTests):
    @pytest.fixture
    def run_ranks(self, processes: RankProcesses) -> Any:
        return processes.run
