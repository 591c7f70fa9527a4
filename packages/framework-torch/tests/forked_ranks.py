"""Ranks of a program, forked by one process that has imported torch: starting each takes seconds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

__all__ = ["run_forked_ranks"]

_LAUNCHER = """
import os, runpy, signal, sys
import torch.distributed
import sparring_torch.torchrec

program, world_size = sys.argv[1], int(sys.argv[2])
ranks = []
for rank in range(world_size):
    forked = os.fork()
    if not forked:
        signal.alarm(120)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        sys.argv = [program]
        runpy.run_path(program, run_name="__main__")
        sys.exit()
    ranks.append(forked)
while ranks:
    ended, status = os.wait()
    ranks.remove(ended)
    if status:
        for other in ranks:
            os.kill(other, signal.SIGKILL)
        sys.exit(f"a rank ended with status {status}")
"""


def run_forked_ranks(program: Path, world_size: int) -> str:
    """Runs a program on each rank, on CPUs; returns the output of all ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    job |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
    # Programs use a GPU if there is one, and the ranks would share it.
    limits = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", _LAUNCHER, str(program), str(world_size)],
        cwd=program.parent,
        env={**os.environ, **job, **limits},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,  # the assertion below shows its output
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
