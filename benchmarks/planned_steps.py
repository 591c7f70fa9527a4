"""`python -m benchmarks.planned_steps [--rounds N]`: compares predictions of plans with two real ranks.

Sixteen plans of the same tables run alternately on two processes of this machine. Predicted bytes and
messages are compared with the exchange's counters, and predicted times with measured ones, as ratios to
row_wise. The same ranks measure the costs for the simulation in the run, as `sparring plan calibrate`
does. The agreement of the even rounds with the odd ones is printed, too, because a prediction cannot be
expected to agree better with a measurement than two measurements agree.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from statistics import median
from typing import Any

import numpy as np

from benchmarks.rank_processes import run_ranks
from sparring_cli import read_document
from sparring_plan.planning.costs.costs import compute_option_costs
from sparring_plan.planning.inputs import Calibration, Link, PlanInputs
from sparring_plan.planning.plan import Plan, TablePlan
from sparring_plan.planning.planned_placement import make_placement
from sparring_plan.planning.planner import make_plan
from sparring_plan.simulation.plan_step import simulate_plan
from sparring_plan.simulation.traffic import compute_traffic

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
KEEPS_MEMORY = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(1 << 32))
"""Settings of glibc. By default it returns arrays of megabytes to the system and allocates them again, in
every step of some plans or ranks: page faults then take up to half of the step."""
TAU, RATIO_ERROR, BYTES_ERROR = 0.6, 0.3, 0.01
"""Minimum agreement of orders; maximum error of a ratio, and of bytes or messages of a rank."""


def _plan_choices() -> dict[str, dict[str, Any]]:
    """Returns plan → table → kind and ranks. An integer means table_wise on that rank."""
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
    """Predicted and measured steps of one plan.

    `predicted_sent` and `measured_sent` are ``(ranks, 5)``: bytes of headers, keys, rows and gradients,
    and the number of messages.
    """

    name: str
    predicted_seconds: float
    measured_seconds: list[float]
    processor_seconds: list[float]
    """Processor time of the slowest rank, which excludes other processes of the machine."""
    predicted_sent: Any
    measured_sent: Any


def inputs_of(ranks: int = RANKS) -> PlanInputs:
    """Returns the tables and some ranks of one node."""
    return PlanInputs.model_validate(
        {
            "topology": {"nodes": 1, "ranks_per_node": ranks, "memory": {"host": 1 << 34}},
            "samples": SAMPLES,
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


def _calibration() -> Calibration:
    """Returns the calibration of the package. The plans fix the kinds, so its costs choose nothing."""
    with as_file(files("sparring_plan.planning") / "calibration.yaml") as default:
        return read_document(default).as_model(Calibration)


def _edited(plan: Plan, choices: dict[str, Any]) -> Plan:
    def changed(name: str, table: TablePlan) -> TablePlan:
        choice = choices[name]
        found = ("table_wise", [choice], 1, "rows") if isinstance(choice, int) else choice
        changes = dict(zip(("kind", "ranks", "columns", "transfer"), found, strict=True))
        return table.model_copy(update=changes | {"next_best": None})

    tables = {name: changed(name, each) for name, each in plan.tables.items()}
    return plan.model_copy(update={"tables": tables})


def measure_plans(
    rounds: int, collective: str = "mpi", ranks: int = RANKS
) -> tuple[list[Prediction], dict[str, Any]]:
    """Predicts and measures all plans; returns also the measured costs."""
    inputs = inputs_of(ranks)
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
    measured = run_ranks(collective, ranks, "benchmarks.rank_plans", given, KEEPS_MEMORY)
    return predict(plans, inputs, measured), measured["costs"]


def predict(
    plans: dict[str, Plan], inputs: PlanInputs, measured: dict[str, Any]
) -> list[Prediction]:
    """Predicts plans and their steps from costs that the ranks measured."""
    inputs, calibration = _with_costs(inputs, measured["costs"])
    options = compute_option_costs(inputs, calibration)
    found = []
    for name, plan in plans.items():
        placement = make_placement(plan, options)
        sent = compute_traffic(placement, inputs, calibration).sent
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
    return found


def _with_costs(inputs: PlanInputs, costs: dict[str, Any]) -> tuple[PlanInputs, Calibration]:
    """Returns the inputs with the costs that the ranks measured."""
    # One message in each direction: a rank sends and receives on one core.
    per_byte = max(costs["large"] - costs["small"], 1e-9) / 2 / (1 << 20)
    near = Link(gbit=8e-9 / per_byte, latency_us=0)
    topology = inputs.topology.model_copy(
        update={"near": near, "message_us": costs["small"] / 2 * 1e6}
    )
    calibration = Calibration.model_validate(costs["calibration"])
    return inputs.model_copy(update={"topology": topology}), calibration


def kendall(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns Kendall's τ-a of two orders: 1 if equal, -1 if reversed."""
    pairs = [(i, j) for i in range(len(one)) for j in range(i)]
    signs = [np.sign(one[i] - one[j]) * np.sign(other[i] - other[j]) for i, j in pairs]
    return float(sum(signs)) / max(len(pairs), 1)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of two lists of ratios to row_wise."""

    tau: float
    off: float
    """Maximum relative difference."""

    def __str__(self) -> str:
        return f"Kendall's tau {self.tau:.2f}, ratios within {self.off:.0%}"


def agreement(one: Sequence[float], other: Sequence[float]) -> Agreement:
    off = max(abs(mine / theirs - 1) for mine, theirs in zip(one, other, strict=True))
    return Agreement(kendall(one, other), off)


def ratios(found: Sequence[Prediction], what: str, rounds: slice = slice(None)) -> list[float]:
    """Returns the median ratio to row_wise of each plan, computed per round."""
    plain = getattr(found[0], what)[rounds]
    return [
        median(mine / other for mine, other in zip(getattr(each, what)[rounds], plain, strict=True))
        for each in found
    ]


def _printed(found: Sequence[Prediction]) -> tuple[list[Agreement], float]:
    """Formats a line per plan, and the agreements by time and by processor time, with the maximum
    error of bytes or messages of a rank."""
    taken, busy = ratios(found, "measured_seconds"), ratios(found, "processor_seconds")
    predicted = [each.predicted_seconds / found[0].predicted_seconds for each in found]
    worst = 0.0
    for each, ratio, of_processor, expected in zip(found, taken, busy, predicted, strict=True):
        sent, told = each.measured_sent, each.predicted_sent
        totals = (
            np.stack([sent[:, :4].sum(1), sent[:, 4]]),
            np.stack([told[:, :4].sum(1), told[:, 4]]),
        )
        off = float(np.abs(totals[1] / totals[0] - 1).max())
        worst = max(worst, off)
        print(
            f"{each.name:29} ms: processor {median(each.processor_seconds) * 1e3:.1f}, time "
            f"{median(each.measured_seconds) * 1e3:.1f} ({min(each.measured_seconds) * 1e3:.1f}-"
            f"{max(each.measured_seconds) * 1e3:.1f}), predicted {each.predicted_seconds * 1e3:.1f}; "
            f"ratio: processor {of_processor:.2f}, time {ratio:.2f}, predicted {expected:.2f} "
            f"({expected / of_processor - 1:+.0%}, {expected / ratio - 1:+.0%}); "
            f"{sent[:, :4].sum() / 1e6:.2f} MB, predicted {told[:, :4].sum() / 1e6:.2f}; messages "
            f"{sent[0, 4]:g}, {told[0, 4]:g}; within {off:.2%}"
        )
    agreed = []
    for name, what, found_ratios in (
        ("processor time", "processor_seconds", busy),
        ("time", "measured_seconds", taken),
    ):
        even, odd = (ratios(found, what, slice(first, None, 2)) for first in (0, 1))
        agreed.append(agreement(predicted, found_ratios))
        print(f"{name}: {agreed[-1]}; one half of the rounds and the other: {agreement(even, odd)}")
    print(f"bytes and messages of a rank within {worst:.2%}")
    return agreed, worst


def main(arguments: Sequence[str]) -> int:
    """Prints the lines of all plans; returns 1 if an error of two ranks exceeds its limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planned_steps")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--collective", default="mpi", choices=["mpi", "torch"])
    parser.add_argument("--two-only", action="store_true", help="skip four ranks")
    given = parser.parse_args(arguments)
    found, costs = measure_plans(given.rounds, given.collective)
    print("costs, as measured:", costs)
    agreed, worst_bytes = _printed(found)
    if not given.two_only:
        print(f"four ranks on {os.cpu_count()} cores, reported only:")
        _printed(measure_plans(max(given.rounds // 2, 2), given.collective, ranks=4)[0])
    is_near = all(each.tau >= TAU and each.off <= RATIO_ERROR for each in agreed)
    return 0 if is_near and worst_bytes <= BYTES_ERROR else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
