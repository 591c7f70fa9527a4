"""Starts ranks as processes that communicate over gloo, or over MPI with MPICH's `mpiexec`.

Each process imports the test's module under the same name as the test process does. Therefore functions
of that module can be pickled and sent to the processes as jobs.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sparring_testing.processes.mpi_launcher import MPIEXEC, needs_mpi
from sparring_testing.processes.rank_processes import RankProcesses

__all__ = ["BACKENDS", "gloo_environment", "importing", "needs_gloo", "launch_ranks", "open_worlds"]

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


def launch_ranks(
    backend: str, world_size: int, module: str, options: Mapping[str, Any] | None = None
) -> RankProcesses:
    """Returns processes that start when they get their first job.

    Args:
        backend: ``torch``, or a backend of ranks that `mpiexec` starts.
        world_size: number of processes.
        module: the ``__name__`` of the module whose functions are the jobs.
        options: options of the collective.
    """
    if backend != "torch":
        return RankProcesses(world_size, backend, options or {}, _mpiexec(world_size, module))
    return RankProcesses(
        world_size,
        "torch",
        {"init_method": "file://{meeting}"} | dict(options or {}),
        _gloo(world_size, module),
    )


@contextmanager
def open_worlds(
    backend: str, sizes: Sequence[int], module: str, options: Mapping[str, Any] | None = None
) -> Iterator[Callable[..., list[Any]]]:
    """Yields a function ``run(world_size, body, *arguments, deadline_seconds=10.0)``.

    Each world size has its own processes, which start at their first use.

    Args:
        backend: as in `launch_ranks`.
        sizes: world sizes.
        module: the ``__name__`` of the module whose functions are the jobs.
        options: options of the collective.
    """
    worlds = {size: launch_ranks(backend, size, module, options) for size in sizes}
    try:
        yield lambda size, body, *arguments, **more: worlds[size].run(
            size, body, *arguments, **more
        )
    finally:
        for each in worlds.values():
            each.close()


def _mpiexec(world_size: int, module: str) -> Any:
    def launch(address: str, environment: Mapping[str, str]) -> Sequence[subprocess.Popen[bytes]]:
        # The plugin `torch` is disabled, because importing a framework takes seconds and no job needs it.
        environment = {**environment, **importing(module), "SPARRING_PLUGINS_DISABLE": "torch"}
        return [
            subprocess.Popen([MPIEXEC, "-n", str(world_size), *_RANK, address], env=environment)
        ]

    return launch


# Importing torch takes seconds, so one process imports it and forks the ranks.
_FORK = """
import os, sys
import torch.distributed
import sparring_torch.distributed.collective
from sparring_testing.processes.rank_process import serve

address, world_size = sys.argv[1], int(sys.argv[2])
for rank in range(world_size):
    if not os.fork():
        os.environ["RANK"] = str(rank)
        serve(address)
        os._exit(0)
for _ in range(world_size):
    os.wait()
"""


def _gloo(world_size: int, module: str) -> Any:
    def launch(address: str, environment: Mapping[str, str]) -> Sequence[subprocess.Popen[bytes]]:
        environment = {**environment, **importing(module), **gloo_environment(0, world_size)}
        command = [sys.executable, "-c", _FORK, address, str(world_size)]
        return [subprocess.Popen(command, env=environment)]

    return launch
