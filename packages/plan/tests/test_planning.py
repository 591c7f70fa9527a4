"""A plan is valid, as good as proven, and reproducible; invalid files are rejected by line.

The file is long because all tests change the same inputs and plans.
"""

from __future__ import annotations

import re
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import StepContainer, StorageChoice, make_plugin_manager
from sparring.contracts import ShardingPlan, TableConfig, TableSharding
from sparring.errors import CapacityError, ConfigError, InvalidArgumentError
from sparring_cli import read_document
from sparring_cli.application import main
from sparring_plan.planning.costs.costs import RESOURCES, Span, compute_option_costs
from sparring_plan.planning.costs.storage_bytes import estimate_bytes
from sparring_plan.planning.costs.unique_keys import unique_keys
from sparring_plan.planning.inputs import KINDS, WHOLE_ROW_KINDS, Calibration, PlanInputs
from sparring_plan.planning.plan import Plan, read_plan
from sparring_plan.planning.planner import make_plan
from sparring_plan.planning.suggestions import suggest_changes

from .brute_force import random_inputs

INPUTS = """
topology:
  nodes: 2
  ranks_per_node: 2
  memory: {host: 2 GiB}
  far: {gbit: 10, latency_us: 20}
  price_per_hour: 12
samples: 512
kinds: [row_wise, data_parallel, table_wise, column_wise]
transfers: [rows, pooled]
tables:
  users: {dim: 32, method: adam, features: {user: {ids: 1}}, rows: 1000000}
  films:
    dim: 32
    method: adagrad
    features: {seen: {ids: 20}, film: {ids: 1}}
    growth: {rows: 100000, per_day: 5000, horizon_days: 90, admission: 0.5}
  country: {dim: 16, method: rowwise_adagrad, features: {country: {ids: 1}}, rows: 200}
"""


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    with as_file(files("sparring_plan.planning") / "calibration.yaml") as path:
        return read_document(path).as_model(Calibration)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "inputs.yaml"
    path.write_text(INPUTS)
    return path


def test_memory_is_a_limit_that_balance_does_not_cross(calibration: Calibration) -> None:
    # By load, the two large tables should share a rank, and the busy one should have the other.
    large = {"dim": 64, "rows": 1_000_000, "features": {"f": {"ids": 1}}}
    busy = {"dim": 64, "rows": 50_000, "features": {"f": {"ids": 60}}, "skew": 0}
    topology = {"nodes": 1, "ranks_per_node": 2, "memory": {"host": "500 MiB"}}
    value = {"topology": topology, "samples": 500, "kinds": ["table_wise"]}
    tables = {"a": large, "b": large, "busy": busy}
    plan = make_plan(PlanInputs.model_validate(value | {"tables": tables}), calibration)
    assert plan.tables["a"].ranks != plan.tables["b"].ranks
    topology["memory"] = {"host": "2 GiB"}
    plan = make_plan(PlanInputs.model_validate(value | {"tables": tables}), calibration)
    assert plan.tables["a"].ranks == plan.tables["b"].ranks


@pytest.mark.parametrize("skew", [0.0, 0.8, 1.0, 1.3])
@pytest.mark.parametrize("num_rows", [1, 20, 5000, 100_000])
def test_unique_keys_equal_the_exact_sum(skew: float, num_rows: int) -> None:
    weights = np.arange(1, num_rows + 1, dtype=np.float64) ** -skew
    share = weights / weights.sum()
    for num_ids in (1.0, 100.0, 50_000.0):
        exact = np.sum(1 - (1 - share) ** num_ids)
        found = unique_keys(np.array([num_rows * 1.0]), np.array([skew]), np.array([num_ids]))
        assert found[0] == pytest.approx(exact, rel=0.01)


def test_costs_equal_a_manual_computation(calibration: Calibration) -> None:
    # One id per sample, of so many rows that none repeats: u = 1000 keys of 16 float32.
    table = {"dim": 16, "rows": 4 * 10**9, "skew": 0, "features": {"f": {"ids": 1}}}
    topology = {
        "nodes": 4, "ranks_per_node": 1, "memory": {"host": "1 TiB"}, "message_us": 10,
        "far": {"gbit": 8, "latency_us": 20},
    }  # fmt: skip
    value = {"topology": topology, "samples": 1000, "tables": {"t": table}}
    inputs = PlanInputs.model_validate(
        value | {"kinds": ["row_wise", "table_wise"], "transfers": ["rows", "pooled"]}
    )
    options = compute_option_costs(inputs, calibration)
    costs = {
        (options.shape_of(each).kind, options.shape_of(each).transfer): each
        for each in options.of(0)
    }
    out, back = RESOURCES.index("far_out"), RESOURCES.index("far_in")
    keys, rows, gradients = 8.0, 16 * 4 + 1.0, 8 + 16 * 4.0
    each = costs["row_wise", "rows"]
    # A rank requests three quarters of its keys, and answers as many requests of others.
    assert options.base[each, out] == pytest.approx(750 * (keys + rows + gradients) / 1e9)
    assert options.base[each, back] == options.base[each, out]
    each = costs["table_wise", "pooled"]
    assert options.shard[each, out] == pytest.approx(3 * 1000 * 16 * 4 / 1e9)
    # Ids, the length of each bag, and its gradient.
    assert options.shard[each, back] == pytest.approx(3 * 1000 * (8 + 4 + 16 * 4) / 1e9)
    # 12 ends of messages with each of three ranks, and 6 messages one after the other.
    driving = calibration.exchange.steps.seconds(1) + 36 * 10e-6 + 6 * 20e-6
    assert options.fixed[RESOURCES.index("messages")] == pytest.approx(driving)
    # An id is deduplicated, a key routed and placed; finds, sums and updates are for all requests.
    steps, hkv = calibration.exchange.steps, calibration.storages["hkv"]
    compute, row = RESOURCES.index("compute"), 16 * 4.0
    pooling = calibration.exchange.pool_ns_per_byte * row * 1e-9
    asking = 1000 * (pooling + steps.ids.seconds(row) + steps.rows.seconds(row))
    each = costs["table_wise", "rows"]
    assert options.base[each, compute] == pytest.approx(asking)
    find, update = hkv.find_ns + hkv.find_ns_per_byte * row, hkv.update_ns + 16 * 0.5
    owning = 4000 * (find + update + calibration.exchange.add_ns) * 1e-9
    assert options.shard[each, compute] == pytest.approx(owning)
    # Half of a part of a bag belongs to the requesting rank, half to the owner.
    each = costs["table_wise", "pooled"]
    each_id = steps.bags.seconds(row) + steps.bag_ids.seconds(row)
    half = (1000 * each_id + steps.pooled_us * 1e-6) / 2
    assert options.base[each, compute] == pytest.approx(half + steps.separate_us * 1e-6)
    assert options.shard[each, compute] == pytest.approx(owning + 4 * (half + 1000 * pooling))
    held = estimate_bytes("hkv", TableConfig("t", 16), 4 * 10**9, make_plugin_manager())
    assert held is not None
    assert options.shard_memory[each, 0] == pytest.approx(held["host"], rel=0.01)


def test_pooled_bytes_count_the_bags_that_use_an_owner(calibration: Calibration) -> None:
    # 100 bags of 20 ids: an owner of half of the rows is in nearly all of them, an owner of 1 / 64
    # is not.
    table = {"dim": 16, "rows": 10**9, "skew": 0, "features": {"f": {"ids": 20}}}
    topology = {
        "nodes": 64, "ranks_per_node": 2, "memory": {"host": "1 TiB"}, "near": {"gbit": 8},
        "far": {"gbit": 8},
    }  # fmt: skip
    value = {"topology": topology, "samples": 100, "tables": {"t": table}}
    options = compute_option_costs(PlanInputs.model_validate(value), calibration)
    back = RESOURCES.index("far_out")
    told = {}
    for each in options.of(0):
        shape = options.shape_of(each)
        if shape.transfer == "pooled" and shape.span is not Span.ALL:
            # 126 of the 127 requesting ranks are on other nodes, whose bytes share the node's link.
            told[shape.num_shards] = options.shard[each, back] / (126 * 2 * 16 * 4 / 1e9)
    assert told.keys() == {1, 2, 4, 8, 16, 32, 64}
    for owners, bags in told.items():
        assert bags == pytest.approx(100 * (1 - (1 - 1 / owners) ** 20), rel=1e-9)
        assert bags <= 100 * min(20, owners) / owners * (1 + 1e-9)


def test_column_blocks_are_offered_in_storages_that_training_allows(
    calibration: Calibration,
) -> None:
    value = random_inputs(3).model_dump()
    value["kinds"] = list(KINDS)
    value["topology"]["memory"]["disk"] = 1 << 40
    options = compute_option_costs(PlanInputs.model_validate(value), calibration)
    assert {options.storages[each] for each in options.storage} == {"hkv", "rocksdb"}
    for option in range(len(options)):
        shape = options.shape_of(option)
        if shape.num_columns > 1:
            assert options.storages[options.storage[option]] == "hkv"


def test_same_input_same_bytes(calibration: Calibration) -> None:
    for seed in (4, 6):
        texts = {make_plan(random_inputs(seed), calibration).to_yaml() for _ in range(3)}
        assert len(texts) == 1


def test_all_kinds_and_both_transfers_are_planned_unless_fewer_are_requested(
    calibration: Calibration,
) -> None:
    value = random_inputs(3).model_dump(exclude={"kinds", "transfers"})
    options = compute_option_costs(PlanInputs.model_validate(value), calibration)
    assert {shape.kind for shape in options.shapes} >= set(WHOLE_ROW_KINDS) | {"column_wise"}
    assert {shape.transfer for shape in options.shapes} == {"rows", "pooled"}
    fewer = value | {"kinds": ["row_wise"], "transfers": ["rows"]}
    options = compute_option_costs(PlanInputs.model_validate(fewer), calibration)
    assert {(shape.kind, shape.transfer) for shape in options.shapes} == {("row_wise", "rows")}


@pytest.mark.parametrize("coupled", [{"method": "rowwise_adagrad"}, {"dtype": "int8"}])
def test_coupled_columns_and_sequences_have_fewer_options(
    calibration: Calibration, coupled: dict[str, str]
) -> None:
    value = random_inputs(3).model_dump()
    value["kinds"] = list(KINDS)
    value["tables"]["t0"] |= {"method": "sgd", "dim": 64} | coupled
    value["tables"]["t1"] |= {"method": "adam", "dim": 64}
    value["tables"]["t1"]["features"]["f"]["pooling"] = "none"
    options = compute_option_costs(PlanInputs.model_validate(value), calibration)
    assert {options.shape_of(each).num_columns for each in options.of(0)} == {1}
    assert max(options.shape_of(each).num_columns for each in options.of(1)) > 1
    assert {options.shape_of(each).transfer for each in options.of(1)} == {"rows"}


def test_tables_that_do_not_fit_are_rejected_with_solutions(calibration: Calibration) -> None:
    value = random_inputs(3).model_dump()
    table = {"dim": 64, "method": "adam", "rows": 3_000_000, "features": {"f": {"ids": 2}}}
    value["tables"], value["kinds"] = {"large": table}, ["row_wise"]
    value["topology"]["memory"]["host"] = 400 << 20
    with pytest.raises(CapacityError) as refused:
        make_plan(PlanInputs.model_validate(value), calibration)
    text = str(refused.value)
    assert "MiB of host" in text
    assert "missing on each of 4 ranks" in text
    for way in ("- rows of bfloat16 and rowwise_adagrad", "- rowwise_adagrad for all", "nodes in"):
        assert way in text
    # Another kind of memory, which these tables may not use, does not help.
    value["topology"]["memory"]["disk"], value["storages"] = 1 << 40, ["hkv"]
    with pytest.raises(CapacityError, match=r"in host memory .* are missing on each of 4 ranks"):
        make_plan(PlanInputs.model_validate(value), calibration)


@pytest.mark.parametrize("rows", [3_000_000, 20_000_000])
def test_suggested_solutions_work_at_the_stated_cost(rows: int, calibration: Calibration) -> None:
    value = random_inputs(3).model_dump()
    table = {"dim": 64, "method": "adam", "rows": rows, "features": {"f": {"ids": 2}}}
    value["tables"], value["kinds"] = {"large": table}, ["row_wise"]
    value["topology"]["memory"]["host"] = 400 << 20
    value["topology"]["price_per_hour"] = 3
    inputs = PlanInputs.model_validate(value)
    ways = suggest_changes(inputs, calibration)
    assert ways
    paid = []
    for way in ways:
        changed = inputs.model_dump()
        sentence, _, costs = way.partition(": a step of ")
        if "bfloat16" in sentence:
            changed["tables"]["large"]["dtype"] = "bfloat16"
        if "rowwise_adagrad" in sentence:
            changed["tables"]["large"] |= {"method": "rowwise_adagrad", "state_elements": None}
        if "nodes" in sentence:
            changed["topology"]["nodes"] = int(sentence.split()[0])
        plan = make_plan(PlanInputs.model_validate(changed), calibration)
        assert costs == f"{plan.step_ms:.3g} ms, {plan.price_per_hour:g} per hour"
        paid.append(plan.price_per_hour)
        if "nodes" in sentence:
            changed["topology"]["nodes"] -= 1
            with pytest.raises(CapacityError):
                make_plan(PlanInputs.model_validate(changed), calibration)
    assert paid == sorted(paid)


def test_features_that_owners_do_not_pool_are_named(calibration: Calibration) -> None:
    value = roomy()
    value["tables"]["t0"]["features"]["clicks"] = {"ids": 3, "pooling": "max"}
    value["tables"]["t1"]["features"]["f"]["pooling"] = "none"
    plan = make_plan(PlanInputs.model_validate(value), calibration)
    assert "rows are transferred, because clicks is pooled by max" in plan.tables["t0"].because
    assert "rows are transferred, because f is not pooled" in plan.tables["t1"].because
    assert {plan.tables[name].transfer for name in ("t0", "t1")} == {"rows"}


def test_a_plan_survives_writing_and_reading(
    written: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = written.with_name("first.yaml"), written.with_name("second.yaml")
    assert main(["plan", "make", str(written), "--output", str(first)]) == 0
    assert "3 tables on 4 ranks" in capfd.readouterr().err
    assert main(["plan", "make", str(written)]) == 0
    assert capfd.readouterr().out == first.read_text()  # no output of the solver either
    assert read_document(first).as_model(Plan).to_yaml() == first.read_text()
    assert main(["plan", "check", str(first), str(written)]) == 0
    told = capfd.readouterr().out
    assert "fits" in told
    assert "the file contains" not in told
    assert "have changed" not in told
    assert main(["plan", "explain", str(first), str(written), "films"]) == 0
    told = capfd.readouterr().out
    assert "*" in told
    assert "table_wise" in told
    assert "pooled" in told
    assert main(["plan", "diff", str(first), str(first)]) == 0
    assert capfd.readouterr().out.startswith("0 tables differ, 0.0 MiB move")
    # An edited plan is checked, costed and compared.
    lines = first.read_text().splitlines()
    at = lines.index("  users:")
    lines[at + 1 : at + 6] = [
        "    kind: table_wise", "    ranks: [2]", "    columns: 1", "    transfer: rows",
        "    storage: hkv",
    ]  # fmt: skip
    second.write_text("\n".join(lines) + "\n")
    assert main(["plan", "check", str(second), str(written)]) == 0
    assert "the file contains" in capfd.readouterr().out
    assert main(["plan", "diff", str(first), str(second)]) == 0
    told = capfd.readouterr().out
    assert "users: " in told
    assert "-> table_wise on rank 2" in told
    assert "1 table differs" in told
    assert f"{second} was edited" in told


def test_moved_bytes_are_those_that_new_owners_do_not_have(written: Path) -> None:
    from sparring_plan.planning.diff import diff_plans
    from sparring_plan.planning.plan import TablePlan

    def plan(kind: str, ranks: Any, columns: int = 1) -> Plan:
        table = TablePlan(
            kind=kind, ranks=ranks, columns=columns, transfer="rows", storage="hkv", rows=1,
            table_bytes=1000, bytes=0, ms=0,
        )  # fmt: skip
        return Plan(
            version=1, inputs="", calibration="", solver="", ranks=4, step_ms=0, bound_ms=0, gap=0,
            price_per_hour=0, price_per_billion_samples=0, tables={"t": table},
        )  # fmt: skip

    rows, whole = plan("row_wise", "all"), plan("table_wise", [0])
    blocks, copies = plan("column_wise", [0, 1], 2), plan("data_parallel", "all")
    for before, after, moved in (
        (rows, whole, 750), (whole, rows, 750), (whole, blocks, 500), (blocks, whole, 500),
        (rows, copies, 3000), (copies, blocks, 0), (rows, blocks, 750),
    ):  # fmt: skip
        (change,) = diff_plans(before, after)
        assert change.moved_bytes == moved


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "samples: 512",
            "smaples: 512",
            "inputs.yaml:8:1: unknown key 'smaples' (did you mean samples?",
        ),
        (
            "{dim: 32, method: adam",
            "{dmi: 32, method: adam",
            ":12:11: unknown key 'dmi' in tables.users (did you mean dim?)",
        ),
        ("host: 2 GiB", "host: 2 GX", "topology.memory.host: expected bytes"),
        (
            "rows: 1000000}",
            "rows: -5}",
            "tables.users.rows is wrong (found -5, expected a number above",
        ),
        (", rows: 1000000}", "}", ":12:10: tables.users: found neither of rows and growth"),
        ("method: adam,", "method: adamx,", "did you mean 'adam'?"),
        ("table_wise,", "table_wide,", "did you mean table_wise?"),
        (
            "  nodes: 2",
            "  nodes: 2\n  nodes: 3",
            ":4:3: YAML: duplicate key 'nodes', first at ",
        ),
        ("samples: 512", "samples: [512", "YAML: "),
        (
            "samples: 512",
            "samples: 512\ncalibration: no.yaml",
            ":9:1: calibration: there is no file",
        ),
        ("samples: 512", "samples: &all [*all]", "YAML: "),
        ("samples: 512", "samples: !!python/object:os.system 1", "tags are not allowed; remove it"),
        ("{host: 2 GiB}", "{gpu: 2 GiB}", ":5:3: no storage of the calibration default"),
    ],
)
def test_invalid_inputs_are_rejected_by_line(
    old: str, new: str, told: str, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert INPUTS.count(old) == 1
    written.write_text(INPUTS.replace(old, new))
    assert main(["plan", "make", str(written)]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("    kind: ", "    kind: un", "plan.yaml:15:5: table country: expected kind "),
        ("ranks: 4", "ranks: 8", "plan.yaml:5:1: the plan is for 8 ranks, but the topology has 4"),
        (
            "  country:",
            "  land:",
            "plan.yaml:14:3: the plan does not contain country and contains land",
        ),
        (
            "    columns: 1",
            "    columns: 3",
            "plan.yaml:17:5: table country: expected columns 1 with kind row_wise, found 3",
        ),
        ("    storage: ", "    storage: un", "plan.yaml:19:5: table country: expected storage "),
        ("version: 1", "version: 2", ":1:10: version is wrong (found 2, expected 1)"),
    ],
)
def test_plans_that_do_not_match_are_rejected_by_line(
    old: str, new: str, told: str, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = written.with_name("plan.yaml")
    assert main(["plan", "make", str(written), "--output", str(plan)]) == 0
    text = plan.read_text()
    assert old in text
    plan.write_text(text.replace(old, new, 1))
    assert main(["plan", "check", str(plan), str(written)]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"method": "lamb"}, "table t: column_wise would split its columns, but lamb couples"),
        ({"dim": 63}, "but its 63 columns do not divide into equal blocks of at least 8"),
        ({"storages": ["rocksdb"]}, "but rocksdb does not support column blocks"),
        ({"features": {"f": {"ids": 1, "pooling": "none"}}}, "add rows to transfers"),
        ({"ranks": 1}, "kinds: column_wise is not possible with nodes 1, ranks_per_node 1"),
    ],
)
def test_tables_without_an_option_are_rejected_with_the_reason(
    changed: dict[str, Any], told: str, calibration: Calibration
) -> None:
    ranks = changed.pop("ranks", 4)
    table = {"dim": 64, "method": "adam", "features": {"f": {"ids": 1}}, "rows": 1000} | changed
    memory = {"host": 2**30, "disk": 2**40}
    topology = {"nodes": 1, "ranks_per_node": ranks, "memory": memory}
    inputs = PlanInputs.model_validate(
        {"topology": topology, "samples": 8, "tables": {"t": table}, "kinds": ["column_wise"],
         "transfers": ["pooled"]}
    )  # fmt: skip
    with pytest.raises(ConfigError, match=re.escape(told)):
        make_plan(inputs, calibration)


def test_a_method_that_couples_columns_is_not_suggested_for_kinds_that_divide_them(
    calibration: Calibration,
) -> None:
    topology = {"nodes": 1, "ranks_per_node": 4, "memory": {"host": 2**30}}
    table = {"dim": 64, "method": "adam", "features": {"f": {"ids": 1}}, "rows": 16_000_000}
    inputs = PlanInputs.model_validate(
        {"topology": topology, "samples": 8, "tables": {"t": table}, "kinds": ["column_wise"]}
    )
    with pytest.raises(CapacityError) as caught:
        make_plan(inputs, calibration)
    assert "are missing on each of 4 ranks" in str(caught.value)
    assert "rowwise_adagrad" not in str(caught.value)


def test_a_rank_without_enough_memory_is_named(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = written.with_name("plan.yaml")
    assert main(["plan", "make", str(written), "--output", str(plan)]) == 0
    lines = plan.read_text().splitlines()
    at = lines.index("  users:")
    lines[at + 1 : at + 5] = ["    kind: table_wise", "    ranks: [2]", "    columns: 1",
                              "    transfer: rows"]  # fmt: skip
    plan.write_text("\n".join(lines))
    written.write_text(INPUTS.replace("host: 2 GiB", "host: 300 MiB"))
    assert main(["plan", "check", str(plan), str(written)]) == 1
    told = capsys.readouterr().err
    assert f"plan.yaml:{at + 1}:3: the plan does not fit: rank 2 needs" in told
    assert "more host memory; its largest shard is of users" in told


def test_the_file_on_the_page_can_be_planned(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs/how-to/plan-a-sharding.md"
    path, plan = tmp_path / "inputs.yaml", tmp_path / "plan.yaml"
    path.write_text(page.read_text().split("```yaml\n")[1].split("```")[0])
    assert main(["plan", "make", str(path), "--output", str(plan)]) == 0
    assert read_document(plan).as_model(Plan).tables.keys() == {"country", "film", "user"}


def roomy() -> dict[str, Any]:
    value = random_inputs(3).model_dump()
    value["topology"]["memory"] = {"host": 1 << 34}
    return value


def test_training_applies_a_plan(calibration: Calibration, tmp_path: Path) -> None:
    value = roomy() | {"kinds": ["table_wise"], "transfers": ["rows"]}
    made = make_plan(PlanInputs.model_validate(value), calibration)
    path = tmp_path / "plan.yaml"
    path.write_text(made.to_yaml())
    with pytest.raises(InvalidArgumentError, match=r"plan.yaml:5:1: .* ranks, found 99"):
        read_plan(path).sharding(99)
    sharding = read_plan(path).sharding(made.ranks)
    for name, each in made.tables.items():
        expected = TableSharding("table_wise", tuple(each.ranks))
        assert sharding.sharding_of(name) == expected
    path.write_text(made.to_yaml().replace("transfer: rows", "transfer: pooled"))
    pooled = read_plan(path).sharding(made.ranks)
    for name, each in made.tables.items():
        expected = TableSharding("table_wise", tuple(each.ranks), "pooled")
        assert pooled.sharding_of(name) == expected
    path.write_text(made.to_yaml().replace("transfer: rows", "transfer: bags", 1))
    with pytest.raises(ConfigError, match=r"transfer.*'rows' or 'pooled'"):
        read_plan(path)
    alone = {name: TableSharding("table_wise", (0,)) for name in made.tables}
    with StepContainer(plan=ShardingPlan(alone)) as container:
        container.declare(TableConfig("t0", 4), StorageChoice("memory"))
        assert container.layout("t0").kind == "table_wise"


def test_training_applies_column_blocks_of_a_plan(calibration: Calibration, tmp_path: Path) -> None:
    made = make_plan(PlanInputs.model_validate(roomy()), calibration).model_dump(exclude_none=True)
    path, ranks = tmp_path / "plan.yaml", [1, 0]
    made["tables"]["t0"] |= {
        "kind": "column_wise",
        "ranks": ranks,
        "columns": 2,
        "transfer": "rows",
    }
    path.write_text(Plan.model_validate(made).to_yaml())
    sharding = read_plan(path).sharding(made["ranks"]).sharding_of("t0")
    assert sharding == TableSharding("column_wise", (1, 0), columns=2)
    made["tables"]["t0"]["columns"] = 3
    path.write_text(Plan.model_validate(made).to_yaml())
    with pytest.raises(
        ConfigError, match=r"plan.yaml:\d+:.*2 ranks, expected a multiple of 3 blocks"
    ):
        read_plan(path).sharding(made["ranks"])


@pytest.mark.parametrize(
    ("key", "value", "advice"),
    [
        ("kind", "tower_wise", "choose one of column_wise, data_parallel"),
        ("columns", 2, "row_wise does not split columns, found 2 blocks; set columns to 1"),
    ],
)
def test_a_plan_that_training_does_not_support_is_rejected_at_its_source(
    calibration: Calibration, tmp_path: Path, key: str, value: Any, advice: str
) -> None:
    inputs = PlanInputs.model_validate(roomy())
    made = make_plan(inputs, calibration).model_dump(exclude_none=True)
    made["tables"]["t0"] |= {"kind": "row_wise", "columns": 1, "transfer": "rows", key: value}
    path = tmp_path / "plan.yaml"
    path.write_text(Plan.model_validate(made).to_yaml())
    line = next(
        number
        for number, text in enumerate(path.read_text().splitlines(), 1)
        if text.strip() == f"{key}: {value}"
    )
    with pytest.raises(ConfigError, match=advice) as error:
        read_plan(path).sharding(made["ranks"])
    assert f"plan.yaml:{line}:" in str(error.value)
