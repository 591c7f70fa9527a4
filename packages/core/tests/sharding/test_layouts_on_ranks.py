"""Tables of every kind train on ranks like in one process, bit for bit, and load each other's
snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from sparring.contracts.ranks.collective import Collective, Reduction
from sparring.contracts.ranks.layout import TableSharding
from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.initializers import Uniform
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import InvalidArgumentError
from sparring.updates.resolve import parse_hyper, resolve_method
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

Rows = dict[int, bytes]

KINDS: Mapping[str, Any] = {
    "row_wise": lambda _: "row_wise",
    "table_wise": lambda size: TableSharding("table_wise", (size - 1,)),
    "table_row_wise": lambda size: TableSharding("table_row_wise", tuple({0, size - 1})),
    "data_parallel": lambda _: "data_parallel",
}
STEPS = 6


def opened(
    collective: Collective | None, world_size: int, plan: Mapping[str, Any], **more: Any
) -> StepContainer:
    container = StepContainer(
        collective=collective,
        rendezvous=ThreadRendezvous(world_size) if collective else None,
        reduction=Reduction.SUM,
        plan=plan,
    )
    for name, dim in (("user", 4), ("item", 3)):
        table = TableConfig(name, dim, initializer=Uniform(-1, 1), seed=5, **more)
        container.declare(table, StorageChoice("memory"))
        container.set_state(name, np.zeros(dim, np.float32), "adagrad")
    return container


def batch(step: int, rank: int) -> tuple[Any, Any]:
    """Returns the ids of a rank, and gradients whose sums are exact in any order."""
    random = np.random.default_rng((step, rank))
    ids = random.integers(-20, 20, 0 if (step + rank) % 4 == 3 else 12 + rank)
    return ids, random.integers(-64, 65, (len(ids), 4)) / np.float32(64)


def train(container: StepContainer, batches: list[tuple[int, int]]) -> None:
    method = resolve_method("adagrad")
    choices = {
        name: MethodChoice(method, parse_hyper(method, {"lr": 0.125}), 1)
        for name in container.tables
    }
    for step in range(STEPS):
        given = [batch(step, rank) for at, rank in batches if at == step]
        ids = [np.concatenate([each[::every] for each, _ in given]) for every in (1, 2)]
        numbers = [np.concatenate([each[::every] for _, each in given]) for every in (1, 2)]
        both = container.lookup_all([("user", ids[0]), ("item", ids[1])])
        for found, mine in zip(both, [numbers[0], numbers[1][:, :3]], strict=True):
            sums = np.zeros(found.rows.shape, np.float32)
            np.add.at(sums, found.inverse, mine)
            assert found.shadow_id is not None
            container.resources.accumulate(found.shadow_id, sums)
        container.apply_methods(choices)


def stored(container: StepContainer, name: str) -> Rows:
    return {
        int(key): row.tobytes()
        for chunk in container.storage(name).scan()
        for key, row in zip(chunk.keys, chunk.rows, strict=True)
    }


def joined(held: list[Rows], *, is_replicated: bool) -> Rows:
    if is_replicated:
        assert all(each == held[0] for each in held)
        return held[0]
    assert sum(map(len, held)) == len({key for each in held for key in each}), "a key on two ranks"
    return {key: row for each in held for key, row in each.items()}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_all_kinds_have_the_bits_of_one_process(world_size: int) -> None:
    work = [(step, rank) for step in range(STEPS) for rank in range(world_size)]
    with opened(None, 1, {}) as alone:
        train(alone, work)
        expected = {name: stored(alone, name) for name in alone.tables}
    assert min(map(len, expected.values())) > 20
    for kind, plan in KINDS.items():

        def body(collective: Collective, plan: Any = plan) -> dict[str, Rows]:
            with opened(collective, world_size, {"user": plan(world_size)}) as container:
                train(container, [each for each in work if each[1] == collective.rank])
                return {name: stored(container, name) for name in container.tables}

        held = run_ranks(world_size, body)
        is_replicated = kind == "data_parallel"
        assert (
            joined([each["user"] for each in held], is_replicated=is_replicated) == expected["user"]
        )
        # A table that the plan does not name.
        assert joined([each["item"] for each in held], is_replicated=False) == expected["item"]
        if kind == "table_wise":
            assert [len(each["user"]) for each in held[:-1]] == [0] * (world_size - 1)


def test_rows_are_assigned_and_written_by_layout() -> None:
    keys = np.arange(50)

    def body(collective: Collective) -> Rows:
        with opened(collective, 3, {"user": TableSharding("table_wise", (1,))}) as container:
            container.assign(
                "user", keys[collective.rank :: 3], np.ones((len(keys[collective.rank :: 3]), 4))
            )
            rows = np.zeros((1, 8), np.float32)
            if collective.rank == 1:
                container.storage("user").upsert([99], rows)
            else:
                with pytest.raises(InvalidArgumentError, match="key 99 to rank 1"):
                    container.storage("user").upsert([99], rows)
            return stored(container, "user")

    assert [len(each) for each in run_ranks(3, body)] == [0, 51, 0]


def test_ranks_with_different_plans_are_rejected_at_the_first_exchange() -> None:
    def body(collective: Collective) -> str:
        plan = {"user": TableSharding("table_wise", (collective.rank,))}
        with opened(collective, 2, plan) as container:
            with pytest.raises(InvalidArgumentError) as refused:
                container.lookup("user", np.array([1]))
            return str(refused.value)

    for message in run_ranks(2, body):
        assert 'tables.user.layout is "table_wise' in message
