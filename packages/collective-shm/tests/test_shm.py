"""Ranks that fail, ranks of several hosts, and the options of the shm collective."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import ExchangeOptions, LocalGroup, StepContainer, TableConfig
from sparring.contracts import Collective, validate_options
from sparring.errors import DeadlineError, InvalidArgumentError, PeerFailure
from sparring_shm import _native, meeting, plugin
from sparring_shm.collective import ShmCollective
from sparring_shm.meeting import connect_local_ranks
from sparring_shm.options import ShmOptions
from sparring_testing.processes.child_processes import ChildProcesses, wait_for
from sparring_testing.processes.deadlines import check_with_deadlines
from sparring_testing.processes.mpi_launcher import MPIEXEC, needs_mpi
from sparring_testing.processes.table_steps import descend
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

WORLD_SIZE = 3


def start(
    child_processes: ChildProcesses, deadline_seconds: float, folder: Path
) -> list[subprocess.Popen[str]]:
    program = [sys.executable, str(Path(__file__).with_name("rank_until_failure.py"))]
    given = [str(WORLD_SIZE), str(deadline_seconds), str(folder)]
    ranks = [child_processes.start([*program, str(rank), *given]) for rank in range(WORLD_SIZE)]
    for rank in range(WORLD_SIZE):
        wait_for(folder / f"{rank}.started", 60)
    return ranks


def failures(ranks: list[subprocess.Popen[str]], folder: Path, survivors: list[int]) -> list[Any]:
    """Returns the errors of the surviving ranks, which end by themselves."""
    for rank in survivors:
        ranks[rank].wait(timeout=60)
    return [json.loads((folder / f"{rank}.failed").read_text()) for rank in survivors]


@pytest.mark.alone
def test_a_killed_rank_is_named_long_before_the_deadline(
    child_processes: ChildProcesses, tmp_path: Path
) -> None:
    ranks = start(child_processes, 600.0, tmp_path)
    killed = time.time()
    ranks[1].send_signal(signal.SIGKILL)
    for each in failures(ranks, tmp_path, [0, 2]):
        assert (each["rank"], each["table"]) == (1, "user"), each
        assert each["time"] - killed < 5.0


@pytest.mark.alone
def test_a_stopped_rank_is_named_at_the_deadline(
    child_processes: ChildProcesses, tmp_path: Path
) -> None:
    def check(deadline: float) -> None:
        folder = tmp_path / f"{deadline:g}"
        folder.mkdir()
        ranks = start(child_processes, deadline, folder)
        stopped = time.time()
        ranks[1].send_signal(signal.SIGSTOP)
        for each in failures(ranks, folder, [0, 2]):
            assert (each["rank"], each["table"]) == (1, "user"), each
            assert each["time"] - stopped <= deadline * 1.1 + 0.3

    check_with_deadlines(check, (1.0, 8.0))


def run_threads(
    hosts: list[str],
    body: Callable[[Collective], Any],
    options: ShmOptions | None = None,
    deadline_seconds: float = 60.0,
) -> list[Any]:
    """Runs `body` on ranks that are threads, one per entry of `hosts`; returns the results."""
    group = LocalGroup(len(hosts), deadline_seconds=deadline_seconds)
    results: list[Any] = [None] * len(hosts)

    def run(rank: int) -> None:
        try:
            with connect_local_ranks(group.join(rank), options, host=hosts[rank]) as collective:
                results[rank] = body(collective)
        except Exception as error:
            results[rank] = error

    threads = [
        threading.Thread(target=run, args=(rank,), name=f"rank {rank}")
        for rank in range(len(hosts))
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    return results


def exchange_sizes(collective: Collective) -> bool:
    """Exchanges parts that are empty, small, as large as a ring and larger, in both directions."""
    for step, size in enumerate([0, 1, 16 << 10, (16 << 10) + 1, 1 << 16, 3_000_001]):
        parts = [
            np.full(size, 16 * collective.rank + peer + step, np.uint8)
            for peer in range(collective.world_size)
        ]
        for source, part in enumerate(collective.all_to_all(parts)):
            assert part.shape == (size,)
            assert (part == 16 * source + collective.rank + step).all()
    collective.barrier()
    return True


@pytest.mark.parametrize("hosts", ["aaaa", "aabb", "abac"])
@pytest.mark.parametrize("is_direct", [True, False], ids=["direct", "rings"])
def test_all_sizes_arrive_within_and_between_hosts(
    monkeypatch: pytest.MonkeyPatch, hosts: str, is_direct: bool
) -> None:
    if not is_direct:
        monkeypatch.setattr(_native, "read_number", lambda pid, address: None)
    assert run_threads(list(hosts), exchange_sizes, ShmOptions(ring_bytes=1 << 16)) == [True] * 4


def test_hosts_with_one_rank_use_the_other_collective() -> None:
    kinds = run_threads(["a", "b"], lambda collective: type(collective).__name__)
    assert kinds == ["LocalCollective"] * 2
    kinds = run_threads(["a", "a", "b"], lambda collective: type(collective).__name__)
    assert kinds == ["ShmCollective", "ShmCollective", "LocalCollective"]


@pytest.mark.parametrize("hosts", ["aabb", "abacb"])
def test_steps_in_two_levels_have_the_bits_of_the_ring(hosts: str) -> None:
    def rows(is_chosen: bool) -> dict[int, bytes]:
        def body(collective: Collective) -> dict[int, bytes]:
            found = {}
            options = ExchangeOptions(two_levels=is_chosen)
            rendezvous = ThreadRendezvous(len(hosts))
            with StepContainer(
                collective=collective, rendezvous=rendezvous, exchange=options
            ) as made:
                made.declare(TableConfig("item", 4))
                random = np.random.default_rng(collective.rank)
                for _ in range(3):
                    with made.step(descend(0.25)) as step:
                        rows = step.lookup("item", random.integers(0, 50, 30))
                        gradient = random.random(rows.rows.shape, np.float32)
                        step.accumulate(rows, gradient)
                for chunk in made.storage("item").scan():
                    found.update(
                        {
                            int(key): row.tobytes()
                            for key, row in zip(chunk.keys, chunk.rows, strict=True)
                        }
                    )
            return found

        shards = run_threads(list(hosts), body)
        return {key: row for shard in shards for key, row in shard.items()}

    two_levels = rows(True)
    assert len(two_levels) == 50
    assert two_levels == rows(False)


@pytest.mark.parametrize("failed", range(5))
def test_a_rank_that_fails_is_named_on_all_hosts(failed: int) -> None:
    def body(collective: Collective) -> Any:
        options = ExchangeOptions(two_levels=True)
        made = StepContainer(
            collective=collective, rendezvous=ThreadRendezvous(5), exchange=options
        )
        made.declare(TableConfig("item", 4))
        made.lookup("item", np.arange(20))
        if collective.rank == failed:
            collective.close()
            return None
        begin = time.monotonic()
        with pytest.raises(PeerFailure) as raised:
            made.lookup("item", np.arange(20))
        assert time.monotonic() - begin < 30
        return raised.value.rank

    results = run_threads(list("aabab"), body)
    assert results.pop(failed) is None
    assert results == [failed] * 4


def fail_on_rank_two(collective: Collective) -> Any:
    collective.barrier()
    if collective.rank == 2:
        collective.give_up(2)
        time.sleep(0.5)
        return None
    try:
        # Rank 0 waits for a rank of its host, which waits for the failed rank of another host.
        collective.receive(np.empty(3), collective.rank + 1).wait()
    except PeerFailure as error:
        return error.rank
    return None


def test_a_failure_on_another_host_is_reported_within_this_host() -> None:
    assert run_threads(["a", "a", "b"], fail_on_rank_two) == [2, 2, None]


@pytest.mark.parametrize("late", [0.0, 0.4])
def test_a_rank_that_does_not_respond_is_named_by_the_ranks_of_other_hosts(late: float) -> None:
    """Rank 0 waits for rank 1 of its host, which waits for rank 2 of another host, which waits for rank 3
    of a third one. The deadline of rank 0 comes first."""

    def check(deadline: float) -> None:
        def body(collective: Collective) -> Any:
            if collective.rank == 3:
                time.sleep(2.5 * deadline)
                return None
            time.sleep(collective.rank * late / 2 * deadline)
            with pytest.raises(PeerFailure) as raised:
                collective.receive(np.empty(3), collective.rank + 1).wait()
            return raised.value.rank

        found = run_threads(["a", "a", "b", "c"], body, deadline_seconds=deadline)
        assert found == [3, 3, 3, None]

    check_with_deadlines(check, (1.0, 8.0))


def test_a_large_message_of_a_rank_that_left_is_not_read() -> None:
    has_left = threading.Event()

    def leave(collective: Collective) -> str:
        if collective.rank == 0:
            sending = collective.send(np.ones(1 << 20, np.uint8), 1)
            collective.close()
            has_left.set()
            with pytest.raises(PeerFailure, match="left the group"):
                sending.wait()
            return "left"
        has_left.wait(5)
        with pytest.raises(PeerFailure, match=r"rank 0 .*left"):
            collective.receive(np.zeros(1 << 20, np.uint8), 0).wait()
        return "failed"

    assert run_threads(["a", "a"], leave) == ["left", "failed"]


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_rank_that_ends_is_named_although_its_messages_fill_the_ring(has_failed: bool) -> None:
    is_closed = threading.Event()
    # With its record of 32 bytes, a quarter of the ring.
    size = (1 << 14) - 32

    def leave(collective: Collective) -> Any:
        if collective.rank == 0:
            for _ in range(40):
                collective.send(np.ones(size, np.uint8), 1)
            if has_failed:
                collective.give_up(2)
            collective.close()
            is_closed.set()
            return None
        is_closed.wait(5)
        if collective.rank == 2:
            return None
        begin = time.monotonic()
        works = [collective.receive(np.empty(size, np.uint8), 0) for _ in range(40)]
        with pytest.raises(PeerFailure) as raised:
            works[-1].wait()
        return raised.value.rank, time.monotonic() - begin < 30

    options = ShmOptions(ring_bytes=1 << 16)
    results = run_threads(["a", "a", "a"], leave, options)
    assert results == [None, (2 if has_failed else 0, True), None]


def test_a_forked_process_does_not_leave_the_group() -> None:
    def fork(collective: Collective) -> bool:
        if collective.rank == 0:
            child = os.fork()
            if child == 0:
                collective.close()
                os._exit(0)
            os.waitpid(child, 0)
        return exchange_sizes(collective)

    assert run_threads(["a", "a"], fork) == [True] * 2


def test_a_rank_without_shared_memory_uses_the_other_collective(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create = os.memfd_create

    def forbid_for_one(name: str, flags: int) -> int:
        if threading.current_thread().name == "rank 1":
            raise PermissionError(1, "Operation not permitted")
        return create(name, flags)

    monkeypatch.setattr(os, "memfd_create", forbid_for_one)
    assert run_threads(["a", "a", "a"], exchange_sizes) == [True] * 3
    [warning] = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert "rank 1 cannot use shared memory" in warning
    assert "Operation not permitted" in warning


def test_descriptors_of_a_failed_start_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Collective) -> None:
        raise InvalidArgumentError("barrier")

    monkeypatch.setattr(Collective, "barrier", fail)
    before = len(list(Path("/proc/self/fd").iterdir()))
    results = run_threads(["a", "a"], exchange_sizes)
    assert [type(each) for each in results] == [InvalidArgumentError] * 2
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_rank_that_ends_during_the_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    links = meeting._links

    def end_one(listener: socket.socket, *given: Any) -> Iterator[socket.socket]:
        if threading.current_thread().name == "rank 1":
            listener.close()
            raise KeyError("ended")
        yield from links(listener, *given)

    monkeypatch.setattr(meeting, "_links", end_one)
    errors = run_threads(["a", "a"], exchange_sizes, deadline_seconds=0.5)
    assert isinstance(errors[0], DeadlineError)
    assert errors[0].details["ranks"] == [1]
    assert "rank 0 did not connect to the ranks [1] of this host within 0.5 s" in str(errors[0])


@needs_mpi
@pytest.mark.alone
def test_messages_to_another_host_advance_in_a_wait_for_this_host() -> None:
    program = str(Path(__file__).with_name("ranks_in_a_circle.py"))
    ran = subprocess.run(
        [MPIEXEC, "-n", "3", sys.executable, program],
        env={**os.environ, "MPIR_CVAR_NOLOCAL": "1"},  # mpich sends as between hosts
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("received") == 3


@needs_mpi
@pytest.mark.alone
def test_mpi_ends_the_job_if_a_rank_is_stopped(tmp_path: Path) -> None:
    given = ["shm", '{"between_hosts": "mpi"}', "1", str(tmp_path)]
    module = "sparring_testing.faults.exchange_until_failure"
    with subprocess.Popen(
        [MPIEXEC, "-n", "2", sys.executable, "-m", module, *given], stderr=subprocess.DEVNULL
    ) as launcher:
        try:
            limit = time.monotonic() + 60
            while len(list(tmp_path.glob("*.started"))) < 2:
                assert launcher.poll() is None
                assert time.monotonic() < limit
                time.sleep(0.01)
            os.kill(int((tmp_path / "1.started").read_text()), signal.SIGSTOP)
            assert launcher.wait(timeout=20) != 0
        finally:
            launcher.kill()


def test_ring_bytes_sets_the_size_of_the_shared_memory() -> None:
    def mapped(collective: Collective) -> int:
        assert isinstance(collective, ShmCollective)
        text = Path("/proc/self/maps").read_text()
        ends = re.findall(r"^(\w+)-(\w+) .*memfd:sparring-shm", text, re.MULTILINE)
        collective.barrier()
        return max(int(end, 16) - int(begin, 16) for begin, end in ends)

    sizes = run_threads(["a", "a"], mapped, ShmOptions(ring_bytes=1 << 20))
    assert sizes == [(2 << 20) + 4096] * 2


def test_ring_bytes_must_be_a_power_of_two() -> None:
    [descriptor] = plugin.sparring_register_collective()
    with pytest.raises(InvalidArgumentError, match=r"ring_bytes.*power of two, found 100000"):
        validate_options("collective", descriptor, {"ring_bytes": 100_000})


def test_nothing_remains_after_close() -> None:
    gc.collect()  # errors of other tests refer to their memory
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    run_threads(["a", "a"], exchange_sizes)
    assert len(list(descriptors.iterdir())) == before
    assert "sparring-shm" not in Path("/proc/self/maps").read_text()
