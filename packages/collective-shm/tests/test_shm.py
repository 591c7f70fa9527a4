"""Ranks that fail, ranks of several hosts, and the options of the shm collective."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import LocalGroup
from sparring.contracts import Collective, validate_options
from sparring.errors import InvalidArgumentError, PeerFailure
from sparring_shm import _native, plugin
from sparring_shm.collective import ShmCollective
from sparring_shm.meeting import connect_local_ranks
from sparring_shm.options import ShmOptions
from sparring_testing.processes.deadlines import check_with_deadlines

WORLD_SIZE = 3

Start = Callable[[float, Path], "list[subprocess.Popen[str]]"]


@pytest.fixture
def start() -> Iterator[Start]:
    ranks: list[subprocess.Popen[str]] = []

    def launch(deadline_seconds: float, folder: Path) -> list[subprocess.Popen[str]]:
        program = str(Path(__file__).with_name("rank_until_failure.py"))
        for rank in range(WORLD_SIZE):
            given = [str(rank), str(WORLD_SIZE), str(deadline_seconds), str(folder)]
            ranks.append(
                subprocess.Popen(
                    [sys.executable, program, *given], stderr=subprocess.PIPE, text=True
                )
            )
        limit = time.monotonic() + 60
        while len(list(folder.glob("*.started"))) < WORLD_SIZE:
            assert all(each.poll() is None for each in ranks[-WORLD_SIZE:])
            assert time.monotonic() < limit
            time.sleep(0.01)
        return ranks[-WORLD_SIZE:]

    yield launch
    for each in ranks:
        each.kill()
        each.communicate()


def failures(ranks: list[subprocess.Popen[str]], folder: Path, survivors: list[int]) -> list[Any]:
    """Returns the errors of the surviving ranks, which end by themselves."""
    for rank in survivors:
        ranks[rank].wait(timeout=60)
    return [json.loads((folder / f"{rank}.failed").read_text()) for rank in survivors]


@pytest.mark.alone
def test_a_killed_rank_is_named_long_before_the_deadline(start: Start, tmp_path: Path) -> None:
    ranks = start(600.0, tmp_path)
    killed = time.time()
    ranks[1].send_signal(signal.SIGKILL)
    for each in failures(ranks, tmp_path, [0, 2]):
        assert (each["rank"], each["table"]) == (1, "user"), each
        assert each["time"] - killed < 5.0


@pytest.mark.alone
def test_a_stopped_rank_is_named_at_the_deadline(start: Start, tmp_path: Path) -> None:
    def check(deadline: float) -> None:
        folder = tmp_path / f"{deadline:g}"
        folder.mkdir()
        ranks = start(deadline, folder)
        stopped = time.time()
        ranks[1].send_signal(signal.SIGSTOP)
        for each in failures(ranks, folder, [0, 2]):
            assert (each["rank"], each["table"]) == (1, "user"), each
            assert each["time"] - stopped <= deadline * 1.1 + 0.3

    check_with_deadlines(check, (1.0, 8.0))


def run_threads(
    hosts: list[str], body: Callable[[Collective], Any], options: ShmOptions | None = None
) -> list[Any]:
    """Runs `body` on ranks that are threads, one per entry of `hosts`; returns the results."""
    group = LocalGroup(len(hosts), deadline_seconds=5.0)
    results: list[Any] = [None] * len(hosts)

    def run(rank: int) -> None:
        try:
            with connect_local_ranks(group.join(rank), options, host=hosts[rank]) as collective:
                results[rank] = body(collective)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(hosts))]
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
    assert kinds == ["ShmCollective"] * 3


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
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    run_threads(["a", "a"], exchange_sizes)
    assert len(list(descriptors.iterdir())) == before
    assert "sparring-shm" not in Path("/proc/self/maps").read_text()
