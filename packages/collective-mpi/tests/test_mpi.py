"""MPI jobs end in time if a rank fails, and reject invalid setups."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparring import make_plugin_manager
from sparring.contracts import Membership
from sparring.errors import PluginError
from sparring_mpi.collective import join_mpi
from sparring_testing.processes.child_processes import ChildProcesses, run_script, wait_for
from sparring_testing.processes.deadlines import check_with_deadlines
from sparring_testing.processes.mpi_launcher import MPIEXEC, needs_mpi

pytestmark = pytest.mark.alone

WORLD_SIZE = 3
JOB = [MPIEXEC, "-n", str(WORLD_SIZE), sys.executable]


_FAILS_BY_ITSELF = """
import sys
import numpy as np
from sparring.adapter import EnvironmentRendezvous
from sparring.contracts import EnvironmentOptions
from sparring_mpi.collective import join_mpi

def fail(collective):
    collective.barrier()
    if collective.rank == 1:
        raise ValueError("the batch is bad")
    while True:
        collective.all_to_all([np.zeros(10)] * collective.world_size)

membership = EnvironmentRendezvous(EnvironmentOptions()).membership()
collective = join_mpi(membership, float(sys.argv[1]))
if sys.argv[2] == "closed":
    with collective:
        fail(collective)
fail(collective)
"""


def start_exchange(
    child_processes: ChildProcesses, deadline_seconds: float, folder: Path
) -> subprocess.Popen[str]:
    module = ["-m", "sparring_testing.faults.exchange_until_failure"]
    job = child_processes.start([*JOB, *module, "mpi", "{}", str(deadline_seconds), str(folder)])
    for rank in range(WORLD_SIZE):
        wait_for(folder / f"{rank}.started", 60)
    return job


def errors_of(job: subprocess.Popen[str], seconds: float) -> str:
    """Standard error of a job that fails within this time."""
    _, errors = job.communicate(timeout=seconds)
    assert job.returncode != 0
    return errors


@needs_mpi
def test_a_killed_rank_ends_the_job_long_before_the_deadline(
    child_processes: ChildProcesses, tmp_path: Path
) -> None:
    job = start_exchange(child_processes, 600.0, tmp_path)
    os.kill(int((tmp_path / "1.started").read_text()), signal.SIGKILL)
    errors_of(job, 60.0)


@needs_mpi
def test_a_stopped_rank_ends_the_job_within_the_deadline_and_is_named(
    child_processes: ChildProcesses, tmp_path: Path
) -> None:
    def check(deadline: float) -> None:
        folder = tmp_path / f"{deadline:g}"
        folder.mkdir()
        child_processes.end()
        job = start_exchange(child_processes, deadline, folder)
        os.kill(int((folder / "1.started").read_text()), signal.SIGSTOP)
        stopped = time.time()
        errors = errors_of(job, deadline + 20)
        # The launcher needs a moment to end all processes.
        assert time.time() - stopped <= deadline * 1.1 + 1.0
        # A rank may have waited for the third one, which waited for the stopped one.
        assert re.search(
            r"PeerFailure: .* in all_to_all of table 'user' at step .*"
            r"find out why rank 1 failed, ",
            errors,
        ), errors

    check_with_deadlines(check, (2.0, 8.0))


@needs_mpi
@pytest.mark.parametrize(
    ("deadline", "how", "words"),
    [
        # Two ranks detect it; the second may have received a notice of the first.
        ("600", "closed", r"(it|rank \d reports that rank 1) left the group"),
        ("3", "abandoned", "find out why rank 1 failed"),
    ],
    ids=["closed", "abandoned"],
)
def test_a_rank_that_raises_ends_the_job_at_once_or_at_the_deadline(
    child_processes: ChildProcesses, tmp_path: Path, deadline: str, how: str, words: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(_FAILS_BY_ITSELF)
    errors = errors_of(child_processes.start([*JOB, str(script), deadline, how]), 30.0)
    assert "ValueError: the batch is bad" in errors
    assert re.search(f"PeerFailure: .* in exchange: .*{words}", errors), errors


@needs_mpi
def test_a_world_that_differs_from_the_launchers_is_rejected() -> None:
    # In a separate process, because importing mpi4py starts MPI.
    code = (
        "from sparring.contracts import Membership\n"
        "from sparring_mpi.collective import join_mpi\n"
        "join_mpi(Membership(rank=0, world_size=2), 1.0)\n"
    )
    ran = run_script(code)
    assert "InvalidArgumentError: " in ran.stderr
    assert "rank 0 of 2, MPI reports rank 0 of 1" in ran.stderr


def test_without_mpi4py_the_install_command_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(PluginError, match=r'pip install "sparring\[mpi\]"'):
        join_mpi(Membership(rank=0, world_size=1), 1.0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    reason = make_plugin_manager().collective("mpi").unavailable
    assert reason is not None
    assert "mpi4py is not installed" in str(reason())


@needs_mpi
def test_the_plugin_does_not_start_mpi() -> None:
    code = (
        "import sys, sparring_mpi.plugin as plugin\n"
        "[mpi] = plugin.sparring_register_collective()\n"
        "assert mpi.unavailable() is None\n"
        "print('mpi4py' in sys.modules)"
    )
    ran = run_script(code)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "False"
