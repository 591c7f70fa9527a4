"""Tables of every kind train on ranks like in one process, bit for bit, and load each other's
snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from sparring.contracts.ranks.collective import Collective, Reduction
from sparring.contracts.ranks.layout import TableSharding
from sparring.contracts.tables.initializers import Uniform
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.errors import InvalidArgumentError
from sparring_testing.processes.rank_threads import run_containers, run_ranks
from sparring_testing.processes.sharded_jobs import make_gradients
from sparring_testing.processes.table_steps import (
    RowBytes,
    declare_tables,
    join_rows,
    open_tables,
    read_rows,
    read_tables,
)
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

KINDS: Mapping[str, Any] = {
    "row_wise": lambda _: "row_wise",
    "table_wise": lambda size: TableSharding("table_wise", (size - 1,)),
    "table_row_wise": lambda size: TableSharding("table_row_wise", tuple({0, size - 1})),
    "data_parallel": lambda _: "data_parallel",
}
STEPS = 6


TABLES = [
    TableConfig(name, dim, initializer=Uniform(-1, 1), seed=5)
    for name, dim in (("user", 4), ("item", 3))
]


def train(container: StepContainer, batches: list[tuple[int, int]]) -> None:
    choices = declare_tables(container, TABLES, "memory", "adagrad", lr=0.125)
    for step in range(STEPS):
        given = [make_gradients(step, rank) for at, rank in batches if at == step]
        ids = [np.concatenate([each[::every] for each, _ in given]) for every in (1, 2)]
        numbers = [np.concatenate([each[::every] for _, each in given]) for every in (1, 2)]
        both = container.lookup_all([("user", ids[0]), ("item", ids[1])])
        for found, mine in zip(both, [numbers[0], numbers[1][:, :3]], strict=True):
            sums = np.zeros(found.rows.shape, np.float32)
            np.add.at(sums, found.inverse, mine)
            assert found.shadow_id is not None
            container.resources.accumulate(found.shadow_id, sums)
        container.apply_methods(choices)


@pytest.mark.parametrize(
    "world_size", [2, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 3, 4))]
)
def test_all_kinds_have_the_bits_of_one_process(world_size: int) -> None:
    work = [(step, rank) for step in range(STEPS) for rank in range(world_size)]
    with StepContainer(reduction=Reduction.SUM) as alone:
        train(alone, work)
        expected = read_tables(alone)
    assert min(map(len, expected.values())) > 20
    for kind, plan in KINDS.items():

        def body(container: StepContainer) -> dict[str, RowBytes]:
            train(container, [each for each in work if each[1] == container.collective.rank])
            return read_tables(container)

        # The plan does not name the second table.
        plans = {"user": plan(world_size)}
        held = run_containers(world_size, body, reduction=Reduction.SUM, plan=plans)
        assert join_rows(held, ["user"] if kind == "data_parallel" else []) == expected
        if kind == "table_wise":
            assert [len(each["user"]) for each in held[:-1]] == [0] * (world_size - 1)


def test_rows_are_assigned_and_written_by_layout() -> None:
    keys = np.arange(50)

    def body(container: StepContainer) -> RowBytes:
        declare_tables(container, TABLES, "memory", "adagrad")
        rank = container.collective.rank
        container.assign("user", keys[rank::3], np.ones((len(keys[rank::3]), 4)))
        rows = np.zeros((1, 8), np.float32)
        if rank == 1:
            container.storage("user").upsert([99], rows)
        else:
            with pytest.raises(InvalidArgumentError, match="key 99 to rank 1"):
                container.storage("user").upsert([99], rows)
        return read_rows(container, "user")

    plan = {"user": TableSharding("table_wise", (1,))}
    assert [len(each) for each in run_containers(3, body, plan=plan)] == [0, 51, 0]


def test_ranks_with_different_plans_are_rejected_at_the_first_exchange() -> None:
    def body(collective: Collective) -> str:
        plan = {"user": TableSharding("table_wise", (collective.rank,))}
        with open_tables(
            *TABLES, collective=collective, rendezvous=ThreadRendezvous(2), plan=plan
        ) as container:
            with pytest.raises(InvalidArgumentError) as refused:
                container.lookup("user", np.array([1]))
            return str(refused.value)

    for message in run_ranks(2, body):
        assert 'tables.user.layout is "table_wise' in message
