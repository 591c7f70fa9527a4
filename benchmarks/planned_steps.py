"""`python -m benchmarks.planned_steps [--case NAME] [--collective NAME] [--rounds N]`: predicted steps.

Plans of the same tables run alternately on two processes of this machine. Predicted times are compared
with measured ones, as ratios to row_wise; predicted bytes and messages with the exchange's counters; and
``plan="auto"`` with row_wise. The costs are measured before, by `sparring plan calibrate` on two ranks.
The agreement of the even rounds with the odd ones is printed, too, because a prediction cannot be
expected to agree better with a measurement than two measurements agree. The cases:

- `plans`: sixteen plans of five tables
- `long`: bags of 40 ids, which owners should pool
- `dlrm`: the DLRM of `benchmarks.rank_dlrm`, including its dense layers
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.rank_processes import run_ranks
from sparring.contracts import (
    FeatureWorkload,
    PlanRequest,
    ShardingPlan,
    TableConfig,
    TableWorkload,
)
from sparring_plan.planning.automatic import CALIBRATION_VARIABLE, plan_from_request
from sparring_plan.planning.calibration.calibrate import write_calibration
from sparring_plan.planning.costs.costs import compute_option_costs
from sparring_plan.planning.inputs import Calibration, PlanInputs, with_machine
from sparring_plan.planning.plan import Plan, TablePlan
from sparring_plan.planning.planned_placement import make_placement
from sparring_plan.planning.planner import make_plan
from sparring_plan.simulation.plan_step import simulate_plan
from sparring_plan.simulation.traffic import compute_traffic

__all__ = ["Prediction", "kendall", "measure_plans"]

RANKS, CHUNK_ROWS, IN_FLIGHT = 2, 65_536, 8
PLAIN = "row_wise"
Choices = Mapping[str, Mapping[str, Any]]
"""Plan → table → kind, ranks, columns and transfer. An integer means table_wise on that rank."""
TABLES: dict[str, dict[str, Any]] = {
    "big": {"dim": 64, "rows": 600_000, "ids": 3, "skew": 0.0},
    "wide": {"dim": 128, "rows": 300_000, "ids": 1, "skew": 0.0},
    "long": {"dim": 32, "rows": 400_000, "ids": 4, "skew": 0.8},
    "narrow": {"dim": 16, "rows": 500_000, "ids": 2, "skew": 0.0},
    "small": {"dim": 32, "rows": 5_000, "ids": 2, "skew": 0.0},
}
LONG_TABLES = {
    f"t{each}": {"dim": 64, "rows": 200_000, "ids": 40, "skew": 0.0} for each in range(4)
}
DLRM_TABLES = {
    f"t{each}": {"dim": 16, "rows": 100_000, "ids": 1, "skew": 1.2} for each in range(26)
}
ROW, ALL = (PLAIN, "all", 1, "rows"), ("data_parallel", "all", 1, "rows")
POOLED, BLOCKS = (PLAIN, "all", 1, "pooled"), ("column_wise", [0, 1], 2, "rows")
TAU, RATIO_ERROR, BYTES_ERROR, AUTO_BAR = 0.6, 0.3, 0.01, 1.05
"""Minimum agreement of orders; maximum error of a ratio, and of bytes or messages of a rank; maximum step
of ``auto`` relative to row_wise."""
TOLERANCE = 1e-4
KEEPS_MEMORY = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(1 << 32))
"""Settings of glibc. By default it returns arrays of megabytes to the system and allocates them again, in
every step of some plans or ranks: page faults then take up to half of the step."""
TAU, RATIO_ERROR, BYTES_ERROR = 0.6, 0.3, 0.01
"""Minimum agreement of orders; maximum error of a ratio, and of bytes or messages of a rank."""


def _sixteen_plans() -> Choices:
    rows, all_ = dict.fromkeys(TABLES, ROW), dict.fromkeys(TABLES, ALL)
    return {
        PLAIN: rows,
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


def _few_plans(tables: Mapping[str, Any]) -> Choices:
    rows, half = dict.fromkeys(tables, ROW), list(tables)[::2]
    by_turns = {name: index % RANKS for index, name in enumerate(tables)}
    pooled = {name: ("table_wise", [rank], 1, "pooled") for name, rank in by_turns.items()}
    return {
        PLAIN: rows,
        "table_wise by turns": by_turns,
        "all pooled": dict.fromkeys(tables, POOLED),
        "pooled, table_wise by turns": pooled,
        "all replicated": dict.fromkeys(tables, ALL),
        "half of the tables replicated": {**rows, **dict.fromkeys(half, ALL)},
    }


@dataclass(frozen=True, slots=True)
class Case:
    """Tables and their plans.

    Args:
        has_dense: Whether the steps contain the dense layers of the DLRM.
    """

    tables: dict[str, dict[str, Any]]
    samples: int
    method: str
    choices: Choices
    has_dense: bool = False


CASES: dict[str, Callable[[], Case]] = {
    "plans": lambda: Case(TABLES, 8_192, "sgd", _sixteen_plans()),
    "long": lambda: Case(LONG_TABLES, 1_024, "sgd", _few_plans(LONG_TABLES)),
    "dlrm": lambda: Case(
        DLRM_TABLES, 4_096, "rowwise_adagrad", _few_plans(DLRM_TABLES), has_dense=True
    ),
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
    processor_seconds: list[float] | None
    """Processor time of the slowest rank, which excludes other processes of the machine; None for the
    DLRM."""
    predicted_sent: Any
    measured_sent: Any


def _inputs_of(case: Case, ranks: int) -> PlanInputs:
    """Returns the tables and some ranks of one node."""
    return PlanInputs.model_validate(
        {
            "topology": {"nodes": 1, "ranks_per_node": ranks, "memory": {"host": 1 << 34}},
            "samples": case.samples,
            "kinds": ["row_wise", "data_parallel", "table_wise", "column_wise"],
            "transfers": ["rows", "pooled"],
            "tables": {
                name: {
                    "dim": each["dim"],
                    "rows": each["rows"],
                    "skew": each["skew"],
                    "method": case.method,
                    "features": {"f": {"ids": each["ids"]}},
                }
                for name, each in case.tables.items()
            },
        }
    )


def _edited(plan: Plan, choices: Mapping[str, Any]) -> Plan:
    def changed(name: str, table: TablePlan) -> TablePlan:
        choice = choices[name]
        found = ("table_wise", [choice], 1, "rows") if isinstance(choice, int) else choice
        changes = dict(zip(("kind", "ranks", "columns", "transfer"), found, strict=True))
        return table.model_copy(update=changes | {"next_best": None})

    tables = {name: changed(name, each) for name, each in plan.tables.items()}
    return plan.model_copy(update={"tables": tables})


def _automatic(case: Case, ranks: int, calibration: Calibration | None) -> ShardingPlan:
    """Returns the plan of ``plan="auto"`` with a calibration, or with the default costs."""
    couples_columns = case.method == "rowwise_adagrad"
    tables = tuple(
        TableWorkload(
            TableConfig(name, each["dim"]),
            (FeatureWorkload("sum", float(each["ids"])),),
            each["rows"],
            case.method,
            supports_column_split=not couples_columns,
            supports_pooling=True,
        )
        for name, each in case.tables.items()
    )
    request = PlanRequest(tables, ranks, ranks, samples=case.samples)
    os.environ.pop(CALIBRATION_VARIABLE, None)
    if calibration is None:
        return plan_from_request(request).sharding
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calibration.yaml"
        write_calibration(calibration, path)
        os.environ[CALIBRATION_VARIABLE] = str(path)
        try:
            return plan_from_request(request).sharding
        finally:
            del os.environ[CALIBRATION_VARIABLE]


def _choices_of(sharding: ShardingPlan) -> dict[str, Any]:
    found = {}
    for name in sharding.tables:
        each = sharding.sharding_of(name)
        assert each is not None
        found[name] = (each.kind, list(each.ranks) or "all", each.columns or 1, each.transfer)
    return found


def _launcher(collective: str) -> str:
    return "torch" if "torch" in collective else "mpi"


def measure_costs(collective: str, ranks: int = RANKS) -> Calibration:
    """Measures this machine with some ranks, as `sparring plan calibrate` does."""
    # `auto` uses shared memory within a host unless it is not installed.
    variables = dict(KEEPS_MEMORY)
    if "shm" not in collective:
        variables["SPARRING_PLUGINS_DISABLE"] = "shm"
    launcher = _launcher(collective)
    measured = run_ranks(launcher, ranks, "benchmarks.rank_plans", {}, variables)
    return Calibration.model_validate(measured)


def measure_plans(
    case: Case, calibration: Calibration, rounds: int, collective: str, ranks: int = RANKS
) -> tuple[list[Prediction], dict[str, str]]:
    """Predicts and measures all plans; returns also the plans of ``auto``: with the measured calibration,
    and with the default costs."""
    if not case.has_dense:
        sizes = {"chunk_rows": CHUNK_ROWS, "chunks_in_flight": IN_FLIGHT}
        exchange = calibration.exchange.model_copy(update=sizes)
        calibration = calibration.model_copy(update={"exchange": exchange})
    inputs = with_machine(_inputs_of(case, ranks), calibration.machine)
    plain = make_plan(inputs, calibration)
    plans = {name: _edited(plain, choices) for name, choices in case.choices.items()}
    automatic = {}
    for what, costs in (("calibrated", calibration), ("default costs", None)):
        sharding = _automatic(case, ranks, costs)
        same = [name for name, plan in plans.items() if plan.sharding(ranks) == sharding]
        automatic[what] = same[0] if same else f"auto, {what}"
        if not same:
            plans[automatic[what]] = _edited(plain, _choices_of(sharding))
    given = {
        "collective": collective,
        "rounds": rounds,
        "plans": {
            name: {table: asdict(each) for table, each in plan.sharding(ranks).tables.items()}
            for name, plan in plans.items()
        },
    }
    if case.has_dense:
        given |= {"num_rows": case.tables["t0"]["rows"], "num_samples": case.samples}
        module = "benchmarks.rank_dlrm"
    else:
        given |= {
            "tables": case.tables,
            "samples": case.samples,
            "method": case.method,
            "chunk_rows": CHUNK_ROWS,
            "chunks_in_flight": IN_FLIGHT,
        }
        module = "benchmarks.rank_plans"
    measured = run_ranks(_launcher(collective), ranks, module, given, KEEPS_MEMORY)
    for losses in measured.get("losses", ()):
        if max(losses) - min(losses) > TOLERANCE:
            raise AssertionError(f"the losses of the plans differ: {measured['losses']}")
    return _predict(plans, inputs, calibration, measured), automatic


def _predict(
    plans: dict[str, Plan], inputs: PlanInputs, calibration: Calibration, measured: dict[str, Any]
) -> list[Prediction]:
    options = compute_option_costs(inputs, calibration)
    dense = median(measured["seconds"].get("dense", [0.0]))
    found = []
    for name, plan in plans.items():
        placement = make_placement(plan, options)
        sent = compute_traffic(placement, inputs, calibration).sent
        found.append(
            Prediction(
                name,
                simulate_plan(placement, inputs, calibration).seconds + dense,
                measured["seconds"][name],
                measured.get("processor", {}).get(name),
                np.stack([sent.headers, sent.keys, sent.rows, sent.gradients, sent.messages], 1),
                np.asarray(measured["sent"][name]) if "sent" in measured else None,
            )
        )
    return found


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


def _printed(found: Sequence[Prediction], automatic: Mapping[str, str]) -> bool:
    """Prints a line per plan, the agreement of predictions with times and processor times, and the steps
    of ``auto``. Returns whether all are within their limits."""
    what = ["measured_seconds", "processor_seconds"][: 1 + (found[0].processor_seconds is not None)]
    taken = {each: ratios(found, each) for each in what}
    predicted = [each.predicted_seconds / found[0].predicted_seconds for each in found]
    print(
        "| plan | predicted ms | ms | processor ms | predicted ratio | ratio | of processor time |"
    )
    print("|---|---|---|---|---|---|---|")
    worst = 0.0
    for index, each in enumerate(found):
        measured = taken["measured_seconds"][index]
        busy = ["", ""]
        if each.processor_seconds is not None:
            busy = [f"{median(each.processor_seconds) * 1e3:.1f}", f"{taken[what[1]][index]:.2f}"]
        print(
            f"| {each.name} | {each.predicted_seconds * 1e3:.1f} | "
            f"{median(each.measured_seconds) * 1e3:.1f} | {busy[0]} | {predicted[index]:.2f} | "
            f"{measured:.2f} | {busy[1]} |"
        )
        if each.measured_sent is not None:
            sent, told = each.measured_sent, each.predicted_sent
            totals = (
                np.stack([sent[:, :4].sum(1), sent[:, 4]]),
                np.stack([told[:, :4].sum(1), told[:, 4]]),
            )
            worst = max(worst, float(np.abs(totals[1] / totals[0] - 1).max()))
    is_good = worst <= BYTES_ERROR
    for name, found_ratios in taken.items():
        even, odd = (ratios(found, name, slice(first, None, 2)) for first in (0, 1))
        agreed = agreement(predicted, found_ratios)
        is_good &= agreed.tau >= TAU and agreed.off <= RATIO_ERROR
        print(f"{name}: {agreed}; one half of the rounds and the other: {agreement(even, odd)}")
    print(f"bytes and messages of a rank within {worst:.2%}")
    names = [each.name for each in found]
    for costs, chosen in automatic.items():
        ratio = taken["measured_seconds"][names.index(chosen)]
        is_good &= ratio <= AUTO_BAR
        print(f"auto, {costs}: {chosen}, {ratio:.2f} x row_wise")
    return is_good


def main(arguments: Sequence[str]) -> int:
    """Prints the lines of all plans; returns 1 if an error of two ranks exceeds its limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planned_steps")
    parser.add_argument("--case", default="plans", choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--collective", default="mpi", choices=["mpi", "torch", "shm", "shm+torch"])
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--calibration", type=Path, help="JSON file; it is written if missing")
    given = parser.parse_args(arguments)
    if given.calibration is not None and given.calibration.exists():
        calibration = Calibration.model_validate_json(given.calibration.read_text())
    else:
        calibration = measure_costs(given.collective, given.ranks)
        if given.calibration is not None:
            given.calibration.write_text(calibration.model_dump_json())
    print("costs:", calibration.exchange.steps, calibration.machine)
    case = CASES[given.case]()
    found = measure_plans(case, calibration, given.rounds, given.collective, given.ranks)
    return 0 if _printed(*found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
