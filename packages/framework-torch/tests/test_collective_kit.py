"""The torch collective fulfills the contract, with processes that meet over gloo."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sparring_testing.collectives.collective_tests import CollectiveTests
from sparring_testing.processes.rank_launchers import launch_ranks
from sparring_testing.processes.rank_processes import RankProcesses

WORLD_SIZE = 3


@pytest.fixture(scope="module")
def processes() -> Iterator[RankProcesses]:
    started = launch_ranks("torch", WORLD_SIZE, __name__)
    yield started
    started.close()


class TestTorchCollective(CollectiveTests):
    repeats_are_slow = True

    @pytest.fixture
    def run_ranks(self, processes: RankProcesses) -> Any:
        return processes.run
