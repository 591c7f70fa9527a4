"""All other ranks report a killed or stopped process before the deadline."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparring_testing.processes.deadlines import check_with_deadlines

pytestmark = pytest.mark.alone

WORLD_SIZE = 3
# An interpreter with torch takes two seconds of processor time to end, and the processor may be busy.
END_SECONDS = 60

Start = Callable[[float, Path], "list[subprocess.Popen[bytes]]"]


@pytest.fixture
def start() -> Iterator[Start]:
    processes: list[subprocess.Popen[bytes]] = []

    def end() -> None:
        for process in processes:
            process.kill()
            process.wait()
        processes.clear()

    def launch(deadline_seconds: float, folder: Path) -> list[subprocess.Popen[bytes]]:
        end()
        options = json.dumps({"init_method": f"file://{folder}/meeting"})
        module = [sys.executable, "-m", "sparring_testing.faults.exchange_until_failure"]
        for rank in range(WORLD_SIZE):
            processes.append(
                subprocess.Popen(
                    [*module, "torch", options, str(deadline_seconds), str(folder)],
                    env={
                        **os.environ,
                        "RANK": str(rank),
                        "WORLD_SIZE": str(WORLD_SIZE),
                        "GLOO_SOCKET_IFNAME": "lo",
                        "OMP_NUM_THREADS": "1",
                    },
                    stderr=subprocess.DEVNULL,
                )
            )
        for rank in range(WORLD_SIZE):
            read(folder / f"{rank}.started", 300)
        return processes

    yield launch
    end()


def read(path: Path, seconds: float) -> str:
    limit = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < limit, f"no {path.name} within {seconds:g} s"
        time.sleep(0.01)
    return path.read_text()


def check(path: Path, victim: int, since: float, seconds: float) -> None:
    failed: dict[str, Any] = json.loads(read(path, seconds + 10))
    assert failed["rank"] == victim, failed
    assert (failed["operation"], failed["table"]) == ("all_to_all", "user")
    assert failed["step"] >= 20
    for word in (f"rank {victim}", "all_to_all", "'user'", f"step {failed['step']}"):
        assert word in failed["message"]
    assert failed["time"] - since <= seconds, failed


def test_all_survivors_name_a_killed_rank_long_before_the_deadline(
    start: Start, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"random.Random({seed})")
    rng = random.Random(seed)
    processes = start(60.0, tmp_path)
    victim = rng.randrange(WORLD_SIZE)
    time.sleep(rng.random() * 0.3)
    killed = time.time()
    processes[victim].kill()
    for rank in set(range(WORLD_SIZE)) - {victim}:
        check(tmp_path / f"{rank}.failed", victim, killed, 30.0)
        assert processes[rank].wait(END_SECONDS) == 1, "the survivor ends by itself"


def test_all_survivors_name_a_stopped_rank_within_the_deadline(
    start: Start, tmp_path: Path
) -> None:
    def check_stopped(deadline: float) -> None:
        folder = tmp_path / f"{deadline:g}"
        folder.mkdir()
        processes = start(deadline, folder)
        victim = random.randrange(WORLD_SIZE)
        processes[victim].send_signal(signal.SIGSTOP)
        stopped = time.time()
        for rank in set(range(WORLD_SIZE)) - {victim}:
            check(folder / f"{rank}.failed", victim, stopped, deadline * 1.1)
            assert processes[rank].wait(END_SECONDS) == 1, "the survivor ends by itself"

    check_with_deadlines(check_stopped, (5.0, 15.0, 45.0))
