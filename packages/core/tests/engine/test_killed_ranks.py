"""A training loop of processes, one of which is killed, stopped or disconnected: all others report it
in time, and their tables are in the state before or after a step.

``SPARRING_FAILURE_TRIALS`` sets how often a random rank is killed at a random time: once, and 20
times under ``nox -s tests_long``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sparring.plugins.registry import DISABLE_VARIABLE
from sparring_testing.faults.isolated_links import (
    INTERFACE,
    IsolatedLinks,
    why_isolation_is_unavailable,
)
from sparring_testing.processes.deadlines import check_with_deadlines
from sparring_testing.processes.mpi_launcher import MPIEXEC, needs_mpi
from sparring_testing.processes.rank_launchers import gloo_environment, importing, needs_gloo

from . import train_until_failure
from .train_until_failure import STEPS_TO_START, rows_after

pytestmark = pytest.mark.alone

WORLD_SIZE = 3
TRIALS = int(os.environ.get("SPARRING_FAILURE_TRIALS", "1"))
DEADLINES = (5.0, 15.0, 45.0)
# For tests in which a rank is killed, and the others notice it much earlier.
FAR_DEADLINE_SECONDS = 90.0
KILLED_SECONDS = 30.0
# The interpreter takes two seconds of processor time to end with torch, and others may use it too.
END_SECONDS = 60

MODULE = [sys.executable, "-m", train_until_failure.__name__]
Placed = Callable[[int, Sequence[str]], list[str]]


class Ranks:
    """The processes of one training.

    Args:
        parent: folder that contains one folder per training.
    """

    def __init__(self, parent: Path) -> None:
        self.parent = self.folder = parent
        self.processes: list[subprocess.Popen[str]] = []

    def start_gloo(
        self,
        deadline_seconds: float,
        placed: Placed | None = None,
        interface: str = "lo",
        hosts: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Ends earlier ranks, starts all ranks, and waits until they train."""
        self._begin_anew(deadline_seconds)
        options = json.dumps({"init_method": f"file://{self.folder}/meeting"})
        for rank in range(WORLD_SIZE):
            command = [*MODULE, "torch", options, str(deadline_seconds), str(self.folder)]
            command.append(json.dumps(hosts))
            environment = {
                **os.environ,
                **importing(__name__),
                **gloo_environment(rank, WORLD_SIZE),
            }
            environment["GLOO_SOCKET_IFNAME"] = interface
            self._start(command if placed is None else placed(rank, command), environment)
        self._wait_until_started()

    def start_mpi(self, deadline_seconds: float) -> subprocess.Popen[str]:
        """Ends earlier ranks, starts mpiexec, and waits until its ranks train."""
        self._begin_anew(deadline_seconds)
        command = [*MODULE, "mpi", "{}", str(deadline_seconds), str(self.folder)]
        environment = {**os.environ, **importing(__name__), DISABLE_VARIABLE: "torch"}
        self._start([MPIEXEC, "-n", str(WORLD_SIZE), *command], environment)
        self._wait_until_started()
        return self.processes[0]

    def send(self, rank: int, number: int) -> float:
        """Sends a signal to a rank and returns the time."""
        os.kill(int((self.folder / f"{rank}.started").read_text()), number)
        return time.time()

    def failed(self, rank: int, seconds: float) -> dict[str, Any]:
        """Returns the failure report of a rank."""
        path = self.folder / f"{rank}.failed"
        self._wait_for(path, seconds)
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        self.processes.clear()

    def _begin_anew(self, deadline_seconds: float) -> None:
        self.close()
        self.folder = self.parent / f"{deadline_seconds:g}"
        self.folder.mkdir()

    def _start(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self.processes.append(
            subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )

    def _wait_until_started(self) -> None:
        for rank in range(WORLD_SIZE):
            self._wait_for(self.folder / f"{rank}.started", 300)

    def _wait_for(self, path: Path, seconds: float) -> None:
        limit = time.monotonic() + seconds
        while not path.exists():
            for process in self.processes:
                if path.suffix == ".started" and process.poll() is not None:
                    raise AssertionError(process.communicate()[1])
            assert time.monotonic() < limit, f"no {path.name} within {seconds:g} s"
            time.sleep(0.01)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(tmp_path)
    yield made
    made.close()


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(2**32)
    print(f"random.Random({seed})")
    return random.Random(seed)


def check_survivors(ranks: Ranks, victim: int, since: float, seconds: float) -> None:
    """Checks that all ranks but `victim` have reported it within `seconds`, and have the rows of the
    given step."""
    survivors = [rank for rank in range(WORLD_SIZE) if rank != victim]
    failures = {rank: ranks.failed(rank, seconds + 20) for rank in survivors}
    for rank, failed in failures.items():
        print(f"rank {rank}, {failed['time'] - since:.3f} s: {failed['message']}")
        assert failed["rank"] == victim
        assert failed["operation"] in ("pull", "push", "commit")
        # Lookups are sent table by table; a push and the following messages are for all tables.
        is_of_one = failed["operation"] == "pull"
        assert (failed["table"] in ("user", "item")) is is_of_one
        assert failed["step"] == failed["steps_applied"] == failed["counted"] >= STEPS_TO_START
        message = failed["message"]
        assert f"rank {victim}" in message
        assert f"This rank's tables contain {failed['steps_applied']} steps" in message
        assert failed["time"] - since <= seconds
    steps = {failed["steps_applied"] for failed in failures.values()}
    assert max(steps) - min(steps) <= 1
    undisturbed = rows_after(WORLD_SIZE, steps)
    for rank, failed in failures.items():
        assert failed["rows"] == undisturbed[failed["steps_applied"]][rank]


TWO_HOSTS = [[0, 2], [1]]


@needs_gloo
@pytest.mark.parametrize("trial", range(TRIALS))
@pytest.mark.parametrize(
    "hosts",
    [None, pytest.param(TWO_HOSTS, marks=pytest.mark.slow)],
    ids=["one level", "two levels"],
)
def test_survivors_name_a_rank_killed_during_training(
    ranks: Ranks, rng: random.Random, trial: int, hosts: Sequence[Sequence[int]] | None
) -> None:
    ranks.start_gloo(FAR_DEADLINE_SECONDS, hosts=hosts)
    time.sleep(rng.random() * 0.3)
    victim = rng.randrange(WORLD_SIZE)
    killed = ranks.send(victim, signal.SIGKILL)
    check_survivors(ranks, victim, killed, KILLED_SECONDS)
    for rank in set(range(WORLD_SIZE)) - {victim}:
        assert ranks.processes[rank].wait(END_SECONDS) == 1, "the survivor ends by itself"


@needs_gloo
@pytest.mark.parametrize(
    "hosts",
    [pytest.param(None, marks=pytest.mark.slow), pytest.param(TWO_HOSTS, marks=pytest.mark.long)],
    ids=["one level", "two levels"],
)
def test_survivors_name_a_rank_stopped_during_training(
    ranks: Ranks, rng: random.Random, hosts: Sequence[Sequence[int]] | None
) -> None:
    def check(deadline: float) -> None:
        ranks.start_gloo(deadline, hosts=hosts)
        victim = rng.randrange(WORLD_SIZE)
        stopped = ranks.send(victim, signal.SIGSTOP)
        check_survivors(ranks, victim, stopped, deadline * 1.1)

    check_with_deadlines(check, DEADLINES)


@pytest.mark.slow  # three processes import torch, as in the first test
@needs_gloo
def test_survivors_name_a_rank_whose_link_was_cut(ranks: Ranks, rng: random.Random) -> None:
    reason = why_isolation_is_unavailable()
    if reason is not None:
        pytest.skip(reason)

    def check(deadline: float) -> None:
        with IsolatedLinks(WORLD_SIZE) as links:
            ranks.start_gloo(deadline, links.command, INTERFACE)
            victim = rng.randrange(WORLD_SIZE)
            cut = time.time()
            links.cut(victim)
            check_survivors(ranks, victim, cut, deadline * 1.1)
            # The rank cannot know which rank it will name, but it also ends in time.
            assert ranks.failed(victim, deadline)["time"] - cut <= deadline * 1.1

    check_with_deadlines(check, DEADLINES)


@needs_mpi
def test_a_stopped_rank_ends_the_training_of_an_mpi_job_and_is_named(
    ranks: Ranks, rng: random.Random
) -> None:
    def check(deadline: float) -> None:
        job = ranks.start_mpi(deadline)
        victim = rng.randrange(WORLD_SIZE)
        stopped = ranks.send(victim, signal.SIGSTOP)
        _, errors = job.communicate(timeout=deadline + 20)
        # The launcher needs a moment to end all processes.
        assert time.time() - stopped <= deadline * 1.1 + 1.0
        assert job.returncode != 0
        assert f"find out why rank {victim} failed, then restart" in errors

    check_with_deadlines(check, DEADLINES)
