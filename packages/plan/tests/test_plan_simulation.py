"""Simulated steps of plans: bytes by the exchange's formulas, times of the ring, sheet and page."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.errors import CapacityError, ConfigError, DataError, InvalidArgumentError
from sparring_cli import read_document
from sparring_cli.application import main
from sparring_plan.planning.calibration.calibrate import write_calibration
from sparring_plan.planning.costs.costs import compute_option_costs
from sparring_plan.planning.inputs import (
    Calibration,
    MachineCosts,
    PlanInputs,
    StepCosts,
    read_inputs,
)
from sparring_plan.planning.planned_placement import make_placement
from sparring_plan.planning.planner import make_plan
from sparring_plan.planning.search.placement import Placement
from sparring_plan.report.page import render_report, write_report
from sparring_plan.report.ranks import summarize_ranks
from sparring_plan.simulation import plan_step, ranking
from sparring_plan.simulation.cluster import Cluster
from sparring_plan.simulation.model import Compute, Network, SimulatedSchedule, Workload
from sparring_plan.simulation.plan_step import PlanStep, simulate_plan
from sparring_plan.simulation.ranking import list_neighbors, rank_again
from sparring_plan.simulation.replay import simulate
from sparring_plan.simulation.sheet import simulate_sheet, with_ranks
from sparring_plan.simulation.traffic import compute_traffic

ROOT = Path(__file__).resolve().parents[3]
NODES = {
    "nodes": 2,
    "ranks_per_node": 2,
    "memory": {"host": "2 GiB"},
    "near": {"gbit": 40, "latency_us": 2},
    "far": {"gbit": 10, "latency_us": 20},
    "price_per_hour": 9,
}


def tables(**features: Any) -> dict[str, Any]:
    return {
        "users": {"dim": 32, "method": "adam", "features": {"user": {"ids": 1}}, "rows": 100_000},
        "films": {
            "dim": 16, "method": "adagrad", "features": {"seen": {"ids": 20, **features}},
            "rows": 50_000,
        },
        "country": {"dim": 8, "features": {"country": {"ids": 1}}, "rows": 200},
    }  # fmt: skip


def inputs_of(**changes: Any) -> PlanInputs:
    given = {"topology": NODES, "samples": 256, "tables": tables()}
    return PlanInputs.model_validate(given | changes)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    with as_file(files("sparring_plan.planning") / "calibration.yaml") as path:
        return read_document(path).as_model(Calibration)


Place = Callable[..., Placement]


@pytest.fixture
def place(calibration: Calibration) -> Place:
    """The placement of the tables by the given kinds: a number is the rank of a table_wise one."""

    def made(
        inputs: PlanInputs,
        transfer: str = "rows",
        costs: Calibration = calibration,
        **choices: Any,
    ) -> Placement:
        plan = make_plan(inputs, costs)
        changed = {}
        for name, table in plan.tables.items():
            choice = choices.get(name, "row_wise")
            kind, ranks = ("table_wise", [choice]) if isinstance(choice, int) else (choice, "all")
            travels = "rows" if kind == "data_parallel" else transfer
            update = {"kind": kind, "ranks": ranks, "transfer": travels, "next_best": None}
            changed[name] = table.model_copy(update=update)
        plan = plan.model_copy(update={"tables": changed})
        return make_placement(plan, compute_option_costs(inputs, costs))

    return made


CHOICES: list[dict[str, Any]] = [
    {},
    {"users": 0, "films": 3, "country": "data_parallel"},
    {"users": "data_parallel", "films": "data_parallel", "country": "data_parallel"},
    {"transfer": "pooled", "films": 1},
]


@pytest.mark.parametrize("choices", CHOICES)
def test_a_replay_sends_the_bytes_and_messages_of_the_formulas(
    choices: dict[str, Any],
    place: Place,
    calibration: Calibration,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = inputs_of(transfers=["rows", "pooled"])
    placement = place(inputs, **choices)
    clusters: list[Cluster] = []

    def kept(*arguments: Any, **options: Any) -> Cluster:
        clusters.append(Cluster(*arguments, **options))
        return clusters[-1]

    monkeypatch.setattr(plan_step, "Cluster", kept)
    step = simulate_plan(placement, inputs, calibration)
    sent = compute_traffic(placement, inputs, calibration).sent
    ranks = clusters[0].ranks
    assert step.method == "replay"
    # If one node represents all, a remaining key counts at another hop.
    rest = 0 if placement.owns.any() else 3 * (8 + 129 + 136)
    far, totals = (getattr(sent, name)[: len(ranks)] for name in ("far", "total"))
    assert [each.far_bytes for each in ranks] == pytest.approx(far, rel=0, abs=rest)
    assert [each.far_bytes + each.near_bytes for each in ranks] == pytest.approx(
        totals, rel=0, abs=rest
    )
    assert [each.num_sent for each in ranks] == sent.messages[: len(ranks)].tolist()
    assert step.far_bytes == max(sent.far) > 0


def test_one_table_over_all_ranks_takes_the_time_of_the_ring(
    place: Place, calibration: Calibration
) -> None:
    table = {"films": {"dim": 64, "features": {"f": {"ids": 8}}, "rows": 100_000, "skew": 0}}
    inputs = inputs_of(tables=table)
    free = calibration.storages["hkv"].model_copy(
        update={"find_ns": 100, "find_ns_per_byte": 0, "update_ns": 0, "update_ns_per_element": 0}
    )
    exchange = calibration.exchange.model_copy(update={"pool_ns_per_byte": 0, "steps": StepCosts()})
    costs = calibration.model_copy(update={"storages": {"hkv": free}, "exchange": exchange})
    step = simulate_plan(place(inputs), inputs, costs)
    network = Network(20e-6, 10 * 125e6, 20e-6, 2, 2e-6, 40 * 125e6)
    workload = Workload(step.num_keys, 1.0, 64)
    ring = simulate(SimulatedSchedule.RING, 4, network, Compute(100e-9, 100e-9, 0), workload)
    assert step.seconds == pytest.approx(ring.seconds, rel=1e-12)
    assert (step.far_bytes, step.num_messages) == (ring.wire_bytes, ring.num_messages)


def test_one_node_represents_all_if_all_ranks_own_equal_shares(
    place: Place, calibration: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A number of keys that is equal for all owners, so that rounding changes nothing.
    table = {"films": {"dim": 64, "features": {"f": {"ids": 4}}, "rows": 512, "skew": 0}}
    inputs = inputs_of(tables=table, samples=4096)
    placement = place(inputs)
    one = simulate_plan(placement, inputs, calibration)
    assert one.num_keys == 512

    def unlike(*arguments: Any) -> Any:
        return replace(compute_traffic(*arguments), is_alike=False)

    monkeypatch.setattr(plan_step, "compute_traffic", unlike)
    assert simulate_plan(placement, inputs, calibration) == one


def test_overlap_and_imbalance_are_visible_in_a_replayed_step(
    place: Place, calibration: Calibration
) -> None:
    inputs = inputs_of(samples=4096)

    def step(**choices: Any) -> PlanStep:
        return simulate_plan(place(inputs, **choices), inputs, calibration)

    even, uneven = step(), step(users=0, films=0, country=0)
    assert uneven.seconds > 1.5 * even.seconds
    placement = place(inputs)
    slow = simulate_plan(placement, inputs, calibration, has_one_core=True)
    # One core works sequentially: it needs at least the sum of its work.
    assert slow.seconds > even.seconds >= placement.load.max(axis=1).max() * 0.99
    assert slow.compute_share == slow.message_share
    # By default, the cores of the topology decide.
    few = inputs_of(samples=4096, topology=NODES | {"cores": 3})
    one_core = place(few)
    assert simulate_plan(one_core, few, calibration) == replace(slow, bound_by="compute")
    assert one_core.seconds > placement.seconds
    enough = inputs_of(samples=4096, topology=NODES | {"cores": 4})
    assert simulate_plan(place(enough), enough, calibration) == simulate_plan(
        placement, inputs, calibration
    )


@pytest.mark.parametrize(
    ("cost", "transfer", "seconds"),
    [
        # Per table; per table, owner and requester; per id on both.
        ("separate_us", "pooled", 3 * 1e-3),
        ("pooled_us", "pooled", 3 * 4 * 1e-3),
        ("bag_ids", "pooled", 256 * 22 * 1e-6),
        ("separate_us", "rows", 0),
        ("pooled_us", "rows", 0),
        ("bag_ids", "rows", 0),
    ],
)
def test_costs_of_owner_pooling_apply_only_to_pooled_tables(
    cost: str, transfer: str, seconds: float, place: Place, calibration: Calibration
) -> None:
    inputs = inputs_of(transfers=["rows", "pooled"])
    found = []
    for value in (0.0, 1_000.0):
        changed = {"ns": value} if cost == "bag_ids" else value
        steps = calibration.exchange.steps.model_dump() | {cost: changed}
        exchange = calibration.exchange.model_copy(update={"steps": StepCosts(**steps)})
        costs = calibration.model_copy(update={"exchange": exchange})
        placement = place(inputs, transfer, costs)
        step = simulate_plan(placement, inputs, costs, has_one_core=True)
        found.append((step.seconds, placement.load[:, 0].max()))
    assert np.subtract(*found[::-1]) == pytest.approx([seconds, seconds], rel=0.02, abs=1e-9)


def test_a_step_of_too_many_messages_is_summed(place: Place, calibration: Calibration) -> None:
    inputs = inputs_of()
    placement = place(inputs)
    step = simulate_plan(placement, inputs, calibration, max_messages=10)
    assert (step.method, step.idle_share) == ("linear", None)
    assert step.seconds == placement.seconds
    assert step.sent_bytes == compute_traffic(placement, inputs, calibration).sent.total.max()


def test_pools_of_long_bags_take_half_the_bytes_of_rows(
    place: Place, calibration: Calibration
) -> None:
    inputs = inputs_of(transfers=["rows", "pooled"], tables={"films": {
        "dim": 64, "features": {"seen": {"ids": 20}}, "rows": 10_000_000, "skew": 0,
    }})  # fmt: skip
    sent = {
        transfer: compute_traffic(place(inputs, transfer, films=1), inputs, calibration).sent
        for transfer in ("rows", "pooled")
    }
    assert sent["rows"].total.sum() > 2 * sent["pooled"].total.sum()
    # 20 ids of 8 bytes, a length of 4 bytes, a pool and a gradient of 256 bytes for each of 256 bags.
    assert sent["pooled"].keys.tolist() == [256 * (160 + 4), 0, *[256 * 164] * 2]
    assert sent["pooled"].rows.tolist() == [0, 3 * (256 * 256 + 8), 0, 0]
    assert sent["pooled"].gradients.tolist() == [256 * 256 + 16, 0, *[256 * 256 + 16] * 2]


def test_a_sheet_has_a_row_for_each_number_of_ranks(calibration: Calibration) -> None:
    table = {"users": {"dim": 32, "features": {"f": {"ids": 4}}, "rows": 40_000_000}}
    inputs = inputs_of(tables=table, kinds=["row_wise"])
    rows = simulate_sheet(inputs, calibration, [8, 1, 4, 4])
    assert [(row.ranks, row.nodes) for row in rows] == [(1, 1), (4, 2), (8, 4)]
    assert rows[0].step is None
    assert "do not fit" in str(rows[0].problem)
    small, large = rows[1:]
    assert small.step is not None
    assert large.step is not None
    assert small.memory_bytes is not None
    assert large.memory_bytes is not None
    assert small.memory_bytes["host"] == pytest.approx(2 * large.memory_bytes["host"], rel=0.01)
    assert large.price_per_hour == 4 * 9
    assert small.samples_per_second == pytest.approx(256 * 4 / small.step.seconds)
    price = 2 * 9 / (256 * 4 / small.step.seconds * 3600) * 1e9
    assert small.price_per_billion_samples == pytest.approx(price)
    assert rows == simulate_sheet(inputs, calibration, [1, 4, 8])
    for wrong, words in (([3], "3 ranks do not fill nodes of 2"), ([0], "from 1 to"), ([], "no n")):
        with pytest.raises(InvalidArgumentError, match=words):
            simulate_sheet(inputs, calibration, wrong)


def test_a_plan_is_simulated_unchanged(calibration: Calibration) -> None:
    inputs = inputs_of()
    plan = make_plan(inputs, calibration)
    one = {name: each.model_copy(update={"kind": "table_wise", "ranks": [2]})
           for name, each in plan.tables.items()}  # fmt: skip
    edited = plan.model_copy(update={"tables": one})
    made, kept = (simulate_sheet(inputs, calibration, [4, 8], each) for each in (None, edited))
    assert kept[0].kinds == ["table_wise"]
    assert made[0].step is not None
    assert kept[0].step is not None
    assert kept[0].step.seconds > made[0].step.seconds
    assert kept[1] == made[1]  # computed for another number of ranks
    full = inputs_of(topology=NODES | {"memory": {"host": "40 MiB"}})
    with pytest.raises(CapacityError, match="rank 2 needs"):
        simulate_sheet(full, calibration, [4], edited)


def test_every_file_of_plans_gives_a_sheet(capsys: pytest.CaptureFixture[str]) -> None:
    paths = sorted((ROOT / "configs/plans").glob("*.yaml"))
    assert [path.name for path in paths] == ["internet.yaml", "quickstart.yaml"]
    for path in paths:
        inputs, _ = read_inputs(path)
        is_large = path.name == "internet.yaml"
        rows = sum(each.expected_rows * each.dim * 4 for each in inputs.tables.values())
        assert (rows >= 4e12) == is_large
        assert main(["plan", "simulate", str(path), "--ranks", "8,32", "--json"]) == 0
        first = capsys.readouterr().out
        told = json.loads(first)
        assert [row["ranks"] for row in told["rows"]] == [8, 32]
        shrinks = told["rows"][1]["step"]["seconds"] < told["rows"][0]["step"]["seconds"]
        assert shrinks or not is_large
        assert set(told["rows"][0]["marks"].values()) <= {"simulated", "measured", "given"}
        assert main(["plan", "simulate", str(path), "--ranks", "8,32", "--json"]) == 0
        assert capsys.readouterr().out == first


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "inputs.yaml"
    path.write_text(json.dumps({"topology": NODES, "samples": 256, "tables": tables()}))
    return path


def test_the_command_prints_a_sheet(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = written.with_name("plan.yaml")
    assert main(["plan", "make", str(written), "--output", str(plan)]) == 0
    capsys.readouterr()
    assert main(["plan", "simulate", str(plan), str(written), "--ranks", "2,4"]) == 0
    shown = capsys.readouterr().out
    assert "simulated" in shown
    assert "given" in shown
    assert "replay" in shown
    assert main(["plan", "simulate", str(plan), str(written), "--ranks", "two"]) == 2
    assert "integers separated by commas" in capsys.readouterr().err
    assert main(["plan", "simulate", str(plan), str(plan), str(written)]) == 2
    assert "found 3 files" in capsys.readouterr().err


def test_costs_measured_on_the_machine_are_marked(
    written: Path, calibration: Calibration, capsys: pytest.CaptureFixture[str]
) -> None:
    def costs_of(inputs: dict[str, Any]) -> dict[str, Any]:
        written.write_text(json.dumps(inputs))
        assert main(["plan", "simulate", str(written), "--ranks", "2", "--json"]) == 0
        costs: dict[str, Any] = json.loads(capsys.readouterr().out)["costs"]
        return costs

    value = {"topology": NODES | {"message_us": 20}, "samples": 256, "tables": tables()}
    assert {each["mark"] for each in costs_of(value).values()} == {"given"}
    machine = MachineCosts(
        measured_over="loopback", message_us=7, link_gbit=8, link_latency_us=3,
        memory_gigabytes_per_second=10, dense_ms=4,
    )  # fmt: skip
    mine = calibration.model_copy(update={"name": "mine", "date": "2026-11-23", "machine": machine})
    write_calibration(mine, written.with_name("mine.yaml"))
    costs = costs_of(value | {"calibration": "mine.yaml"})
    measured = {name for name, each in costs.items() if each["mark"] == "measured"}
    assert {"hkv.find_ns", "exchange.steps.rows.ns_per_byte", "dense_ms"} <= measured
    assert costs["message_us"] == {"value": 20, "mark": "given"}
    assert costs["far.gbit"]["mark"] == "given"
    without = {name: each for name, each in value["topology"].items() if name != "message_us"}
    costs = costs_of(value | {"calibration": "mine.yaml", "topology": without})
    assert costs["message_us"] == {"value": 7, "mark": "measured"}
    assert main(["plan", "simulate", str(written), "--ranks", "2"]) == 0
    assert "costs that are measured (mine, 2026-11-23): " in capsys.readouterr().out


def test_make_prints_rows_memory_and_time_of_each_rank(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = written.with_name("plan.yaml")
    assert main(["plan", "make", str(written), "--output", str(plan)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    head = lines.index(["rank", "rows", "host", "MiB", "predicted", "ms"])
    shown = lines[head + 1 : head + 5]
    made = make_plan(*read_inputs(written))
    placement = make_placement(made, compute_option_costs(*read_inputs(written)))
    found = summarize_ranks(made, placement)
    assert [each.rank for each in found] == [0, 1, 2, 3] == [int(line[0]) for line in shown]
    for line, each in zip(shown, found, strict=True):
        assert line[1:] == [
            f"{each.rows:,}", f"{each.memory_bytes['host'] / 2**20:,.1f}", f"{each.ms:.4g}"
        ]  # fmt: skip
    assert max(each.ms for each in found) == pytest.approx(made.step_ms, rel=1e-4)
    copies = {
        name: made.ranks if each.kind == "data_parallel" else each.columns
        for name, each in made.tables.items()
    }
    expected = sum(copies[name] * each.rows for name, each in made.tables.items())
    assert sum(each.rows for each in found) == pytest.approx(expected, abs=4)


def test_only_the_slowest_of_many_ranks_are_printed(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = NODES | {"nodes": 6}
    written.write_text(json.dumps({"topology": nodes, "samples": 256, "tables": tables()}))
    assert main(["plan", "make", str(written), "--output", str(written.with_name("p"))]) == 0
    out = capsys.readouterr().out
    assert "the 8 slowest of 12 ranks; sparring plan report shows all" in out
    assert len(out.splitlines()) == 1 + 8 + 1


def test_a_report_shows_every_table_and_loads_nothing(
    written: Path, tmp_path: Path, calibration: Calibration, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, page = written.with_name("plan.yaml"), tmp_path / "new" / "page.html"
    assert main(["plan", "make", str(written), "--output", str(plan)]) == 0
    assert main(["plan", "report", str(plan), str(written), "--output", str(page)]) == 0
    assert "page.html: written" in capsys.readouterr().err
    text = page.read_text()
    made = make_plan(*read_inputs(written))
    for name, table in made.tables.items():
        assert f"<td>{name}</td>" in text
        assert table.because in text
    assert f"gap {made.gap:.2%}" in text
    for word in (
        "Limit of the step", "Load of each rank", "Memory of each rank", "Topology",
        "2, each with 2 ranks", "<b>node 1</b><i>2</i><i>3</i>",
    ):  # fmt: skip
        assert word in text
    assert text.count("<rect") == 6 + 4 + 4  # resources, loads, memories
    assert "<script" not in text
    assert "src=" not in text
    assert "@import" not in text
    assert render_report(made, *read_inputs(written)) == text
    other = with_ranks(read_inputs(written)[0], 8)
    with pytest.raises(ConfigError, match="the plan is for 4 ranks, but the topology has 8"):
        render_report(made, other, calibration)
    with pytest.raises(DataError, match=r"cannot write the report: .*choose another file"):
        write_report(plan / "page.html", made, *read_inputs(written))


def test_names_of_tables_are_text_in_a_report(calibration: Calibration) -> None:
    table = {"<b>x</b>": {"dim": 8, "features": {"f": {"ids": 1}}, "rows": 100}}
    inputs = inputs_of(tables=table)
    text = render_report(make_plan(inputs, calibration), inputs, calibration)
    assert "<b>x</b>" not in text
    assert "&lt;b&gt;x&lt;/b&gt;" in text


def test_unequal_ranks_are_counted_by_their_node(place: Place, calibration: Calibration) -> None:
    inputs = inputs_of()
    sent = compute_traffic(place(inputs, users=0, films=0, country=0), inputs, calibration).sent
    # Rank 0 answers two ranks of the other node and one of its own; rank 1 requests none far away.
    headers = 3 * 512
    assert sent.far[1] == 2 * headers
    assert sent.far[0] == 2 * headers + sent.rows[0] * 2 // 3
    assert np.all(sent.far[2:] == sent.total[2:] - headers)


def test_the_best_plans_are_ranked_by_their_simulated_steps(
    calibration: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = inputs_of(kinds=["row_wise", "table_wise", "data_parallel"], samples=1024)
    plan = make_plan(inputs, calibration)
    options = compute_option_costs(inputs, calibration)
    best = make_placement(plan, options)
    assert plan.simulated_ms == pytest.approx(
        simulate_plan(best, inputs, calibration).seconds * 1e3, rel=1e-5
    )
    others = list_neighbors(best)
    assert all(each.fits and each.seconds <= best.seconds * 1.01 for each in others)
    assert len({tuple(each.option) for each in (best, *others)}) == len(others) + 1
    # A plan with an equal sum of times and a shorter replay is selected.
    quicker = best.copy()
    times = {id(best): 2.0, id(quicker): 1.0}

    def replayed(placement: Placement, *_: Any) -> PlanStep:
        step = simulate_plan(best, inputs, calibration)
        return replace(step, seconds=times[id(placement)])

    monkeypatch.setattr(ranking, "replay_step", replayed)
    found, step = rank_again(best, lambda: [quicker], inputs, calibration)
    assert found is quicker
    assert step is not None
    assert step.seconds == 1.0
    assert rank_again(quicker, lambda: [best], inputs, calibration)[0] is quicker
    monkeypatch.setattr(ranking, "replay_step", lambda *_: None)
    assert rank_again(best, lambda: [quicker], inputs, calibration) == (best, None)


def test_pinned_tables_are_kept_when_plans_are_ranked_again(calibration: Calibration) -> None:
    inputs = inputs_of(kinds=["row_wise", "table_wise", "data_parallel"])
    best = make_placement(make_plan(inputs, calibration), compute_option_costs(inputs, calibration))
    everything = range(len(best.option))
    assert list_neighbors(best, everything) == []
    for each in list_neighbors(best, everything[:2]):
        assert list(each.option[:2]) == list(best.option[:2])
