"""A plan is legal, no worse than proven, the same each time; bad files are refused by line."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import as_file, files
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import estimate_bytes, read_document
from sparring.adapter import StepContainer, StorageChoice
from sparring.cli.application import main
from sparring.contracts import ShardingPlan, TableConfig, TableSharding
from sparring.errors import CapacityError, ConfigError, InvalidArgumentError
from sparring_plan.planning import bound as bound_module
from sparring_plan.planning.bound import aggregate_bound, highs, linear_bound
from sparring_plan.planning.costs import RESOURCES, Ints, Options, Span, option_costs
from sparring_plan.planning.exact import prove
from sparring_plan.planning.inputs import DEFAULT_KINDS, KINDS, Calibration, PlanInputs
from sparring_plan.planning.placement import place_all
from sparring_plan.planning.plan import Plan, read_plan
from sparring_plan.planning.planner import make_plan
from sparring_plan.planning.search import search
from sparring_plan.planning.unique_keys import unique_keys

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


def random_inputs(seed: int) -> PlanInputs:
    random = np.random.default_rng(seed)
    nodes, within = [(1, 2), (1, 3), (2, 1), (2, 2)][seed % 4]
    tables: dict[str, Any] = {}
    largest = 0
    for index in range(2 if nodes * within == 4 else 3):
        rows, dim = int(10 ** random.uniform(3, 5.5)), int(random.choice([8, 16, 32]))
        method = str(random.choice(["sgd", "adam", "rowwise_adagrad"]))
        ids = float(random.integers(1, 40))
        tables[f"t{index}"] = {
            "dim": dim, "method": method, "rows": rows, "features": {"f": {"ids": ids}},
            "skew": float(random.uniform(0, 1.3)),
        }  # fmt: skip
        largest = max(largest, rows * (8 + 12 * dim))
    # From too little for the largest table on one rank to enough for all.
    memory = (8 << 20) + int(largest * random.uniform(0.7, 2.5))
    topology = {
        "nodes": nodes, "ranks_per_node": within, "memory": {"host": memory},
        "near": {"gbit": float(random.choice([4, 40]))}, "far": {"gbit": 10},
        "message_us": float(random.choice([0, 20])),
    }  # fmt: skip
    kinds = sorted(random.choice(KINDS, 4, replace=False)) if seed % 3 else list(KINDS)
    value = {"topology": topology, "samples": 256, "tables": tables, "kinds": kinds}
    return PlanInputs.model_validate(value | {"transfers": ["rows", "pooled"]})


def placements_of(options: Options, option: int) -> Iterator[Ints]:
    """All sets of ranks that the shards of an option may be on."""
    shape, within = options.shape_of(option), options.ranks_per_node
    ranks = np.arange(options.num_ranks)
    nodes = ranks.reshape(-1, within)
    if shape.span is Span.ALL:
        yield ranks[:0]
    elif shape.span is Span.RANKS:
        yield from map(np.asarray, combinations(ranks, shape.num_places))
    elif shape.span is Span.NODES:
        for chosen in combinations(range(len(nodes)), shape.num_places):
            yield nodes[list(chosen)].ravel()
    else:
        for node in nodes:
            yield from map(np.asarray, combinations(node, shape.num_places))


def best_by_brute_force(options: Options) -> float | None:
    """The shortest step of all options of all tables on all sets of ranks; None if none fits."""
    choices = [
        [
            (option, ranks)
            for option in options.of(table)
            for ranks in placements_of(options, option)
        ]
        for table in range(len(options.table_names))
    ]
    each: list[list[tuple[Any, Any]]] = []
    for of_table in choices:
        costs = []
        for option, ranks in of_table:
            load = np.tile(options.base[option], (options.num_ranks, 1))
            memory = np.tile(options.base_memory[option], (options.num_ranks, 1))
            load[ranks] += options.shard[option]
            memory[ranks] += options.shard_memory[option]
            costs.append((load, memory))
        each.append(costs)
    last_load = np.asarray([load for load, _ in each[-1]])
    last_memory = np.asarray([memory for _, memory in each[-1]])
    best = np.inf
    for others in product(*each[:-1]):
        load = last_load + sum((other[0] for other in others), options.fixed)
        memory = last_memory + sum(other[1] for other in others)
        fits = (memory <= options.capacity).all(axis=(1, 2))
        if fits.any():
            best = min(best, float(load[fits].max(axis=(1, 2)).min()))
    return best if np.isfinite(best) else None


@pytest.mark.parametrize("with_highs", [False, True], ids=["numpy", "highs"])
def test_bound_best_and_plan_stand_in_this_order(
    with_highs: bool, calibration: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    if with_highs and highs() is None:
        pytest.skip("needs the extra highspy")
    if not with_highs:
        monkeypatch.setattr(bound_module, "highs", lambda: None)
        monkeypatch.setattr("sparring_plan.planning.exact.highs", lambda: None)
    ratios = []
    for seed in range(24):
        options = option_costs(random_inputs(seed), calibration)
        best, found = best_by_brute_force(options), search(options)
        if best is None:
            assert found is None, f"case {seed}: nothing fits"
            continue
        assert found is not None, f"case {seed}: something fits"
        assert found.placement.fits
        assert found.placement.is_complete
        assert max(found.bound.seconds, found.bound_seconds) <= best * (1 + 1e-9), f"case {seed}"
        assert best <= found.placement.seconds * (1 + 1e-9), f"case {seed}"
        ratios.append(found.placement.seconds / best)
    assert len(ratios) >= 20
    assert np.median(ratios) < 1.01
    assert max(ratios) < (1.02 if with_highs else 1.25)


def test_linear_bound_is_no_lower_than_that_of_numpy(calibration: Calibration) -> None:
    if highs() is None:
        pytest.skip("needs the extra highspy")
    for seed in range(6):
        options = option_costs(random_inputs(seed), calibration)
        lagrangian = aggregate_bound(options)
        linear = linear_bound(options, lagrangian)
        assert linear is None or linear.seconds >= lagrangian.seconds


def test_integer_programme_finds_the_best_and_bounds_it(calibration: Calibration) -> None:
    if highs() is None:
        pytest.skip("needs the extra highspy")
    for seed in (1, 2, 6, 9, 10):
        options = option_costs(random_inputs(seed), calibration)
        best = best_by_brute_force(options)
        start = place_all(options, options.start[:-1])
        assert best is not None
        assert start is not None
        proof = prove(options, start, np.arange(len(options)))
        assert proof is not None
        found, bound = proof
        assert bound <= best * (1 + 1e-9)
        assert found.seconds == pytest.approx(best, rel=2e-3)
        assert bound == pytest.approx(best, rel=2e-3)


def test_memory_is_a_limit_that_balance_does_not_cross(calibration: Calibration) -> None:
    # By load the two large tables should share a rank, and the busy one have the other.
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
def test_unique_keys_are_those_of_the_exact_sum(skew: float, num_rows: int) -> None:
    weights = np.arange(1, num_rows + 1, dtype=np.float64) ** -skew
    share = weights / weights.sum()
    for num_ids in (1.0, 100.0, 50_000.0):
        exact = np.sum(1 - (1 - share) ** num_ids)
        found = unique_keys(np.array([num_rows * 1.0]), np.array([skew]), np.array([num_ids]))
        assert found[0] == pytest.approx(exact, rel=0.01)


def test_costs_are_those_by_hand(calibration: Calibration) -> None:
    # One id a sample of so many rows that none repeats: u = 1000 keys of 16 float32.
    table = {"dim": 16, "rows": 4 * 10**9, "skew": 0, "features": {"f": {"ids": 1}}}
    topology = {
        "nodes": 4, "ranks_per_node": 1, "memory": {"host": "1 TiB"}, "message_us": 10,
        "far": {"gbit": 8, "latency_us": 20},
    }  # fmt: skip
    value = {"topology": topology, "samples": 1000, "tables": {"t": table}}
    inputs = PlanInputs.model_validate(
        value | {"kinds": ["row_wise", "table_wise"], "transfers": ["rows", "pooled"]}
    )
    options = option_costs(inputs, calibration)
    costs = {
        (options.shape_of(each).kind, options.shape_of(each).transfer): each
        for each in options.of(0)
    }
    out, back = RESOURCES.index("far_out"), RESOURCES.index("far_in")
    keys, rows, gradients = 8.0, 16 * 4 + 1.0, 8 + 16 * 4.0
    each = costs["row_wise", "rows"]
    # A rank asks for three quarters of its keys, and answers as many of others.
    assert options.base[each, out] == pytest.approx(750 * (keys + rows + gradients) / 1e9)
    assert options.base[each, back] == options.base[each, out]
    each = costs["table_wise", "pooled"]
    assert options.shard[each, out] == pytest.approx(3 * 1000 * 16 * 4 / 1e9)
    assert options.shard[each, back] == pytest.approx(3 * 1000 * (8 + 16 * 4) / 1e9)
    # 12 ends of messages with each of three ranks, and 6 messages one after the other.
    assert options.fixed[RESOURCES.index("messages")] == pytest.approx(36 * 10e-6 + 6 * 20e-6)
    held = estimate_bytes("hkv", TableConfig("t", 16), 4 * 10**9)
    assert held is not None
    assert options.shard_memory[each, 0] == pytest.approx(held["host"], rel=0.01)


def test_same_input_same_bytes(calibration: Calibration) -> None:
    for seed in (4, 6):
        texts = {make_plan(random_inputs(seed), calibration).to_yaml() for _ in range(3)}
        assert len(texts) == 1


def test_only_kinds_of_the_runtime_are_planned_unless_asked(calibration: Calibration) -> None:
    value = random_inputs(3).model_dump(exclude={"kinds", "transfers"})
    inputs = PlanInputs.model_validate(value)
    options = option_costs(inputs, calibration)
    assert {shape.kind for shape in options.shapes} == set(DEFAULT_KINDS)
    assert {shape.transfer for shape in options.shapes} == {"rows"}


def test_coupled_columns_and_sequences_have_fewer_options(calibration: Calibration) -> None:
    value = random_inputs(3).model_dump()
    value["kinds"] = list(KINDS)
    value["tables"]["t0"] |= {"method": "rowwise_adagrad", "dim": 64}
    value["tables"]["t1"] |= {"method": "adam", "dim": 64}
    value["tables"]["t1"]["features"]["f"]["pooling"] = "none"
    options = option_costs(PlanInputs.model_validate(value), calibration)
    assert {options.shape_of(each).num_columns for each in options.of(0)} == {1}
    assert max(options.shape_of(each).num_columns for each in options.of(1)) > 1
    assert {options.shape_of(each).transfer for each in options.of(1)} == {"rows"}


def test_tables_that_do_not_fit_are_refused_with_ways_out(calibration: Calibration) -> None:
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


def test_a_plan_makes_its_round(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = written.with_name("first.yaml"), written.with_name("second.yaml")
    assert main(["plan", "make", str(written), "--output", str(first)]) == 0
    assert "3 tables on 4 ranks" in capsys.readouterr().out
    assert main(["plan", "make", str(written)]) == 0
    assert capsys.readouterr().out == first.read_text()
    assert read_document(first).as_model(Plan).to_yaml() == first.read_text()
    assert main(["plan", "check", str(first), str(written)]) == 0
    told = capsys.readouterr().out
    assert "fits" in told
    assert "the file says" not in told
    assert "have changed" not in told
    assert main(["plan", "explain", "films", str(first), str(written)]) == 0
    told = capsys.readouterr().out
    assert "*" in told
    assert "table_wise" in told
    assert "pooled" in told
    assert main(["plan", "diff", str(first), str(first)]) == 0
    assert capsys.readouterr().out.startswith("0 tables differ, 0.0 MiB move")
    # What a person edits is checked, costed and compared.
    lines = first.read_text().splitlines()
    at = lines.index("  users:")
    lines[at + 1 : at + 6] = [
        "    kind: table_wise", "    ranks: [2]", "    columns: 1", "    transfer: rows",
        "    storage: hkv",
    ]  # fmt: skip
    second.write_text("\n".join(lines) + "\n")
    assert main(["plan", "check", str(second), str(written)]) == 0
    assert "the file says" in capsys.readouterr().out
    assert main(["plan", "diff", str(first), str(second)]) == 0
    told = capsys.readouterr().out
    assert "users: " in told
    assert "-> table_wise on ranks 2" in told


def test_moved_bytes_are_those_that_new_owners_lack(written: Path) -> None:
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
            "inputs.yaml:8:1: unknown key smaples (did you mean samples?",
        ),
        (
            "{dim: 32, method: adam",
            "{dmi: 32, method: adam",
            ":12:11: unknown key tables.users.dmi",
        ),
        ("host: 2 GiB", "host: 2 GX", "topology.memory.host: expected bytes"),
        ("rows: 1000000}", "rows: -5}", "tables.users.rows: input should be greater than 0"),
        (", rows: 1000000}", "}", ":12:3: tables.users: give either rows or growth"),
        ("method: adam,", "method: adamx,", "did you mean 'adam'?"),
        ("table_wise,", "table_wide,", "kinds.2: input should be"),
        (
            "  nodes: 2",
            "  nodes: 2\n  nodes: 3",
            ":4:3: key 'nodes' is given twice, first in line 3",
        ),
        ("samples: 512", "samples: [512", "YAML: "),
        ("samples: 512", "samples: &all [*all]", "YAML: "),
        ("samples: 512", "samples: !!python/object:os.system 1", "is not allowed; remove it"),
        ("{host: 2 GiB}", "{gpu: 2 GiB}", ":5:3: no storage of the calibration default"),
    ],
)
def test_bad_inputs_are_refused_by_line(
    old: str, new: str, told: str, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert INPUTS.count(old) == 1
    written.write_text(INPUTS.replace(old, new))
    assert main(["plan", "make", str(written)]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("    kind: ", "    kind: un", "plan.yaml:14:5: table country: kind un"),
        ("ranks: 4", "ranks: 8", "the plan is for 8 ranks, the topology has 4"),
        ("  country:", "  land:", "the plan lacks the tables country"),
        ("    columns: 1", "    columns: 3", "is offered with columns 1"),
        ("version: 1", "version: 2", ":1:1: version: input should be 1"),
    ],
)
def test_plans_that_do_not_fit_are_refused_by_line(
    old: str, new: str, told: str, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = written.with_name("plan.yaml")
    assert main(["plan", "make", str(written), "--output", str(plan)]) == 0
    text = plan.read_text()
    assert old in text
    plan.write_text(text.replace(old, new, 1))
    assert main(["plan", "check", str(plan), str(written)]) == 2
    assert told in capsys.readouterr().err


def test_a_rank_without_room_is_named(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert "rank 2 lacks" in told
    assert "of host memory; its largest shard is of users" in told


def test_the_file_of_the_page_is_planned(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs/how-to/plan-a-sharding.md"
    path, plan = tmp_path / "inputs.yaml", tmp_path / "plan.yaml"
    path.write_text(page.read_text().split("```yaml\n")[1].split("```")[0])
    assert main(["plan", "make", str(path), "--output", str(plan)]) == 0
    assert read_document(plan).as_model(Plan).tables.keys() == {"country", "film", "user"}


def roomy() -> dict[str, Any]:
    value = random_inputs(3).model_dump()
    value["topology"]["memory"] = {"host": 1 << 34}
    return value


def test_training_takes_a_plan(calibration: Calibration, tmp_path: Path) -> None:
    value = roomy() | {"kinds": ["table_wise"], "transfers": ["rows"]}
    made = make_plan(PlanInputs.model_validate(value), calibration)
    path = tmp_path / "plan.yaml"
    path.write_text(made.to_yaml())
    with pytest.raises(InvalidArgumentError, match=f"is for {made.ranks} ranks, found 99"):
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


def test_training_takes_column_blocks_of_a_plan(calibration: Calibration, tmp_path: Path) -> None:
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
    with pytest.raises(ConfigError, match=r"plan.yaml:\d+:.*2 ranks are no multiple of 3 blocks"):
        read_plan(path).sharding(made["ranks"])


@pytest.mark.parametrize(
    ("key", "value", "advice"),
    [
        ("kind", "tower_wise", "choose one of column_wise, data_parallel"),
        ("columns", 2, "row_wise keeps rows whole; 1 it is"),
    ],
)
def test_what_training_does_not_execute_is_refused_where_it_is_written(
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
