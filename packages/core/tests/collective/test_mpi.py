"""MPI jobs end when a rank fails, in time, and say which."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparring.collective import mpi
from sparring.contracts.rendezvous import Membership
from sparring.errors import PluginError
from sparring.plugins.registry import DISABLE_VARIABLE, make_plugin_manager
from sparring_testing.deadlines import in_time
from sparring_testing.mpi_launcher import MPIEXEC, needs_mpi

pytestmark = pytest.mark.alone

WORLD_SIZE = 3
# More of them are tried in training.
TRIALS = 2

Start = Callable[..., "subprocess.Popen[str]"]
StartExchange = Callable[[float, Path], "subprocess.Popen[str]"]

_FAILS_BY_ITSELF = """
import sys
import numpy as np
from sparring.collective.mpi import MpiOptions, join_mpi
from sparring import EnvironmentOptions, EnvironmentRendezvous

membership = EnvironmentRendezvous(EnvironmentOptions()).membership()
collective = join_mpi(membership, MpiOptions(), 60.0)
collective.barrier()
if collective.rank == 1:
    if sys.argv[1] == "raise":
        raise ValueError("the batch is bad")
    if sys.argv[1] == "leave":
        collective.close()
        sys.exit(0)
while True:
    collective.all_to_all([np.zeros(10)] * collective.world_size)
"""


@pytest.fixture
def start() -> Iterator[Start]:
    jobs: list[subprocess.Popen[str]] = []

    def end() -> None:
        for job in jobs:
            job.kill()
            job.communicate()
        jobs.clear()

    def launch(*command: str) -> subprocess.Popen[str]:
        end()
        jobs.append(
            subprocess.Popen(
                [MPIEXEC, "-n", str(WORLD_SIZE), sys.executable, *command],
                env={**os.environ, DISABLE_VARIABLE: "*"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return jobs[-1]

    yield launch
    end()


@pytest.fixture
def start_exchange(start: Start) -> StartExchange:
    def launch(deadline_seconds: float, folder: Path) -> subprocess.Popen[str]:
        module = "sparring_testing.exchange_until_failure"
        job = start("-m", module, "mpi", "{}", str(deadline_seconds), str(folder))
        limit = time.monotonic() + 60
        while len(list(folder.glob("*.started"))) < WORLD_SIZE:
            assert job.poll() is None, job.communicate()[1]
            assert time.monotonic() < limit
            time.sleep(0.01)
        return job

    return launch


def last_message(job: subprocess.Popen[str], seconds: float) -> str:
    """Our last message; after a killed rank mpiexec adds some lines of its own."""
    _, errors = job.communicate(timeout=seconds)
    assert job.returncode != 0
    messages = [line for line in errors.splitlines() if line.startswith("sparring: ")]
    assert messages, errors
    return messages[-1]


@needs_mpi
@pytest.mark.parametrize("trial", range(TRIALS))
def test_a_killed_rank_ends_the_job_and_is_named(
    start_exchange: StartExchange, tmp_path: Path, trial: int
) -> None:
    job = start_exchange(600.0, tmp_path)
    victim = trial % WORLD_SIZE
    os.kill(int((tmp_path / f"{victim}.started").read_text()), signal.SIGKILL)
    # A survivor may have noticed before the launcher killed it, and then says it first.
    assert f"find out what became of rank {victim}, then restart" in last_message(job, 60.0)


@needs_mpi
def test_a_stopped_rank_ends_the_job_within_the_deadline_and_is_named(
    start_exchange: StartExchange, tmp_path: Path
) -> None:
    def check(deadline: float) -> None:
        folder = tmp_path / f"{deadline:g}"
        folder.mkdir()
        job = start_exchange(deadline, folder)
        os.kill(int((folder / "1.started").read_text()), signal.SIGSTOP)
        stopped = time.time()
        message = last_message(job, deadline + 20)
        # The last moments are the launcher's.
        assert time.time() - stopped <= deadline * 1.1 + 1.0
        assert " in all_to_all of table 'user' at step" in message
        # It may have waited for the third rank, which waited for the stopped one.
        assert "find out what became of rank 1, " in message

    in_time(check, (2.0, 8.0))


@needs_mpi
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raise", "sparring: rank 1 of 3 ends the job: ValueError: the batch is bad"),
        # Two ranks find out; the second to do so may have it from the first.
        (
            "leave",
            r"waited for rank 1 in exchange: (it|rank \d reports that rank 1) left the group",
        ),
    ],
    ids=["raise", "leave"],
)
def test_a_rank_that_fails_by_itself_ends_the_job_long_before_the_deadline(
    start: Start, tmp_path: Path, how: str, words: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(_FAILS_BY_ITSELF)
    assert re.search(words, last_message(start(str(script), how), 20.0))


@needs_mpi
def test_another_world_than_the_launchers_is_refused() -> None:
    # In a process of its own, because importing mpi4py starts MPI.
    code = (
        "from sparring.collective.mpi import MpiOptions, join_mpi\n"
        "from sparring.contracts import Membership\n"
        "join_mpi(Membership(rank=0, world_size=2), MpiOptions(), 1.0)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert "InvalidArgumentError: " in ran.stderr
    assert "rank 0 of 2, MPI says rank 0 of 1" in ran.stderr


def test_without_mpi4py_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(PluginError, match=r'pip install "sparring\[mpi\]"'):
        mpi.join_mpi(Membership(rank=0, world_size=1), mpi.MpiOptions(), 1.0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    reason = make_plugin_manager(entry_points=False).collective("mpi").unavailable
    assert reason is not None
    assert "mpi4py is not installed" in str(reason())
