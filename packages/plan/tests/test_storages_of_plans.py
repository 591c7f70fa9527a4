"""Storages of plans: stacks, hits of tiers, bytes compared to real storages, growth, sketches."""

from __future__ import annotations

import os
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import open_storage
from sparring.contracts import TableConfig
from sparring.errors import CapacityError, ConfigError
from sparring_cli import read_document
from sparring_cli.application import main
from sparring_plan.planning.costs import storages as storages_module
from sparring_plan.planning.costs.costs import RESOURCES, Options, compute_option_costs
from sparring_plan.planning.costs.sketch import Sketch, read_column_ids, sketch_ids
from sparring_plan.planning.costs.storages import make_storage_models
from sparring_plan.planning.costs.tier_hits import TierHits
from sparring_plan.planning.costs.unique_keys import make_zipf_bins
from sparring_plan.planning.inputs import (
    Calibration,
    Growth,
    PlanInputs,
    Stack,
    TableSpec,
    read_inputs,
)
from sparring_plan.planning.plan import read_plan
from sparring_plan.planning.planner import make_plan

ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("SPARRING_TEST_DATA", ROOT.parent / "shared" / "data"))
RATINGS = DATA / "ml-latest-small" / "ratings.csv"

INPUTS = """
topology:
  nodes: 1
  ranks_per_node: 2
  memory: {host: 2 GiB, disk: 64 GiB}
samples: 4096
start: 2026-11-23
storages: [hkv, {tiers: [hkv: 64 MiB, rocksdb]}]
tables:
  users: {dim: 16, method: adam, features: {user: {ids: 1}}, rows: 100000}
  films:
    dim: 32
    method: adagrad
    features: {seen: {ids: 20}}
    growth: {rows: 1000000, per_day: 500000, horizon_days: 90}
    storages: [{tiers: [hkv: 10 %, rocksdb]}]
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


def inputs_of(table: dict[str, Any], **changes: Any) -> PlanInputs:
    topology = {"nodes": 1, "ranks_per_node": 2, "memory": {"host": "8 GiB", "disk": "1 TiB"}}
    value = {"topology": topology, "samples": 1000, "tables": {"t": table}, "kinds": ["row_wise"]}
    return PlanInputs.model_validate(value | changes)


def compute_of(options: Options) -> dict[str, float]:
    """Storage → seconds of finds and updates of the only table and shape."""
    place = RESOURCES.index("compute")
    return {
        options.storages[options.storage[each]]: float(options.base[each, place])
        for each in options.of(0)
    }


# -- hits of tiers ------------------------------------------------------------------


@pytest.mark.parametrize("skew", [0.0, 0.8, 1.2])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_hits_equal_a_cache_that_was_run(skew: float, share: float) -> None:
    num_rows, num_ids = 2_000, 60_000
    weights = np.arange(1, num_rows + 1, dtype=np.float64) ** -skew
    ids = np.random.default_rng(0).choice(num_rows, num_ids, p=weights / weights.sum())
    room, cache, hits, counted = int(share * num_rows), {}, 0, 0
    for at, each in enumerate(ids.tolist()):
        if at > num_ids // 2:
            counted += 1
            hits += each in cache
        cache.pop(each, None)
        cache[each] = None
        if len(cache) > room:
            del cache[next(iter(cache))]
    tables = np.array([0])
    bins = make_zipf_bins(np.array([2000.0]), np.array([skew]))
    hits_of = TierHits(bins, np.array([100.0]), np.array([200.0]))
    assert hits_of.id_hits(tables, np.array([float(room)]))[0] == pytest.approx(
        hits / counted, abs=0.015
    )


def test_misses_are_of_distinct_keys_and_none_where_all_rows_fit() -> None:
    bins = make_zipf_bins(np.array([5000.0]), np.array([1.0]))
    hits, tables = TierHits(bins, np.array([300.0]), np.array([3000.0])), np.array([0])
    empty, some, full = (np.array([rows]) for rows in (0.0, 500.0, 9000.0))
    assert hits.key_misses(tables, empty) == 1
    assert hits.key_misses(tables, full) == 0
    assert hits.id_hits(tables, full) == 1
    # Rare keys are a larger part of the distinct keys than of the ids, and even larger for more
    # ids.
    of_ids = 1 - hits.id_hits(tables, some)[0]
    of_keys, of_all = hits.key_misses(tables, some)[0], hits.key_misses_of_all(tables, some)[0]
    assert of_ids < of_keys < of_all < 1


def test_a_larger_tier_costs_less_time_and_more_memory(calibration: Calibration) -> None:
    table = {"dim": 32, "method": "adam", "rows": 2_000_000, "features": {"f": {"ids": 10}}}
    stacks = [{"tiers": [{"hkv": budget}, "rocksdb"]} for budget in ("5 %", "50 %")]
    options = compute_option_costs(
        inputs_of(table, storages=[*stacks, "hkv", "rocksdb"]), calibration
    )
    seconds = compute_of(options)
    small, large = "hkv 5 % + rocksdb", "hkv 50 % + rocksdb"
    assert seconds["hkv"] < seconds[large] < seconds[small] < seconds["rocksdb"]
    host = options.memories.index("host")
    memory = {
        options.storages[options.storage[each]]: options.base_memory[each, host]
        for each in options.of(0)
    }
    assert memory["rocksdb"] < memory[small] < memory[large]
    hits = {options.storages[options.storage[each]]: options.hits[each] for each in options.of(0)}
    assert np.isnan(hits["hkv"]).all()
    assert hits[small][0] < hits[large][0] < 1
    assert hits[small][:2].sum() == pytest.approx(1)


def test_iops_latency_and_methods_are_counted(calibration: Calibration) -> None:
    table = {"dim": 32, "method": "adam", "rows": 1_000_000, "features": {"f": {"ids": 10}}}

    def seconds(**changes: Any) -> float:
        costs = calibration.model_dump(exclude_none=True)
        costs["storages"] = {"rocksdb": {**costs["storages"]["rocksdb"], **changes}}
        return compute_of(
            compute_option_costs(inputs_of(table), Calibration.model_validate(costs))
        )["rocksdb"]

    usual = seconds()
    assert seconds(iops=1e9) == usual
    assert seconds(iops=1000) > 10 * usual
    assert seconds(latency_us=1e6) > usual + 1
    adam = {"update_ns": 60_000, "update_ns_per_element": 0}
    assert seconds(methods={"adam": adam}) > 2 * usual
    assert seconds(methods={"sgd": adam}) == usual


def test_misses_are_found_in_a_lower_tier(calibration: Calibration) -> None:
    table = {"dim": 32, "rows": 1_000_000, "features": {"f": {"ids": 10}}}
    inputs = inputs_of(table, storages=["hkv", {"tiers": [{"hkv": "5 %"}, "rocksdb"]}])
    one, stack = make_storage_models(inputs, calibration, ["t"])
    keys, row_bytes, share = np.array([1000.0]), np.array([128.0]), np.array([0.25])
    below = calibration.storages["rocksdb"]
    miss = 250 * (below.find_ns + 128 * below.find_ns_per_byte) * 1e-9
    assert stack.find_seconds(keys, row_bytes, [share]) == pytest.approx(
        one.find_seconds(keys, row_bytes, []) + miss
    )


def test_rows_that_leave_a_tier_are_written_to_a_lower_one(calibration: Calibration) -> None:
    table = {"dim": 32, "method": "adam", "rows": 2_000_000, "features": {"f": {"ids": 10}}}
    stack = [{"tiers": [{"hkv": "5 %"}, "rocksdb"]}]
    costs = calibration.model_dump(exclude_none=True)

    def seconds(write_ns: float) -> float:
        costs["storages"]["rocksdb"]["write_ns"] = write_ns
        found = compute_option_costs(
            inputs_of(table, storages=stack), Calibration.model_validate(costs)
        )
        return compute_of(found)["hkv 5 % + rocksdb"]

    assert seconds(40_000) > 1.5 * seconds(0)


# -- bytes ------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sgd", "adam"])
@pytest.mark.parametrize("storage", ["hkv", "hkv 2 MiB + memory", "hkv 40 % + memory"])
def test_bytes_of_a_plan_equal_real_storages(
    calibration: Calibration, storage: str, method: str
) -> None:
    costs = calibration.model_dump(exclude_none=True)
    costs["storages"]["memory"] = {**costs["storages"]["hkv"], "find_ns": 1000}
    budget = storage.partition("hkv ")[2].partition(" +")[0]
    choice: Any = {"tiers": [{"hkv": budget}, "memory"]} if budget else "hkv"
    num_rows = 60_000
    table = {"dim": 16, "method": method, "rows": num_rows, "features": {"f": {"ids": 1}}}
    inputs = inputs_of(table, storages=[choice])
    (model,) = make_storage_models(inputs, Calibration.model_validate(costs), ["t"])
    assert model.name == storage
    # For one rank of two.
    rows = num_rows // 2
    told = model.bytes(np.array([float(rows)]), np.array([0]), 1)[0, model._memories.index("host")]
    state = inputs.tables["t"].state_width
    config = TableConfig("t", 16, state_width=state)
    layout = model._layouts_of(np.array([0]), 1)[0][0]
    name, options = "hkv", {}
    if budget:
        first = {"budget_bytes": budget} if "MiB" in budget else model._budget(0, layout, rows)
        name, options = "tiered", {"tiers": [{"backend": "hkv", **first}, "memory"]}
    with open_storage(name, config, **options) as opened:
        for begin in range(0, rows, 2048):
            keys = np.arange(begin, min(begin + 2048, rows))
            opened.upsert(keys, np.zeros((len(keys), config.width), np.float32))
        opened.flush()
        assert told == pytest.approx(opened.memory_bytes, rel=0.1)


def test_bytes_of_many_tables_are_close_to_the_sum_of_each(calibration: Calibration) -> None:
    rows = np.geomspace(1e4, 3e8, 200)
    value = inputs_of({"dim": 16, "rows": 10, "features": {"f": {"ids": 1}}}).model_dump()
    table = value["tables"].pop("t")
    value["tables"] = {f"t{at:03}": {**table, "dim": 8 << at % 3} for at in range(len(rows))}
    (model,) = make_storage_models(
        PlanInputs.model_validate(value | {"storages": ["hkv"]}), calibration, list(value["tables"])
    )
    tables = np.arange(len(rows))
    each = [model.bytes(rows[at : at + 1], tables[at : at + 1], 1)[0] for at in tables]
    many = model.bytes(rows, tables, 1)
    large = rows > 1e6
    np.testing.assert_allclose(many[large], np.asarray(each)[large], rtol=0.05)
    np.testing.assert_allclose(many, each, rtol=0.35)


def test_the_calibration_is_used_if_a_backend_has_no_estimate(
    calibration: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = calibration.model_dump(exclude_none=True)
    costs["storages"]["elsewhere"] = {**costs["storages"]["hkv"], "overhead": 2, "key_bytes": 10}
    table = {"dim": 16, "rows": 100_000, "features": {"f": {"ids": 1}}}
    read = Calibration.model_validate(costs)
    (model,) = make_storage_models(inputs_of(table, storages=["elsewhere"]), read, ["t"])
    rows, tables = np.array([4096.0]), np.array([0])
    assert model.bytes(rows, tables, 1).sum() == pytest.approx(4096 * (10 + 64) * 2)
    # Half of the columns: half of the row, and the key again.
    assert model.bytes(rows, tables, 2).sum() == pytest.approx(4096 * (10 + 32) * 2)
    monkeypatch.setattr(storages_module, "estimate_bytes", lambda *_, **__: {"host": 7})
    (model,) = make_storage_models(inputs_of(table, storages=["elsewhere"]), read, ["t"])
    assert model.bytes(rows, tables, 1).sum() == 7


def test_more_rows_than_a_storage_can_number_are_rejected(calibration: Calibration) -> None:
    table = {"dim": 16, "rows": 10**11, "features": {"f": {"ids": 1}}}
    with pytest.raises(CapacityError, match="table t: no possible storage supports that many rows"):
        compute_option_costs(inputs_of(table, storages=["hkv"]), calibration)
    options = compute_option_costs(
        inputs_of(table, storages=["hkv", {"tiers": [{"hkv": "1 GiB"}, "rocksdb"]}]), calibration
    )
    assert {options.storages[each] for each in options.storage} == {"hkv 1 GiB + rocksdb"}


# -- the file ---------------------------------------------------------------------


def test_a_plan_names_stacks_hits_memories_and_the_day(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.yaml"
    assert main(["plan", "make", str(written), "--output", str(path)]) == 0
    assert "; memory is full: 20" in capsys.readouterr().err
    plan = read_plan(path)
    films = plan.tables["films"]
    assert films.storage == "hkv 10 % + rocksdb"
    assert films.hit_rates is not None
    assert 0.5 < films.hit_rates[0] < 1
    assert films.memory["disk"] > films.memory["host"] > 0
    assert sum(films.memory.values()) == films.bytes
    assert plan.tables["users"].hit_rates is None
    assert plan.memory_full is not None
    assert plan.memory_full.startswith("20")
    assert "of rank" in plan.memory_full
    assert main(["plan", "check", str(path), str(written)]) == 0
    capsys.readouterr()
    assert main(["plan", "explain", str(path), str(written), "films"]) == 0
    assert f"{films.hit_rates[0]:.1%}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("[hkv, ", "[hkw, ", ":8:12: the calibration default has no storage hkw; use one of hkv"),
        (", disk: 64 GiB", "", ":8:17: rocksdb keeps rows in disk, which is not in the topology"),
        ("hkv: 64 MiB", "hkv", "tier hkv is above the last and needs a budget"),
        (
            "hkv: 64 MiB, rocksdb",
            "hkv: 64 MiB, rocksdb: 1 GiB",
            "keeps all rows: specify only its name",
        ),
        ("hkv: 64 MiB, rocksdb", "hkv", "storages.1"),
        ("hkv: 10 %", "hkv: 110 %", "storages"),
        ("start: 2026-11-23", "start: tomorrow", "start: "),
        ("horizon_days: 90", "horizon_days: 90, expire_days: 0", "expire_days"),
        (
            "rows: 100000}",
            "rows: 100000, skew: -1}",
            "skew is wrong (found -1, expected a number of",
        ),
        (
            "rows: 100000}",
            "rows: 100000, skew: {skech: a}}",
            "'skech' in tables.users.skew (did you mean sketch?)",
        ),
        (
            "    storages: [{",
            "    skew: {sketch: none.yaml}\n    storages: [{",
            "tables.films.skew",
        ),
    ],
)
def test_invalid_storages_are_rejected_by_line(
    old: str, new: str, told: str, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert INPUTS.count(old) == 1
    written.write_text(INPUTS.replace(old, new))
    assert main(["plan", "make", str(written)]) == 2
    assert told in capsys.readouterr().err


def test_a_budget_is_named_by_its_largest_unit() -> None:
    stack = Stack.model_validate({"tiers": [{"hkv": "1536 MiB"}, {"redis": "25 %"}, "rocksdb"]})
    assert stack.name == "hkv 1.5 GiB + redis 25 % + rocksdb"


# -- growth -----------------------------------------------------------------------


def test_expiry_limits_a_table_to_the_rows_that_arrive_in_a_lifetime() -> None:
    growth = Growth(rows=1000, per_day=100, horizon_days=365, admission=0.5, expire_days=30)
    assert growth.rows_on(0) == 1000
    assert growth.rows_on(15) == pytest.approx(500 + 15 * 50)
    assert growth.rows_on(30) == growth.rows_on(400) == 30 * 50
    spec = TableSpec(dim=8, features={"f": {"ids": 1}}, growth=growth)
    assert spec.expected_rows == 1500
    # A shrinking table is planned with its current size.
    shrinking = TableSpec(
        dim=8, features={"f": {"ids": 1}}, growth=growth.model_copy(update={"rows": 9000})
    )
    assert shrinking.expected_rows == 9000


def test_the_day_of_full_memory_is_the_first_with_missing_bytes(calibration: Calibration) -> None:
    def full(**growth: Any) -> str | None:
        table = {"dim": 32, "features": {"f": {"ids": 1}}, "growth": {"rows": 10**6, **growth}}
        return make_plan(inputs_of(table, storages=["hkv"]), calibration).memory_full

    told = full(per_day=1e6, horizon_days=20)
    assert told is not None
    assert told.endswith(": host of rank 0")
    day = int(told.partition(":")[0].removeprefix("day "))
    # 8 GiB on each of two ranks store about 100 million rows of 128 bytes and their index.
    assert 90 < day < 125
    for horizon, fits in ((day - 2, True), (day, False)):
        if fits:
            assert full(per_day=1e6, horizon_days=horizon) == told
        else:
            with pytest.raises(CapacityError):
                full(per_day=1e6, horizon_days=horizon)
    assert full(per_day=1e6, horizon_days=20, expire_days=30) == "not within 100 years"
    fixed = inputs_of({"dim": 32, "features": {"f": {"ids": 1}}, "rows": 10})
    assert make_plan(fixed, calibration).memory_full is None


# -- sketches ---------------------------------------------------------------------


def counted(ids: Any, size: int) -> float:
    """Returns the mean number of distinct keys in batches of so many ids."""
    batches = [ids[at : at + size] for at in range(0, len(ids) - size + 1, size)]
    return float(np.mean([len(np.unique(each)) for each in batches]))


@pytest.mark.parametrize("skew", [0.6, 1.0, 1.3])
def test_unique_keys_of_a_sketch_equal_those_counted_in_other_batches(skew: float) -> None:
    num_rows = 50_000
    random = np.random.default_rng(1)
    weights = np.arange(1, num_rows + 1, dtype=np.float64) ** -skew
    share = weights / weights.sum()
    sketch = sketch_ids([random.choice(num_rows, 100_000, p=share) for _ in range(2)])
    fresh = random.choice(num_rows, 200_000, p=share)
    bins = sketch.key_bins(num_rows)
    assert (bins.counts * bins.probability).sum() == pytest.approx(1)
    # A quarter of the sketched rate is for keys that the sketch did not see: without them it would
    # be 8 % less.
    for size, within in ((500, 0.03), (5_000, 0.03), (50_000, 0.05)):
        told = bins.unique_keys(np.array([float(size)]))[0]
        assert told == pytest.approx(counted(fresh, size), rel=within)


@pytest.mark.skipif(
    not RATINGS.exists(),
    reason=f"{RATINGS} is not there; SPARRING_TEST_DATA names another folder",
)
@pytest.mark.parametrize("column", ["movieId", "userId"])
def test_unique_keys_of_real_data(column: str) -> None:
    ids = np.concatenate(list(read_column_ids(RATINGS, [column])))
    ids = np.random.default_rng(0).permutation(ids)
    half = len(ids) // 2
    sketch = sketch_ids([ids[:half]])
    bins = sketch.key_bins(len(np.unique(ids)))
    for size in (256, 4096):
        told = bins.unique_keys(np.array([float(size)]))[0]
        assert told == pytest.approx(counted(ids[half:], size), rel=0.04)


def test_a_sketch_serves_the_plan_and_changes_it(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = np.random.default_rng(0).zipf(1.2, 50_000) % 10_000
    np.save(tmp_path / "ids.npy", ids)
    sketch = tmp_path / "sketch.yaml"
    assert main(["plan", "sketch", str(tmp_path / "ids.npy"), "--output", str(sketch)]) == 0
    assert main(["plan", "sketch", str(tmp_path / "ids.npy")]) == 0
    assert capsys.readouterr().out == sketch.read_text()
    text = INPUTS.replace("    storages: [{", "    skew: {sketch: sketch.yaml}\n    storages: [{")
    written.write_text(text)
    inputs, calibration = read_inputs(written)
    assert isinstance(inputs.tables["films"].skew, Sketch)
    first = make_plan(inputs, calibration)
    np.save(tmp_path / "ids.npy", np.arange(50_000))
    assert main(["plan", "sketch", str(tmp_path / "ids.npy"), "--output", str(sketch)]) == 0
    second = make_plan(*read_inputs(written))
    assert second.inputs != first.inputs
    assert second.tables["films"].ms > first.tables["films"].ms


def test_columns_are_read_whole_and_in_part(tmp_path: Path) -> None:
    csv = tmp_path / "a.csv"
    csv.write_text("user,seen\n1,3|4\n2,\n-9223372036854775808,5\n")
    (ids,) = read_column_ids(csv, ["seen", "user"])
    assert sorted(ids.tolist()) == [-(2**63), 1, 2, 3, 4, 5]
    assert [each.tolist() for each in read_column_ids(csv, ["user"], 2)] == [[1, 2]]
    assert sketch_ids(read_column_ids(csv, ["user"])).distinct == 3


def test_parquet_lists_are_flattened(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table(
        {"user": [1, None, 3], "seen": [[4, 5], [], [6]], "name": ["a", "b", "c"]}
    )
    path = tmp_path / "a.parquet"
    parquet.write_table(table, path)
    ids = np.concatenate(list(read_column_ids(path, ["user", "seen"])))
    assert sorted(ids.tolist()) == [1, 3, 4, 5, 6]
    with pytest.raises(ConfigError, match="no column item; use one of user, seen, name"):
        list(read_column_ids(path, ["item"]))
    with pytest.raises(ConfigError, match="expected 64-bit integers"):
        list(read_column_ids(path, ["name"]))


@pytest.mark.parametrize(
    ("name", "content", "columns", "told"),
    [
        ("a.csv", "user\nbob\n", ["user"], "a.csv:2: column user contains 'bob'"),
        ("a.csv", "user\n1\n", ["item"], "no column item; use one of user"),
        ("a.csv", "user\n1\n", [], "no column specified"),
        ("a.csv", f"user\n{2**70}\n", ["user"], "expected 64-bit integers"),
        ("a.csv", "user\n", ["user"], "the data contains no ids"),
        ("a.txt", "1", ["user"], "supported file types are .parquet, .csv, .npy, found .txt"),
        ("a.npy", "1", [], "save it with numpy.save"),
        ("a.npy", "1", ["user"], "an .npy file has no columns"),
        ("none.csv", None, ["user"], "cannot read the file"),
    ],
)
def test_data_without_a_sketch_are_rejected(
    tmp_path: Path, name: str, content: str | None, columns: list[str], told: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=told.replace(".", r"\.")):
        sketch_ids(read_column_ids(tmp_path / name, columns))


def test_an_inconsistent_sketch_is_rejected() -> None:
    with pytest.raises(ValueError, match="3 keys and 4 ids, but distinct is 3 and ids is 5"):
        Sketch(ids=5, distinct=3, bins=[(2, 2), (1, 2)])
    with pytest.raises(ValueError, match="each key at least one id"):
        Sketch(ids=1, distinct=2, bins=[(2, 1)])
