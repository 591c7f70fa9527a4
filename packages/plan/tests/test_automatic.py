"""The planner of ``plan="auto"``: its plans, and its assumptions."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest

from sparring import make_plugin_manager
from sparring.contracts import (
    FeatureWorkload,
    PlanRequest,
    TableConfig,
    TableWorkload,
)
from sparring.errors import CapacityError, ConfigError, InvalidArgumentError
from sparring_cli import read_document
from sparring_plan.planning import automatic
from sparring_plan.planning.calibration.calibrate import write_calibration
from sparring_plan.planning.inputs import Calibration

GIB = 1 << 30


def table(name: str, dim: int = 16, **known: Any) -> TableWorkload:
    return TableWorkload(
        TableConfig(name, dim), (FeatureWorkload("sum", 2.0),), **{"method": "adam", **known}
    )


def request(*tables: TableWorkload, **known: Any) -> PlanRequest:
    return PlanRequest(tables, **{"world_size": 4, "memory_bytes": GIB, **known})


def test_it_is_the_automatic_planner_of_the_plugins() -> None:
    planner = make_plugin_manager().planner()
    made = planner.factory(request(table("user", rows=100)))
    assert set(made.sharding.tables) == {"user"}
    assert not made.assumptions
    assert planner.read is not None


def test_the_summary_has_a_line_for_each_table_and_the_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = automatic.plan_from_request(
        request(table("user", rows=100), table("item", rows=2000), ranks_per_node=2, samples=77)
    )
    head, first, second = made.summary.splitlines()
    assert head.startswith(
        "plan auto: 2 tables on 4 ranks, 2 per node; batches of 77 samples per rank"
    )
    assert "above its bound; row_wise, because no other plan" in head
    assert [each.split()[:2] for each in (first, second)] == [
        ["item", made.sharding.sharding_of("item").kind],  # type: ignore[union-attr]
        ["user", made.sharding.sharding_of("user").kind],  # type: ignore[union-attr]
    ]
    monkeypatch.setattr(automatic, "_MAX_SHOWN", 1)
    made = automatic.plan_from_request(request(table("user", rows=100), table("item", rows=2000)))
    assert [each.split()[0] for each in made.summary.splitlines()[1:]] == ["item", "and"]
    assert made.summary.endswith("and 1 more tables")


def test_assumptions_are_reported_by_table() -> None:
    made = automatic.plan_from_request(
        request(
            table("user", method=None),
            table("item", rows=100, method="my_method"),
            table("shop", rows=100, is_in_memory=False),
        )
    )
    size, method, memory = made.assumptions
    assert size.startswith(
        "table user: the size is unknown, so the plan assumes 10,000 new ids per day for 100 days"
    )
    assert method == "tables user, item: planned with the optimizer state of adagrad"
    assert memory.startswith("table shop: memory is not counted")
    unknown = TableWorkload(TableConfig("bag", 4), (FeatureWorkload(),), 9, "adam")
    assert automatic.plan_from_request(request(unknown)).assumptions == (
        "table bag: planned with one id per feature and sample",
    )
    many = automatic.plan_from_request(request(*(table(f"t{each}") for each in range(5))))
    assert many.assumptions[0].startswith("5 tables (t0, t1, t2, …): the size is unknown")


@pytest.mark.parametrize("name", ["adam", "torch.optim.Adam", "Adagrad", "rowwise_adagrad"])
def test_methods_are_known_by_the_names_of_frameworks(name: str) -> None:
    made = automatic.plan_from_request(request(table("user", rows=9, method=name)))
    assert not made.assumptions


def test_only_allowed_kinds_are_used() -> None:
    made = automatic.plan_from_request(
        request(
            table("one", rows=10, kinds=("table_wise",)),
            table("all", rows=10, kinds=("data_parallel",)),
            table("some", rows=10, kinds=("table_row_wise", "table_wise")),
        )
    )
    kinds = {name: made.sharding.sharding_of(name).kind for name in ("one", "all", "some")}  # type: ignore[union-attr]
    assert (kinds["one"], kinds["all"]) == ("table_wise", "data_parallel")
    assert kinds["some"] in ("table_row_wise", "table_wise")
    with pytest.raises(
        InvalidArgumentError, match=r"'one' is restricted to no_kind, but only .* are possible"
    ):
        automatic.plan_from_request(request(table("one", rows=10, kinds=("no_kind",))))


def test_a_kind_that_divides_columns_can_be_requested() -> None:
    found = automatic.plan_from_request(
        request(
            table("asked", rows=10_000, kinds=("column_wise",)),
            table("free", rows=10_000, kinds=()),
        )
    )
    sharding = found.sharding
    assert sharding is not None
    asked, free = sharding.sharding_of("asked"), sharding.sharding_of("free")
    assert (asked.kind, asked.columns, len(asked.ranks)) == ("column_wise", 2, 2)
    assert free.columns is None


def test_tables_that_do_not_support_replication_are_not_replicated() -> None:
    small = {"rows": 10}
    free = automatic.plan_from_request(request(table("a", **small), table("b", 64, rows=10**6)))
    held = automatic.plan_from_request(
        request(table("a", supports_replication=False, **small), table("b", 64, rows=10**6))
    )
    sharding = held.sharding.sharding_of("a")
    assert sharding is not None
    assert sharding.kind != "data_parallel"
    assert "a" in free.sharding.tables


def test_tables_that_do_not_fit_are_rejected_if_all_sizes_are_given() -> None:
    large = table("large", 128, rows=10**8)
    with pytest.raises(CapacityError, match="are missing on each of 4 ranks"):
        automatic.plan_from_request(request(large))
    # An assumed size does not stop a job.
    made = automatic.plan_from_request(
        request(large, table("user"), table("pinned", rows=9, kinds=("table_wise",)))
    )
    assert {name: made.sharding.sharding_of(name).kind for name in made.sharding.tables} == {  # type: ignore[union-attr]
        "pinned": "table_wise"
    }
    assert made.assumptions[-1].startswith("all tables are row_wise, because the tables do not fit")


def test_memory_defaults_to_a_share_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = {"SC_PHYS_PAGES": 1 << 18, "SC_PAGE_SIZE": 1 << 12}
    monkeypatch.setattr(automatic.os, "sysconf", values.__getitem__)
    assert automatic._memory_share(2) <= GIB * 0.8 / 2
    rows = 10**8
    with pytest.raises(CapacityError):
        automatic.plan_from_request(request(table("user", rows=rows), memory_bytes=None))
    out = table("user", rows=rows, is_in_memory=False)
    assert automatic.plan_from_request(request(out, memory_bytes=None)).sharding.tables


def test_links_and_features_change_the_plan_of_the_same_tables() -> None:
    tables = [table(f"t{each}", 64, rows=1000) for each in range(4)]
    slow = automatic.plan_from_request(request(*tables, ranks_per_node=2, far_gbit=0.01))
    fast = automatic.plan_from_request(
        request(*tables, ranks_per_node=2, near_gbit=900, far_gbit=900)
    )
    assert _step(slow.summary) > 2 * _step(fast.summary)


def _step(summary: str) -> float:
    return float(summary.partition("a step of ")[2].partition(" ms")[0])


def test_owners_pool_if_modules_support_it() -> None:
    def transfer(supports_pooling: bool) -> str:
        long = (FeatureWorkload("sum", 60.0),)
        bags = TableWorkload(
            TableConfig("seen", 64),
            long,
            10**7,
            "adagrad",
            ("table_wise",),
            supports_pooling=supports_pooling,
        )
        made = automatic.plan_from_request(request(bags, memory_bytes=64 * GIB, far_gbit=1))
        sharding = made.sharding.sharding_of("seen")
        assert sharding is not None
        assert sharding.transfer in made.summary
        return sharding.transfer

    assert (transfer(True), transfer(False)) == ("pooled", "rows")


def test_another_plan_than_row_wise_needs_a_larger_gain_than_the_error_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with as_file(files("sparring_plan.planning") / "calibration.yaml") as default:
        known = read_document(default).as_model(Calibration)
    path = tmp_path / "mine.yaml"
    monkeypatch.setenv("SPARRING_CALIBRATION", str(path))
    bags = TableWorkload(
        TableConfig("seen", 64), (FeatureWorkload("sum", 60.0),), 10**7, "adagrad",
        supports_pooling=True,
    )  # fmt: skip
    asked = request(bags, memory_bytes=64 * GIB, far_gbit=1)

    def made(error: float) -> tuple[str, str, str]:
        steps = known.exchange.steps.model_copy(update={"error": error})
        exchange = known.exchange.model_copy(update={"steps": steps})
        write_calibration(known.model_copy(update={"exchange": exchange}), path)
        found = automatic.plan_from_request(asked)
        sharding = found.sharding.sharding_of("seen")
        assert sharding is not None
        return sharding.kind, sharding.transfer, found.summary

    *trusted, summary = made(error=0.0)
    assert trusted != ["row_wise", "rows"]
    assert "because no other plan" not in summary
    kind, transfer, summary = made(error=9.0)
    assert (kind, transfer) == ("row_wise", "rows")
    assert (
        "row_wise, because no other plan has a step that is predicted to be shorter by more than 90%"
    ) in summary


def test_a_calibration_that_cannot_be_used_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARRING_CALIBRATION", str(tmp_path / "none.yaml"))
    with pytest.raises(
        ConfigError, match=r"there is no file .*; create one with sparring plan cal"
    ):
        automatic.plan_from_request(request(table("user", rows=100)))
    path = tmp_path / "redis.yaml"
    path.write_text(
        "{name: redis, storages: {redis: {memory: remote, find_ns: 1, find_ns_per_byte: 1, "
        "update_ns: 1, update_ns_per_element: 1, key_bytes: 8, overhead: 1}}, exchange: {memory: host, "
        "add_ns: 1, pool_ns_per_byte: 1, chunk_rows: 9, chunks_in_flight: 2}}"
    )
    monkeypatch.setenv("SPARRING_CALIBRATION", str(path))
    with pytest.raises(ConfigError, match="contains no costs of hkv, only of redis; install"):
        automatic.plan_from_request(request(table("user", rows=100)))


def test_the_same_request_gives_the_same_plan() -> None:
    tables = [table(f"t{each}", 8 * each + 8, rows=10 ** (each % 6 + 1)) for each in range(9)]
    first, again = (automatic.plan_from_request(request(*tables)) for _ in range(2))
    assert first == again


def test_columns_are_divided_only_if_a_table_allows_it() -> None:
    """Wide rows, large bags and a slow link: blocks of columns send the fewest bytes."""

    def kind_of(**known: Any) -> str:
        wide, feature = TableConfig("wide", 512), FeatureWorkload("sum", 20.0)
        bag = TableWorkload(wide, (feature,), 400_000, "sgd", supports_pooling=True, **known)
        made = automatic.plan_from_request(request(bag, far_gbit=1.0))
        sharding = made.sharding.sharding_of("wide")
        assert sharding is not None
        return sharding.kind

    assert kind_of(supports_column_split=True, supports_replication=False) == "column_wise"
    assert kind_of(supports_replication=False) == "row_wise"
