"""The mpi collective meets the contract, with processes that mpich's mpiexec starts."""

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
    with open_worlds("mpi", (1, 2, 3), __name__) as run:
        yield run


@needs_mpi
class TestMpiCollective(CollectiveTests):
    @pytest.fixture
    def run_ranks(self, run_processes: Callable[..., Any]) -> Any:
        return run_processes
