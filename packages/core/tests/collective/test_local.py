"""The local collective: ranks as threads of one process."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from sparring.collective.local import LocalGroup
from sparring.contracts.ranks.collective import Collective, Reduction
from sparring.errors import ClosedError, InvalidArgumentError, PeerFailure
from sparring_testing.processes.rank_threads import run_ranks


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_all_to_all_sends_each_rank_its_part_of_any_size(world_size: int) -> None:
    def body(collective: Collective) -> list[list[int]]:
        # Rank r sends (r * i) % 3 elements to rank i: sizes differ, and some parts are empty.
        parts = [
            np.full((collective.rank * peer) % 3, collective.rank * 10 + peer, np.int64)
            for peer in range(world_size)
        ]
        return [part.tolist() for part in collective.all_to_all(parts)]

    for rank, received in enumerate(run_ranks(world_size, body)):
        expected = [[peer * 10 + rank] * ((peer * rank) % 3) for peer in range(world_size)]
        assert received == expected


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_all_reduce_is_the_same_on_all_ranks(world_size: int) -> None:
    def body(collective: Collective) -> tuple[Any, Any, Any]:
        mine = np.arange(6, dtype=np.float64).reshape(2, 3) * (collective.rank + 1)
        return (
            collective.all_reduce(mine),
            collective.all_reduce(mine, Reduction.MEAN),
            collective.all_reduce(mine, Reduction.MAX),
        )

    base = np.arange(6, dtype=np.float64).reshape(2, 3)
    total = world_size * (world_size + 1) / 2
    for added, mean, largest in run_ranks(world_size, body):
        np.testing.assert_allclose(added, base * total)
        np.testing.assert_allclose(mean, base * total / world_size)
        np.testing.assert_allclose(largest, base * world_size)


def test_messages_of_one_tag_arrive_in_order_and_tags_do_not_mix() -> None:
    def body(collective: Collective) -> list[int]:
        if collective.rank == 0:
            for value in range(5):
                collective.send(np.array([value]), 1, tag=value % 2).wait()
            return []
        got = []
        for tag in (1, 0, 0, 1, 0):
            buffer = np.empty(1, np.int64)
            collective.receive(buffer, 0, tag).wait()
            got.append(int(buffer[0]))
        return got

    assert run_ranks(2, body)[1] == [1, 0, 2, 3, 4]


def test_a_sent_buffer_may_be_overwritten_once_the_work_is_done() -> None:
    def body(collective: Collective) -> int:
        buffer = np.array([41 + collective.rank])
        if collective.rank == 0:
            collective.send(buffer, 1).wait()
            buffer[0] = 0
            collective.barrier()
        else:
            collective.barrier()
            collective.receive(buffer, 0).wait()
        return int(buffer[0])

    assert run_ranks(2, body) == [0, 41]


def test_silence_ends_at_the_deadline_naming_rank_operation_and_step() -> None:
    from sparring.contracts.ranks.collective import WorkContext

    collective = LocalGroup(2, deadline_seconds=0.05).join(0)
    collective.context = WorkContext("pull", table="user", step=7)
    with pytest.raises(PeerFailure, match=r"rank 1.*pull.*'user'.*step 7.*0.05 s") as caught:
        collective.receive(np.empty(1), 1).wait()
    assert (caught.value.rank, caught.value.operation, caught.value.table, caught.value.step) == (
        1, "pull", "user", 7,
    )  # fmt: skip


def test_a_rank_that_leaves_is_named_at_once() -> None:
    group = LocalGroup(2, deadline_seconds=30)
    survivor, leaver = group.join(0), group.join(1)
    leaver.close()
    with pytest.raises(PeerFailure, match="left the group"):
        survivor.receive(np.empty(1), 1).wait()
    with pytest.raises(PeerFailure, match="left the group"):
        survivor.send(np.empty(1), 1)
    with pytest.raises(ClosedError):
        leaver.send(np.empty(1), 0)


def test_a_rank_that_gave_up_but_stays_notifies_the_others() -> None:
    has_heard = threading.Event()

    def body(collective: Collective) -> Any:
        if collective.rank == 1:
            collective.close()
            return None
        try:
            with pytest.raises(PeerFailure) as caught:
                # Rank 2 waits for rank 0 first.
                collective.barrier()
        finally:
            if collective.rank == 2:
                has_heard.set()
        if collective.rank == 0:
            assert has_heard.wait(10)
        return caught.value.rank

    assert run_ranks(3, body, 30.0) == [1, None, 1]


def test_a_rank_that_others_gave_up_on_is_not_reported_to_itself() -> None:
    group = LocalGroup(2, deadline_seconds=30)
    first, second = group.join(0), group.join(1)
    second.give_up(0)
    with pytest.raises(PeerFailure, match=r"rank 1.*left the group") as caught:
        first.barrier()
    assert caught.value.rank == 1


def test_wrong_use_is_rejected() -> None:
    group = LocalGroup(2)
    collective = group.join(0)
    with pytest.raises(InvalidArgumentError, match="ranks 0 to 1"):
        collective.send(np.empty(1), 2)
    with pytest.raises(InvalidArgumentError, match="2 ranks, found 1"):
        collective.all_to_all([np.empty(1)])
    with pytest.raises(InvalidArgumentError, match="C-contiguous"):
        collective.send(np.empty((4, 4))[:, 1], 1)
    with pytest.raises(InvalidArgumentError, match="rank 2 of 2"):
        group.join(2)
    group.join(1).send(np.zeros(3), 0)
    with pytest.raises(InvalidArgumentError, match="agree on the size"):
        collective.receive(np.empty(2), 1).wait()
