"""The shm collective meets the contract: with reads of the sender's memory, and through rings only."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from sparring_testing.collectives.collective_tests import CollectiveTests
from sparring_testing.processes.mpi_launcher import MPIEXEC, needs_mpi
from sparring_testing.processes.rank_processes import RankProcesses

pytestmark = pytest.mark.alone


def launcher(world_size: int) -> Any:
    def launch(address: str, environment: Mapping[str, str]) -> Sequence[subprocess.Popen[bytes]]:
        rank = [sys.executable, "-m", "sparring_testing.processes.rank_process", address]
        environment = {**environment, "SPARRING_PLUGINS_DISABLE": "torch"}
        return [subprocess.Popen([MPIEXEC, "-n", str(world_size), *rank], env=environment)]

    return launch


@pytest.fixture(scope="module")
def worlds() -> Iterator[dict[int, RankProcesses]]:
    """The processes of each world size; they start at their first use."""
    options = {"between_hosts": "mpi"}
    pools = {size: RankProcesses(size, "shm", options, launcher(size)) for size in (1, 2, 3)}
    yield pools
    for pool in pools.values():
        pool.close()


@needs_mpi
class TestShmCollective(CollectiveTests):
    @pytest.fixture
    def run_ranks(self, worlds: dict[int, RankProcesses]) -> Any:
        def run(world_size: int, body: Any, *arguments: Any, deadline_seconds: float = 10.0) -> Any:
            return worlds[world_size].run(
                world_size, body, *arguments, deadline_seconds=deadline_seconds
            )

        return run
