"""Starts ranks as processes that communicate over gloo, or over MPI with MPICH's `mpiexec`.

Each process imports the test's module under the same name as the test process does. Therefore functions
of that module can be pickled and sent to the processes as jobs.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sparring_testing.processes.mpi_launcher import MPIEXEC, needs_mpi
from sparring_testing.processes.rank_processes import RankProcesses

__all__ = ["BACKENDS", "gloo_environment", "importing", "needs_gloo", "launch_ranks"]

_RANK = [sys.executable, "-m", "sparring_testing.processes.rank_process"]

needs_gloo = pytest.mark.skipif(
    importlib.util.find_spec("sparring_torch") is None,
    reason='sparring-torch is not installed: pip install "sparring[torch]"',
)

BACKENDS = [
    pytest.param("torch", id="gloo", marks=needs_gloo),
    pytest.param("mpi", id="mpich", marks=needs_mpi),
]


def importing(module: str) -> dict[str, str]:
    """Returns environment variables that let a process import a test's module by its name.

    Args:
        module: the ``__name__`` of the module.
    """
    root = Path(str(sys.modules[module].__file__)).parents[module.count(".")]
    known = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(root), *([known] if known else [])])}


def gloo_environment(rank: int, world_size: int) -> dict[str, str]:
    """Returns environment variables that let a rank connect to the others over gloo on one machine."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }


def launch_ranks(backend: str, world_size: int, module: str) -> RankProcesses:
    """Returns processes that start when they get their first job.

    Args:
        backend: ``torch`` or ``mpi``.
        world_size: number of processes.
        module: the ``__name__`` of the module whose functions are the jobs.
    """
    if backend == "mpi":
        return RankProcesses(world_size, "mpi", {}, _mpiexec(world_size, module))
    return RankProcesses(
        world_size, "torch", {"init_method": "file://{meeting}"}, _gloo(world_size, module)
    )


def _mpiexec(world_size: int, module: str) -> Any:
    def launch(address: str, environment: Mapping[str, str]) -> Sequence[subprocess.Popen[bytes]]:
        # The plugin `torch` is disabled, because importing a framework takes seconds and no job needs it.
        environment = {**environment, **importing(module), "SPARRING_PLUGINS_DISABLE": "torch"}
        return [
            subprocess.Popen([MPIEXEC, "-n", str(world_size), *_RANK, address], env=environment)
        ]

    return launch


def _gloo(world_size: int, module: str) -> Any:
    def launch(address: str, environment: Mapping[str, str]) -> Sequence[subprocess.Popen[bytes]]:
        environment = {**environment, **importing(module)}
        return [
            subprocess.Popen(
                [*_RANK, address], env={**environment, **gloo_environment(rank, world_size)}
            )
            for rank in range(world_size)
        ]

    return launch
