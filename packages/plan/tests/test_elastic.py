"""A job that is restarted with other ranks finds its rows under a plan for these ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import StepContainer, StorageChoice, Uniform, make_plugin_manager
from sparring.adapter import automatic_plan, describe_workload, parse_hyper, resolve_method
from sparring.contracts import (
    Collective,
    FeatureWorkload,
    Membership,
    MethodChoice,
    PlanRequest,
    Reduction,
    TableConfig,
)
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

TABLES = [
    TableConfig("user", 4, initializer=Uniform(-1, 1), seed=5),
    TableConfig("item", 6, initializer=Uniform(-1, 1), seed=5),
    TableConfig("day", 2, initializer=Uniform(-1, 1), seed=5),
]
SIZES = {"user": 10**7, "item": 10**5, "day": 7}
KEYS = np.arange(-30, 30)


def train(
    collective: Collective, steps: range, *, load: str = "", save: str = "", plan: str = "auto"
) -> dict[str, Any]:
    """Kind and rows of each table after some steps, on this rank and as all ranks read them."""
    manager, size = make_plugin_manager(), collective.world_size
    workloads = tuple(
        describe_workload(
            table,
            StorageChoice("memory", {"capacity": SIZES[table.name]}),
            [FeatureWorkload("sum", 3.0)],
            "adagrad",
        )
        for table in TABLES
    )
    made = automatic_plan(
        PlanRequest(workloads, size, memory_bytes=1 << 30),
        collective,
        Membership(collective.rank, size, collective.rank, size),
        manager,
    )
    method = resolve_method("adagrad")
    choice = MethodChoice(method, parse_hyper(method, {"lr": 0.125}), 1)
    with StepContainer(
        collective=collective,
        rendezvous=ThreadRendezvous(size),
        reduction=Reduction.SUM,
        plugin_manager=manager,
        plan=made.sharding if plan == "auto" else None,
    ) as container:
        for table in TABLES:
            container.declare(table, StorageChoice("memory"))
            container.set_state(table.name, np.zeros(table.dim, np.float32), "adagrad")
        if load:
            container.load(load)
        for step in steps:
            random = np.random.default_rng(step)
            ids = random.integers(-30, 30, 24)
            # Sums of these are exact in any order, so any number of ranks has the same bits.
            numbers = random.integers(-64, 65, (24, 6)) / np.float32(64)
            mine = slice(collective.rank, None, size)
            found = container.lookup_all([(table.name, ids[mine]) for table in TABLES])
            for each, table in zip(found, TABLES, strict=True):
                sums = np.zeros(each.rows.shape, np.float32)
                np.add.at(sums, each.inverse, numbers[mine][:, : table.dim])
                assert each.shadow_id is not None
                container.resources.accumulate(each.shadow_id, sums)
            container.apply_methods({table.name: choice for table in TABLES})
        if save:
            container.save(save)
        read = container.lookup_all([(table.name, KEYS) for table in TABLES], is_registered=False)
        return {
            table.name: (
                container.layout(table.name).kind,
                container.num_rows(table.name),
                each.rows[each.inverse].tobytes(),
            )
            for table, each in zip(TABLES, read, strict=True)
        }


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), (3, 1)], ids=str)
def test_ranks_find_their_rows_under_the_plan_of_other_ranks(
    before: int, after: int, tmp_path: Path
) -> None:
    url = str(tmp_path / "step-4")
    run_ranks(before, lambda each: train(each, range(4), save=url))
    held = run_ranks(after, lambda each: train(each, range(4, 8), load=url))
    (expected,) = run_ranks(1, lambda each: train(each, range(8), plan="none"))
    for name, (_, num_rows, rows) in expected.items():
        for rank in held:
            assert rank[name][2] == rows, (
                f"table {name}: bits of one process that was never stopped"
            )
        counts = [rank[name][1] for rank in held]
        is_replicated = held[0][name][0] == "data_parallel"
        assert counts == [num_rows] * after if is_replicated else sum(counts) == num_rows
