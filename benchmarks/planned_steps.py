"""`python -m benchmarks.planned_steps [--rounds N]`: predictions of plans, compared with two real ranks.

A dozen plans of the same tables run in turn on two processes of this machine. Bytes and messages are
compared with the exchange's counters, and times, as ratios to row_wise, with simulated ones. The costs
that the simulation needs are measured by the same ranks in the same run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from benchmarks.rank_processes import run_ranks
from sparring_plan.planning.costs import option_costs
from sparring_plan.planning.inputs import Calibration, Link, PlanInputs
from sparring_plan.planning.plan import Plan, TablePlan
from sparring_plan.planning.planner import make_plan, placement_of
from sparring_plan.planning.unique_keys import unique_keys
from sparring_plan.simulation.plan_step import simulate_plan
from sparring_plan.simulation.traffic import traffic_of

__all__ = ["Prediction", "kendall", "measure_plans"]

RANKS, SAMPLES, METHOD, CHUNK_ROWS, IN_FLIGHT = 2, 8_192, "sgd", 65_536, 8
TABLES: dict[str, dict[str, Any]] = {
    "big": {"dim": 64, "rows": 600_000, "ids": 3, "skew": 0.0},
    "wide": {"dim": 128, "rows": 300_000, "ids": 1, "skew": 0.0},
    "long": {"dim": 32, "rows": 400_000, "ids": 4, "skew": 0.8},
    "narrow": {"dim": 16, "rows": 500_000, "ids": 2, "skew": 0.0},
    "small": {"dim": 32, "rows": 5_000, "ids": 2, "skew": 0.0},
}
ROW, ALL = ("row_wise", "all", 1, "rows"), ("data_parallel", "all", 1, "rows")
POOLED, BLOCKS = ("row_wise", "all", 1, "pooled"), ("column_wise", [0, 1], 2, "rows")
TAU, RATIO_ERROR, BYTES_ERROR = 0.6, 0.3, 0.01
"""Least agreement of orders; the most that a ratio, and bytes or messages of a rank, may be off."""


def _plan_choices() -> dict[str, dict[str, Any]]:
    """Plan → table → kind and ranks. Integers: table_wise on that rank."""
    rows, all_ = dict.fromkeys(TABLES, ROW), dict.fromkeys(TABLES, ALL)
    return {
        "row_wise": rows,
        "balanced": {"big": 0, "wide": 1, "long": 1, "narrow": 1, "small": 0},
        "by turns": {"big": 0, "wide": 1, "long": 0, "narrow": 1, "small": 0},
        "all on one rank": dict.fromkeys(TABLES, 0),
        "all but one on one rank": {**dict.fromkeys(TABLES, 0), "wide": ROW},
        "big on one rank": {**rows, "big": 0},
        "big, wide on one rank": {**rows, "big": 0, "wide": 0},
        "narrow on one rank": {**rows, "narrow": 1},
        "small replicated": {**rows, "small": ALL},
        "big replicated": {**rows, "big": ALL},
        "all replicated": all_,
        "big on one, others replicated": {**all_, "big": 0},
        "all pooled": dict.fromkeys(TABLES, POOLED),
        "long pooled on one rank": {**rows, "long": ("table_wise", [0], 1, "pooled")},
        "wide in column blocks": {**rows, "wide": BLOCKS},
        "wide, big in column blocks": {**rows, "wide": BLOCKS, "big": BLOCKS},
    }


@dataclass(frozen=True, slots=True)
class Prediction:
    """One plan. Bytes are headers, keys, rows and gradients; then messages; `(ranks, 5)` each."""

    name: str
    predicted_seconds: float
    measured_seconds: list[float]
    processor_seconds: list[float]
    """Of the slowest rank, too: what else the machine does is not in it."""
    predicted_sent: Any
    measured_sent: Any


def inputs_of(calibration: str | None = None) -> PlanInputs:
    """The tables and two ranks of one node."""
    return PlanInputs.model_validate(
        {
            "topology": {"nodes": 1, "ranks_per_node": RANKS, "memory": {"host": 1 << 34}},
            "samples": SAMPLES,
            "calibration": calibration,
            "kinds": ["row_wise", "data_parallel", "table_wise", "column_wise"],
            "transfers": ["rows", "pooled"],
            "tables": {
                name: {
                    "dim": each["dim"],
                    "rows": each["rows"],
                    "skew": each["skew"],
                    "method": METHOD,
                    "features": {"f": {"ids": each["ids"]}},
                }
                for name, each in TABLES.items()
            },
        }
    )


def _calibration(costs: dict[str, Any] | None = None) -> Calibration:
    storage = {
        "memory": "host", "find_ns": 100, "find_ns_per_byte": 0.05, "update_ns": 100,
        "update_ns_per_element": 0.5, "key_bytes": 8, "overhead": 1.05,
    }  # fmt: skip
    exchange = {
        "memory": "host", "add_ns": 100, "pool_ns_per_byte": 0.1, "chunk_rows": CHUNK_ROWS,
        "chunks_in_flight": IN_FLIGHT,
    }  # fmt: skip
    if costs is not None:
        dims = np.asarray([each["dim"] for each in TABLES.values()], np.float64)
        slope, rest = _line(dims * 4, list(costs["find"].values()))
        storage |= {"find_ns": rest * 1e9, "find_ns_per_byte": slope * 1e9}
        slope, rest = _line(dims, list(costs["update"].values()))
        storage |= {"update_ns": rest * 1e9, "update_ns_per_element": slope * 1e9}
        exchange["add_ns"] = float(np.mean(list(costs["add"].values()))) * 1e9
    return Calibration.model_validate(
        {"name": "measured", "storages": {"hkv": storage}, "exchange": exchange}
    )


def _line(x: Any, y: Sequence[float]) -> tuple[float, float]:
    """Slope and value at 0, neither under 0."""
    slope = max(float(np.polyfit(x, y, 1)[0]), 0.0)
    return slope, max(float(np.mean(y) - slope * np.mean(x)), 0.0)


def _edited(plan: Plan, choices: dict[str, Any]) -> Plan:
    def changed(name: str, table: TablePlan) -> TablePlan:
        choice = choices[name]
        found = ("table_wise", [choice], 1, "rows") if isinstance(choice, int) else choice
        changes = dict(zip(("kind", "ranks", "columns", "transfer"), found, strict=True))
        return table.model_copy(update=changes | {"next_best": None})

    tables = {name: changed(name, each) for name, each in plan.tables.items()}
    return plan.model_copy(update={"tables": tables})


def measure_plans(rounds: int, collective: str = "mpi") -> tuple[list[Prediction], dict[str, Any]]:
    """Predicts and measures all plans; and the costs that were measured."""
    inputs = inputs_of()
    plain = make_plan(inputs, _calibration())
    plans = {name: _edited(plain, choices) for name, choices in _plan_choices().items()}
    given = {
        "collective": collective,
        "tables": TABLES,
        "samples": SAMPLES,
        "method": METHOD,
        "chunk_rows": CHUNK_ROWS,
        "chunks_in_flight": IN_FLIGHT,
        "rounds": rounds,
        "plans": {name: plan.model_dump() for name, plan in plans.items()},
    }
    measured = run_ranks(collective, RANKS, "benchmarks.rank_plans", given)
    inputs, calibration = _with_costs(inputs, measured["costs"])
    options = option_costs(inputs, calibration)
    found = []
    for name, plan in plans.items():
        placement = placement_of(plan, options)
        sent = traffic_of(placement, inputs, calibration).sent
        found.append(
            Prediction(
                name,
                simulate_plan(placement, inputs, calibration, has_one_core=True).seconds,
                measured["seconds"][name],
                measured["processor"][name],
                np.stack([sent.headers, sent.keys, sent.rows, sent.gradients, sent.messages], 1),
                np.asarray(measured["sent"][name]),
            )
        )
    return found, measured["costs"]


def _with_costs(inputs: PlanInputs, costs: dict[str, Any]) -> tuple[PlanInputs, Calibration]:
    """Inputs and costs as the ranks measured them."""
    calibration = _calibration(costs)
    specs = list(inputs.tables.values())
    ids = np.asarray([spec.ids_per_sample for spec in specs]) * inputs.samples
    unique = unique_keys(
        np.asarray([spec.expected_rows for spec in specs], np.float64),
        np.asarray([spec.skew for spec in specs]),
        ids,
    )
    in_storage = sum(
        float(keys) * (costs["find"][name] + costs["update"][name])
        for keys, name in zip(unique, inputs.tables, strict=True)
    )
    moved = sum(float(n) * spec.dim * 4 for n, spec in zip(ids, specs, strict=True))
    # Ids made distinct, rows begun, gradients collected: alike under all plans.
    local = max(costs["one_rank"] - in_storage, 0.0) / moved
    exchange = calibration.exchange.model_copy(update={"pool_ns_per_byte": local * 1e9})
    per_byte = max(costs["large"] - costs["small"], 1e-9) / (1 << 20)
    near = Link(gbit=8e-9 / per_byte, latency_us=0)
    topology = inputs.topology.model_copy(
        update={"near": near, "message_us": costs["small"] / 2 * 1e6}
    )
    return (
        inputs.model_copy(update={"topology": topology}),
        calibration.model_copy(update={"exchange": exchange}),
    )


def kendall(one: Sequence[float], other: Sequence[float]) -> float:
    """Kendall's τ-a of two orders: 1 alike, -1 reversed."""
    pairs = [(i, j) for i in range(len(one)) for j in range(i)]
    signs = [np.sign(one[i] - one[j]) * np.sign(other[i] - other[j]) for i, j in pairs]
    return float(sum(signs)) / max(len(pairs), 1)


def main(arguments: Sequence[str]) -> int:
    """Prints a line for each plan; returns 1 where a prediction is off by more than it may be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planned_steps")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--collective", default="mpi", choices=["mpi", "torch"])
    given = parser.parse_args(arguments)
    found, costs = measure_plans(given.rounds, given.collective)
    plain = found[0]
    print("costs, as measured:", costs)
    ratios, expected, busy = [], [], []
    worst_bytes = worst_ratio = 0.0
    for each in found:
        ratio = median(
            one / other
            for one, other in zip(each.measured_seconds, plain.measured_seconds, strict=True)
        )
        predicted = each.predicted_seconds / plain.predicted_seconds
        error = predicted / ratio - 1
        sent, told = each.measured_sent, each.predicted_sent
        totals = (
            np.stack([sent[:, :4].sum(1), sent[:, 4]]),
            np.stack([told[:, :4].sum(1), told[:, 4]]),
        )
        off = float(np.abs(totals[1] / totals[0] - 1).max())
        worst_bytes, worst_ratio = max(worst_bytes, off), max(worst_ratio, abs(error))
        ratios.append(ratio)
        busy.append(median(each.processor_seconds) / median(plain.processor_seconds))
        expected.append(predicted)
        print(
            f"{each.name:28} step {median(each.measured_seconds) * 1e3:7.2f} ms "
            f"({min(each.measured_seconds) * 1e3:.2f}-{max(each.measured_seconds) * 1e3:.2f}), "
            f"predicted {each.predicted_seconds * 1e3:7.2f}; ratio {ratio:5.2f}, predicted "
            f"{predicted:5.2f} ({error:+.0%}); processor {median(each.processor_seconds) * 1e3:.1f} ms, "
            f"ratio {busy[-1]:.2f} ({predicted / busy[-1] - 1:+.0%}); "
            f"{sent[:, :4].sum() / 1e6:6.2f} MB, predicted "
            f"{told[:, :4].sum() / 1e6:6.2f}; messages {sent[0, 4]:g}, {told[0, 4]:g}; bytes and "
            f"messages of a rank within {off:.2%}"
        )
    tau = kendall(expected, ratios)
    off_busy = max(abs(one / other - 1) for one, other in zip(expected, busy, strict=True))
    print(
        f"processor time: Kendall's tau {kendall(expected, busy):.2f}, ratios within {off_busy:.0%}"
    )
    print(
        f"Kendall's tau {tau:.2f}; ratios within {worst_ratio:.0%}; bytes and messages within "
        f"{worst_bytes:.2%}"
    )
    return 0 if tau >= TAU and worst_ratio <= RATIO_ERROR and worst_bytes <= BYTES_ERROR else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
