"""All other ranks report a killed or stopped process before the deadline."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sparring_testing.processes.child_processes import ChildProcesses, wait_for
from sparring_testing.processes.deadlines import check_with_deadlines
from sparring_testing.processes.rank_launchers import gloo_environment

pytestmark = pytest.mark.alone

WORLD_SIZE = 3
# An interpreter with torch takes two seconds of processor time to end, and the processor may be busy.
END_SECONDS = 60


def start(
    child_processes: ChildProcesses, deadline_seconds: float, folder: Path
) -> list[subprocess.Popen[str]]:
    child_processes.end()
    options = json.dumps({"init_method": f"file://{folder}/meeting"})
    module = [sys.executable, "-m", "sparring_testing.faults.exchange_until_failure"]
    command = [*module, "torch", options, str(deadline_seconds), str(folder)]
    processes = [
        child_processes.start(command, gloo_environment(rank, WORLD_SIZE))
        for rank in range(WORLD_SIZE)
    ]
    for rank in range(WORLD_SIZE):
        wait_for(folder / f"{rank}.started", 300)
    return processes


def check(path: Path, victim: int, since: float, seconds: float) -> None:
    failed: dict[str, Any] = json.loads(wait_for(path, seconds + 10))
    assert failed["rank"] == victim, failed
    assert (failed["operation"], failed["table"]) == ("all_to_all", "user")
    assert failed["step"] >= 20
    for word in (f"rank {victim}", "all_to_all", "'user'", f"step {failed['step']}"):
        assert word in failed["message"]
    assert failed["time"] - since <= seconds, failed


@pytest.mark.slow  # a test of core kills ranks over gloo, too
def test_all_survivors_name_a_killed_rank_long_before_the_deadline(
    child_processes: ChildProcesses, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"random.Random({seed})")
    rng = random.Random(seed)
    processes = start(child_processes, 60.0, tmp_path)
    victim = rng.randrange(WORLD_SIZE)
    time.sleep(rng.random() * 0.3)
    killed = time.time()
    processes[victim].kill()
    for rank in set(range(WORLD_SIZE)) - {victim}:
        check(tmp_path / f"{rank}.failed", victim, killed, 30.0)
        assert processes[rank].wait(END_SECONDS) == 1, "the survivor ends by itself"


@pytest.mark.slow  # three processes import torch, and the kit tests silent ranks, too
def test_all_survivors_name_a_stopped_rank_within_the_deadline(
    child_processes: ChildProcesses, tmp_path: Path
) -> None:
    def check_stopped(deadline: float) -> None:
        folder = tmp_path / f"{deadline:g}"
        folder.mkdir()
        processes = start(child_processes, deadline, folder)
        victim = random.randrange(WORLD_SIZE)
        processes[victim].send_signal(signal.SIGSTOP)
        stopped = time.time()
        for rank in set(range(WORLD_SIZE)) - {victim}:
            check(folder / f"{rank}.failed", victim, stopped, deadline * 1.1)
            assert processes[rank].wait(END_SECONDS) == 1, "the survivor ends by itself"

    check_with_deadlines(check_stopped, (5.0, 15.0, 45.0))
