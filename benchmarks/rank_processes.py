"""Starts the ranks of a benchmark as processes of this machine, and returns their measurements."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["NotMeasuredError", "run_ranks"]

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 300


class NotMeasuredError(Exception):
    """Ranks could not be started, or failed."""


def run_ranks(
    launcher: str,
    world_size: int,
    module: str,
    given: dict[str, Any],
    variables: Mapping[str, str] | None = None,
) -> Any:
    """Runs a module on each rank and returns the JSON that rank 0 wrote.

    Args:
        launcher: ``mpi`` or ``torch``.
        world_size: number of ranks.
        module: name of the module.
        given: the argument of the module, as JSON; ``output`` is added.
        variables: additional environment variables of the ranks.

    Raises:
        NotMeasuredError: the launcher is missing, or a rank failed.
    """
    start = _mpiexec(world_size) if launcher == "mpi" else _torchrun(world_size)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "measured.json"
        argument = json.dumps({**given, "output": str(output)})
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            **(variables or {}),
            "PYTHONPATH": os.pathsep.join(paths),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        try:
            ran = subprocess.run(
                [*start, "-m", module, argument],
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise NotMeasuredError(f"{launcher}: no result within {SECONDS} s") from error
        if not output.exists():
            lines = (ran.stderr or ran.stdout).strip().splitlines()
            errors = [line for line in lines if "Error" in line] or lines or ["no output"]
            raise NotMeasuredError(f"{launcher}: exit code {ran.returncode}: {errors[0][-300:]}")
        return json.loads(output.read_text())


def _mpiexec(world_size: int) -> list[str]:
    beside_python = Path(sys.executable).parent / "mpiexec"
    found = str(beside_python) if beside_python.exists() else shutil.which("mpiexec")
    if found is None or importlib.util.find_spec("sparring_mpi") is None:
        raise NotMeasuredError('mpi is missing: pip install "sparring[mpi]"')
    return [found, "-n", str(world_size), sys.executable]


def _torchrun(world_size: int) -> list[str]:
    return [
        sys.executable,
        *("-m", "torch.distributed.run"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"),
        *("--nnodes", "1", "--nproc-per-node", str(world_size)),
    ]
