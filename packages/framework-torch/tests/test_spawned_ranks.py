"""Ranks that a program started itself, with an initialized process group and without a launcher."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

START_SECONDS = 2.0

PROGRAM = f"""
import os, sys, time
from pathlib import Path
import torch.distributed as dist, torch.multiprocessing
from sparring.errors import DeadlineError
from sparring_torch.distributed.options import TorchRendezvousOptions
from sparring_torch.distributed.rendezvous import TorchRendezvous

def join(rank, port, folder):
    os.environ |= {{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    both = TorchRendezvous(TorchRendezvousOptions()).membership()
    found = f"{{both.rank}} {{both.world_size}} {{both.local_rank}} {{both.local_world_size}}"
    if rank == 0:
        begin = time.monotonic()
        try:
            TorchRendezvous(TorchRendezvousOptions(start_seconds={START_SECONDS}))
        except DeadlineError as error:
            found += f"\\n{{time.monotonic() - begin < {10 * START_SECONDS}}} {{error}}"
    Path(folder, str(rank)).write_text(found)
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(join, args=tuple(sys.argv[1:]), nprocs=2)
"""


@pytest.mark.slow
def test_spawned_ranks_meet_through_the_store_of_their_group(tmp_path: Path) -> None:
    # Spawned processes import the program by its name.
    program = tmp_path / "spawns.py"
    program.write_text(PROGRAM)
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    environment = {name: value for name, value in os.environ.items() if name not in launcher}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    subprocess.run(
        [sys.executable, str(program), port, str(tmp_path)],
        env=environment,
        check=True,
        timeout=300,
    )
    first, late = (tmp_path / "0").read_text().split("\n", 1)
    assert first == "0 2 0 2"
    assert (tmp_path / "1").read_text() == "1 2 1 2"
    # The second rendezvous of rank 0 does not wait for the timeout of the group, half an hour.
    assert late.startswith("True ")
    assert "rank 1 of the initialized process group did not" in late
