"""The shm collective meets the contract: with reads of the sender's memory, and through rings only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparring_testing.collectives.collective_tests import CollectiveTests
from sparring_testing.processes.mpi_launcher import needs_mpi
from sparring_testing.processes.rank_launchers import open_worlds

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def run_processes() -> Iterator[Callable[..., Any]]:
    with open_worlds("shm", (1, 2, 3), __name__, {"between_hosts": "mpi"}) as run:
        yield run


@needs_mpi
class TestShmCollective(CollectiveTests):
    @pytest.fixture
    def run_ranks(self, run_processes: Callable[..., Any]) -> Any:
        return run_processes
