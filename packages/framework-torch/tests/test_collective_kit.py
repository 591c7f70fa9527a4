"""The torch collective meets the contract, with processes that meet over gloo."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from sparring.testing import CollectiveTests, RankProcesses


def launcher(world_size: int) -> Any:
    def launch(address: str, environment: Mapping[str, str]) -> Sequence[subprocess.Popen[bytes]]:
        return [
            subprocess.Popen(
                [sys.executable, "-m", "sparring.testing.rank_process", address],
                env={
                    **environment,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(world_size),
                    "GLOO_SOCKET_IFNAME": "lo",
                    "OMP_NUM_THREADS": "1",
                },
            )
            for rank in range(world_size)
        ]

    return launch


@pytest.fixture(scope="module")
def worlds() -> Iterator[dict[int, RankProcesses]]:
    """The processes of each world size; they start when they are first asked for."""
    options = {"init_method": "file://{meeting}"}
    pools = {size: RankProcesses(size, "torch", options, launcher(size)) for size in (1, 2, 3)}
    yield pools
    for pool in pools.values():
        pool.close()


class TestTorchCollective(CollectiveTests):
    @pytest.fixture
    def run_ranks(self, worlds: dict[int, RankProcesses]) -> Any:
        def run(world_size: int, body: Any, *arguments: Any, deadline_seconds: float = 10.0) -> Any:
            return worlds[world_size].run(body, *arguments, deadline_seconds=deadline_seconds)

        return run
