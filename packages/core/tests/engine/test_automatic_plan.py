"""``plan="auto"``: rank 0 calls the planner, and all ranks receive its plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparring.contracts.descriptors import API_VERSION, PlannerDescriptor
from sparring.contracts.hookspecs import hookimpl
from sparring.contracts.planner import FeatureWorkload, PlanRequest, PlanResult, TableWorkload
from sparring.contracts.ranks.collective import Collective
from sparring.contracts.ranks.layout import ShardingPlan, TableSharding
from sparring.contracts.ranks.rendezvous import Membership
from sparring.contracts.tables.admission import Bloom, Frequency
from sparring.contracts.tables.table import TableConfig
from sparring.engine.job.automatic_plan import automatic_plan, describe_workload, resolve_plan
from sparring.engine.job.bootstrap import Job
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import CapacityError, InvalidArgumentError, PluginError
from sparring.plugins.distributions import PluginSource
from sparring.plugins.registry import PluginManager, make_plugin_manager
from sparring.storage.open import open_storage
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

TABLES = (TableWorkload(TableConfig("user", 4)), TableWorkload(TableConfig("shop", 2)))


class Planner:
    """Assigns each table to the last rank, and records its requests."""

    def __init__(self, answer: Any = None) -> None:
        self.asked: list[PlanRequest] = []
        self._answer = answer

    def __call__(self, request: PlanRequest) -> PlanResult:
        self.asked.append(request)
        if isinstance(self._answer, Exception):
            raise self._answer
        if self._answer is not None:
            answer: PlanResult = self._answer
            return answer
        sharding = TableSharding("table_wise", (request.world_size - 1,))
        plan = ShardingPlan({each.table.name: sharding for each in request.tables})
        return PlanResult(plan, "user is here", ("rows are guessed",))

    def manager(self) -> PluginManager:
        planner = self

        class Plugin:
            @hookimpl
            def sparring_register_planners(self) -> list[PlannerDescriptor]:
                return [PlannerDescriptor(name="auto", api_version=API_VERSION, factory=planner)]

        manager = make_plugin_manager(entry_points=False)
        manager.load(PluginSource("planner", "some-planner", "1.0", Plugin))
        return manager


def planned(
    world_size: int, manager: PluginManager, nodes: list[int] | None = None
) -> list[PlanResult]:
    """Returns the plan of each rank, for nodes with the given number of ranks."""
    sizes = [size for size in nodes or [1] * world_size for _ in range(size)]
    local = [rank for size in nodes or [1] * world_size for rank in range(size)]

    def body(collective: Collective) -> PlanResult:
        rank = collective.rank
        member = Membership(rank, world_size, local[rank], sizes[rank])
        return automatic_plan(PlanRequest(TABLES, world_size), collective, member, manager)

    return run_ranks(world_size, body)


def test_rank_0_plans_and_all_ranks_receive_the_plan() -> None:
    planner = Planner()
    made = planned(3, planner.manager())
    assert [each.world_size for each in planner.asked] == [3]
    assert made[0] == made[1] == made[2]
    assert made[0].sharding.sharding_of("shop") == TableSharding("table_wise", (2,))
    assert (made[0].summary, made[0].assumptions) == ("user is here", ("rows are guessed",))


def test_one_rank_needs_no_plan() -> None:
    planner = Planner()
    assert planned(1, planner.manager()) == [PlanResult(ShardingPlan())]
    assert not planner.asked


@pytest.mark.parametrize("nodes", [[2, 2], [4], [1, 1, 1, 1]], ids=str)
def test_a_planner_receives_equal_nodes(nodes: list[int]) -> None:
    planner = Planner()
    (made, *_) = planned(4, planner.manager(), nodes)
    assert [each.ranks_per_node for each in planner.asked] == [nodes[0]]
    assert made.assumptions == ("rows are guessed",)


@pytest.mark.parametrize("nodes", [[3, 1], [1, 3], [2, 1, 1]], ids=str)
def test_ranks_of_uneven_nodes_are_planned_as_single_nodes(nodes: list[int]) -> None:
    planner = Planner()
    made = planned(4, planner.manager(), nodes)
    assert [each.ranks_per_node for each in planner.asked] == [1]
    assert len({each.assumptions for each in made}) == 1
    assert "different numbers of ranks" in made[0].assumptions[0]


def test_without_a_planner_tables_are_row_wise_and_a_message_is_logged() -> None:
    made = planned(2, make_plugin_manager(entry_points=False))
    assert [each.sharding.tables for each in made] == [{}, {}]
    (sentence,) = made[1].assumptions
    assert sentence.startswith(
        "tables whose kind is not specified are row_wise, because planner 'auto' is"
    )
    assert 'pip install "sparring[plan]"' in sentence


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (CapacityError("3 GiB are missing"), CapacityError, "3 GiB are missing"),
        (ZeroDivisionError("by 0"), Exception, "by 0"),
        ({"user": "row_wise"}, PluginError, "must return a PlanResult, found dict"),
    ],
)
def test_all_ranks_raise_the_error_of_rank_0(answer: Any, error: type, words: str) -> None:
    manager = Planner(answer).manager()

    def body(collective: Collective) -> str:
        member = Membership(collective.rank, 2)
        with pytest.raises(error, match=words):
            automatic_plan(PlanRequest(TABLES, 2), collective, member, manager)
        return "raised"

    assert run_ranks(2, body) == ["raised", "raised"]


@pytest.mark.parametrize("reads_files", [True, False])
def test_a_path_is_read_by_the_planner(reads_files: bool, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("")
    asked: list[tuple[str, PlanRequest]] = []

    def read(path: str, request: PlanRequest) -> ShardingPlan:
        asked.append((path, request))
        return ShardingPlan()

    class Plugin:
        @hookimpl
        def sparring_register_planners(self) -> list[PlannerDescriptor]:
            given = {"read": read} if reads_files else {}
            return [
                PlannerDescriptor(name="auto", api_version=API_VERSION, factory=Planner(), **given)
            ]

    manager = make_plugin_manager(entry_points=False)
    manager.load(PluginSource("planner", "some-planner", "1.0", Plugin))

    def body(collective: Collective) -> None:
        member = Membership(collective.rank, 2)
        job = Job(member, ThreadRendezvous(2), collective)
        if not reads_files:
            with pytest.raises(PluginError, match="cannot read plan files; install sparring-plan"):
                resolve_plan(str(path), lambda: TABLES, job, manager)
            return
        assert resolve_plan(str(path), lambda: TABLES, job, manager) == ShardingPlan()

    run_ranks(2, body)
    assert asked == [(str(path), PlanRequest(tuple(TABLES), 2))] * (2 if reads_files else 0)


def test_a_job_keeps_an_explicit_plan_and_computes_an_automatic_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    manager = Planner().manager()
    caplog.set_level("INFO", logger="sparring")

    def body(collective: Collective) -> list[Any]:
        member = Membership(collective.rank, 2)
        job = Job(member, ThreadRendezvous(2), collective)
        given = {"user": "row_wise"}
        assert resolve_plan(given, lambda: TABLES, job, manager) is given
        assert resolve_plan(None, lambda: TABLES, job, manager) is None
        with pytest.raises(InvalidArgumentError, match=r"found 'plan.yaml'; pass 'auto'"):
            resolve_plan("plan.yaml", lambda: TABLES, job, manager)
        return [resolve_plan("auto", lambda: TABLES, job, manager)]

    (first,), (second,) = run_ranks(2, body)
    assert first == second
    assert set(first.tables) == {"user", "shop"}
    # Only rank 0 logs it.
    assert [each.getMessage() for each in caplog.records] == [
        "plan auto: rows are guessed",
        "user is here",
    ]


def test_a_storage_reports_its_capacity_and_whether_it_supports_replication() -> None:
    table, feature = TableConfig("user", 4), FeatureWorkload("mean", 3.0)

    def of(storage: Any, table: TableConfig = table) -> TableWorkload:
        return describe_workload(table, storage, [feature], "adam")

    plain = of(StorageChoice("hkv", {"capacity": 10}))
    assert plain == TableWorkload(table, (feature,), 10, "adam")
    assert of(StorageChoice("hkv")).rows is None
    assert not of(StorageChoice("hkv", {"capacity": 10, "policy": "lru"})).supports_replication
    rocks = of(StorageChoice("rocksdb", {"path": "rows"}))
    assert (rocks.supports_replication, rocks.is_in_memory) == (False, False)
    replicated = of(StorageChoice("memory"), replace(table, placement="replicated"))
    assert replicated.kinds == ("data_parallel",)
    with open_storage("memory", table, capacity=7) as storage:
        opened = of(storage)
    # Its rows are sharded already: a plan with data_parallel would be rejected.
    assert (opened.rows, opened.is_in_memory, opened.supports_replication) == (7, True, False)


def test_columns_may_be_divided_if_update_storage_and_admission_allow_it() -> None:
    table = TableConfig("user", 4)

    def may(
        storage: Any = None, table: TableConfig = table, method: str | None = "adam", **hyper: Any
    ) -> bool:
        chosen = StorageChoice("hkv") if storage is None else storage
        return describe_workload(table, chosen, (), method, hyper).supports_column_split

    assert may()
    assert may(method="torch.optim.Adagrad", lr=0.1, clip_norm=0.0)
    assert may(table=replace(table, admission=Frequency(2)))
    for couples in ("rowwise_adagrad", "lamb", "a_method_of_mine", None):
        assert not may(method=couples)
    assert not may(clip_norm=1.0)
    assert not may(method="keras.optimizers.Adam", clipnorm=1.0)
    assert not may(StorageChoice("hkv", {"capacity": 10}))
    assert not may(StorageChoice("rocksdb", {"path": "rows"}))
    assert not may(table=replace(table, admission=Bloom(2)))
    assert not may(table=replace(table, placement="replicated"))
    with open_storage("memory", table) as storage:
        assert not may(storage)
