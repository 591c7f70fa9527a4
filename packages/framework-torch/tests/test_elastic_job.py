"""A torchrun job that loses a node resumes with the others from its last snapshot."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs/elastic.py"
STEPS = 40


def starts_of(folder: Path) -> list[list[int]]:
    """Returns the number of ranks and the loaded step of each start of the program."""
    path = folder / "starts"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def started(folder: Path, port: int, steps: int, log: Path, nodes: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", nodes, "--nproc-per-node", "1",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job",
        "--rdzv-conf", "last_call_timeout=20,keep_alive_interval=1,keep_alive_max_attempt=2",
        "--max-restarts", "5", "--monitor-interval", "0.3", "--local-addr", "127.0.0.1",
        str(PROGRAM), str(folder), str(steps),
    ]  # fmt: skip
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as file:
        return subprocess.Popen(
            command, env=environment, stdout=file, stderr=file, start_new_session=True
        )


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def stop(agent: subprocess.Popen[bytes]) -> None:
    """Ends an agent and its rank at once, like a machine that loses power."""
    if agent.poll() is None:
        for line in subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(agent.pid)],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.split():
            os.kill(int(line), signal.SIGKILL)
        agent.kill()
        agent.wait()


@pytest.mark.long
def test_a_job_that_loses_a_node_continues_from_its_last_snapshot(tmp_path: Path) -> None:
    folder, alone = tmp_path / "job", tmp_path / "alone"
    folder.mkdir()
    alone.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    host = started(folder, port, STEPS, tmp_path / "host.log", "1:2")
    while not is_listening(port):  # the first agent serves the store of both
        assert host.poll() is None, (tmp_path / "host.log").read_text()[-3000:]
        time.sleep(0.1)
    other = started(folder, port, STEPS, tmp_path / "other.log", "1:2")
    try:
        deadline = time.monotonic() + 120
        while not (starts_of(folder) and (folder / "step-4").exists()):
            assert time.monotonic() < deadline, (tmp_path / "host.log").read_text()[-3000:]
            time.sleep(0.1)
        stop(other)
        while [size for size, _ in starts_of(folder)][-1] != 1:
            assert host.poll() is None, (tmp_path / "host.log").read_text()[-3000:]
            assert time.monotonic() < deadline, (tmp_path / "host.log").read_text()[-3000:]
            time.sleep(0.1)
        host.wait(120)
        assert host.returncode == 0, (tmp_path / "host.log").read_text()[-3000:]
    finally:
        stop(other)
        stop(host)
    starts = starts_of(folder)
    assert [size for size, _ in starts] == [2, 1]
    assert starts[0][1] == 0
    assert 3 <= starts[1][1] < STEPS
    single = started(alone, 0, STEPS, tmp_path / "alone.log", "1")
    assert single.wait(120) == 0, (tmp_path / "alone.log").read_text()[-3000:]
    assert (folder / "rows").read_bytes() == (alone / "rows").read_bytes()
