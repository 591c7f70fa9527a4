"""Messages between hosts in two levels: the bits of the ring, fewer messages, and the same failures."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sparring.collective.local import LocalCollective
from sparring.contracts.ranks.collective import OPERATION_TAG, Collective
from sparring.contracts.ranks.exchange_options import ExchangeOptions
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import InvalidArgumentError, NonFiniteGradientError, PeerFailure
from sparring.exchange.messenger import ExchangeCounters, MessageKind, Messenger
from sparring.exchange.two_levels import TwoLevels, choose_levels, compute_max_part_bytes
from sparring_testing.processes.deadlines import check_with_deadlines
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.table_steps import descend, read_rows
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

from .exchange_scenario import Scenario, Shard, train
from .test_failure import LONG, SOON, TABLE, container_of, error_of, step

Hosts = list[list[int]]

EVEN, UNEVEN, MANY = [[0, 1], [2, 3]], [[0, 2, 3], [1], [4]], [[0, 1], [2, 3], [4, 5, 6]]


def run_on_hosts(hosts: Hosts, body: Callable[[Collective], Any], deadline: float = LONG) -> Any:
    def on_host(collective: Collective) -> Any:
        collective.hosts = hosts
        return body(collective)

    return run_ranks(sum(map(len, hosts)), on_host, deadline)


def two_levels(**options: Any) -> ExchangeOptions:
    return ExchangeOptions(two_levels=True, **options)


@pytest.mark.parametrize(
    ("hosts", "chunk_rows"),
    [
        pytest.param(EVEN, None, id="even-short"),
        pytest.param(UNEVEN, 3, id="uneven-long and short"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in ((EVEN, 3), (UNEVEN, None), (MANY, 3), (MANY, None))
        ),
    ],
)
def test_bits_equal_those_of_the_ring(hosts: Hosts, chunk_rows: int | None) -> None:
    def rows(is_chosen: bool) -> list[dict[str, Shard]]:
        exchange = ExchangeOptions(chunk_rows, two_levels=is_chosen)
        world_size = sum(map(len, hosts))
        scenario = Scenario(world_size, "adam", num_steps=8, exchange=exchange)

        def body(collective: Collective) -> dict[str, Shard]:
            return train(scenario, collective, ThreadRendezvous(world_size))

        return run_on_hosts(hosts, body)

    for mine, theirs in zip(rows(True), rows(False), strict=True):
        for name, shard in mine.items():
            assert shard.keys == theirs[name].keys
            for key, row in shard.rows.items():
                assert row.tobytes() == theirs[name].rows[key].tobytes()


@pytest.mark.parametrize(
    ("chunk_rows", "num_tables", "expected"),
    [
        # Three times the header of a leader and those of its host; keys, rows and gradients.
        (None, 1, 9),
        # Also the counts for which the three headers have no room.
        pytest.param(None, 60, 12, marks=pytest.mark.slow),
        # Streams that are longer than a chunk use the ring.
        (4, 1, None),
    ],
    ids=["short", "many tables", "long"],
)
def test_hosts_exchange_one_message_per_kind_and_direction(
    monkeypatch: pytest.MonkeyPatch, chunk_rows: int | None, num_tables: int, expected: int | None
) -> None:
    hosts = MANY
    host_of = {rank: number for number, ranks in enumerate(hosts) for rank in ranks}
    sent: Counter[tuple[int, int]] = Counter()
    counted: list[Counter[tuple[int, int]]] = []
    send = LocalCollective._send_impl

    def count(self: LocalCollective, buffer: Any, destination: int, tag: int) -> Any:
        if tag != OPERATION_TAG:
            sent[host_of[self.rank], host_of[destination]] += 1
        return send(self, buffer, destination, tag)

    monkeypatch.setattr(LocalCollective, "_send_impl", count)

    names = [f"t{each}" for each in range(num_tables)]

    def body(collective: Collective) -> None:
        def step_all() -> None:
            with made.step(descend(0.25)) as one:
                found = made.lookup_all([(name, np.arange(300)) for name in names])
                for each in found:
                    one.accumulate(each, np.ones((300, 4), np.float32))

        with container_of(collective, exchange=two_levels(chunk_rows=chunk_rows)) as made:
            for name in names:
                made.declare(replace(TABLE, name=name), StorageChoice("memory"))
            step_all()
            for act in (sent.clear, lambda: counted.append(sent.copy())):
                collective.barrier()
                if collective.rank == 0:
                    act()
                collective.barrier()
                step_all()

    run_on_hosts(hosts, body)
    [between] = counted
    for ends, number in between.items():
        if ends[0] != ends[1]:
            assert number == expected if expected is not None else number > 9, ends


# -- failures ----------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", [EVEN, [[0, 1], [2]]], ids=["even", "alone"])
@pytest.mark.parametrize("ended", [0, 1, 2])
def test_a_rank_that_has_ended_is_named_on_all_hosts(hosts: Hosts, ended: int) -> None:
    have_failed = threading.Barrier(sum(map(len, hosts)))

    def body(collective: Collective) -> Any:
        made = container_of(collective, exchange=two_levels())
        step(made, np.arange(20))
        if collective.rank == ended:
            # The collective stays open, so only the headers tell.
            made.exchange.end()
            have_failed.wait(LONG)
            return None
        begin = time.monotonic()
        error = error_of(lambda: step(made, np.arange(20)))
        assert time.monotonic() - begin < SOON
        assert isinstance(error, PeerFailure)
        assert error.details["steps_applied"] == 1
        have_failed.wait(LONG)
        return error.rank

    results = run_on_hosts(hosts, body)
    assert results.pop(ended) is None
    assert set(results) == {ended}


@pytest.mark.parametrize("stopped", [0, 3], ids=["leader", "other"])
def test_a_rank_that_does_not_respond_is_named_on_all_hosts(stopped: int) -> None:
    def check(deadline: float) -> None:
        def body(collective: Collective) -> Any:
            made = container_of(collective, exchange=two_levels())
            step(made, np.arange(20))
            if collective.rank == stopped:
                time.sleep(deadline * 1.5)
                return None
            error = error_of(lambda: step(made, np.arange(20)))
            assert isinstance(error, PeerFailure)
            return error.rank

        results = run_on_hosts(EVEN, body, deadline)
        assert results.pop(stopped) is None
        assert set(results) == {stopped}

    check_with_deadlines(check, (1.0, 8.0))


def test_a_rejected_step_changes_no_row_and_training_continues() -> None:
    def body(collective: Collective) -> None:
        with container_of(collective, exchange=two_levels()) as made:
            step(made, np.arange(20))
            before = read_rows(made, "item")
            gradient = np.nan if collective.rank == 3 else 1.0
            error = error_of(lambda: step(made, np.arange(20), gradient))
            assert isinstance(error, NonFiniteGradientError)
            assert read_rows(made, "item") == before
            step(made, np.arange(20))
            assert read_rows(made, "item") != before

    run_on_hosts(EVEN, body)


# -- the choice ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([[10.0, 9.5], [20.0, 19.0]], None),
        ([[10.0, 12.0], [20.0, 15.0]], None),
        ([[10.0, 4.0], [20.0, 14.0]], float("inf")),
        ([[10.0, 4.0], [20.0, 20.0]], 8192),
        ([[10.0, 4.0], [20.0, 26.0]], 512 + (8192 - 512) / 2),
    ],
    ids=["little gain", "slower", "always", "up to the larger size", "up to a size between"],
)
def test_messages_use_two_levels_up_to_the_size_where_they_are_faster(
    seconds: Any, expected: float | None
) -> None:
    assert compute_max_part_bytes(seconds) == expected


@pytest.mark.parametrize("is_slow", [True, False], ids=["slow", "fast"])
def test_auto_chooses_two_levels_if_messages_between_hosts_are_slow(
    monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    send = LocalCollective._send_impl

    def delayed(self: LocalCollective, buffer: Any, destination: int, tag: int) -> Any:
        if (self.rank // 2 != destination // 2) is is_slow:
            time.sleep(8e-3)
        return send(self, buffer, destination, tag)

    monkeypatch.setattr(LocalCollective, "_send_impl", delayed)

    def body(collective: Collective) -> bool:
        with container_of(collective) as made:
            step(made, np.arange(10))
            return made.exchange.session.levels is not None

    assert run_on_hosts(EVEN, body) == [is_slow] * 4


@pytest.mark.parametrize("hosts", [[[0, 1, 2, 3]], [[0], [1], [2], [3]]], ids=["one", "each"])
def test_ranks_of_one_host_or_of_separate_hosts_use_one_level(hosts: Hosts) -> None:
    def body(collective: Collective) -> Any:
        return choose_levels(Messenger(collective, ExchangeCounters()), True)

    assert run_on_hosts(hosts, body) == [None] * 4


def test_two_levels_require_known_hosts() -> None:
    def body(collective: Collective) -> None:
        with pytest.raises(InvalidArgumentError, match=r"two_levels is true, but .* shm"):
            StepContainer(
                collective=collective, rendezvous=ThreadRendezvous(2), exchange=two_levels()
            )

    run_ranks(2, body)


def test_leaders_are_distributed_over_the_ranks_of_a_host() -> None:
    hosts = [list(range(first, first + 4)) for first in range(0, 36, 4)]

    def body(collective: Collective) -> tuple[int, set[int]]:
        levels = TwoLevels(Messenger(collective, ExchangeCounters()), hosts)
        received = levels.exchange(MessageKind.KEYS, {}, {}, part_bytes=0)
        assert received == {}
        return len(levels.led), set(levels.far_ranks)

    for number, (num_led, far) in enumerate(run_on_hosts(hosts, body)):
        assert num_led == 2
        assert far == set(range(36)) - set(hosts[number // 4])
