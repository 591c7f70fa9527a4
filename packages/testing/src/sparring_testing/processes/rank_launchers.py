"""Starts ranks as processes: over gloo, or by mpich's mpiexec.

A process of a test's own imports the test's module by its name there, so that what it is to run can be
pickled.
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
    """Environment variables with which a process can import a test's module under its name here.

    Args:
        module: its ``__name__``.
    """
    root = Path(str(sys.modules[module].__file__)).parents[module.count(".")]
    known = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(root), *([known] if known else [])])}


def gloo_environment(rank: int, world_size: int) -> dict[str, str]:
    """Environment variables with which one rank meets others over gloo, on loopback."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }


def launch_ranks(backend: str, world_size: int, module: str) -> RankProcesses:
    """Processes that start when they are first given a job.

    Args:
        backend: ``torch`` or ``mpi``.
        world_size: how many processes.
        module: the ``__name__`` of the module whose functions are their jobs.
    """
    if backend == "mpi":
        return RankProcesses(world_size, "mpi", {}, _mpiexec(world_size, module))
    return RankProcesses(
        world_size, "torch", {"init_method": "file://{meeting}"}, _gloo(world_size, module)
    )


def _mpiexec(world_size: int, module: str) -> Any:
    def launch(address: str, environment: Mapping[str, str]) -> Sequence[subprocess.Popen[bytes]]:
        # No plugin that imports a framework is needed.
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
