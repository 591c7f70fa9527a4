"""Plans many synthetic tables: time to plan, and gap to the proven bound.

``python -m benchmarks.planning [--tables 1000] [--ranks 128] [--seed 0] [--memory-factor 1.5]
[--without row_wise …]``. Tables have 1e3 to 5e7 rows, log-uniformly distributed, dims of 16 to 256 and
1 to 50 ids per sample. Ranks have the memory that all rows need, times the factor, and 24 GiB for the
batches of each thousand tables. Both transfers and all kinds except ``--without`` are allowed. By default
row_wise is excluded, because it loads all ranks equally and would leave nothing to plan. Times are
processor times, so that other processes do not count.
"""

from __future__ import annotations

import argparse
import time
from importlib.resources import as_file, files

import numpy as np

from sparring_cli import read_document
from sparring_plan.planning.inputs import KINDS, Calibration, PlanInputs
from sparring_plan.planning.planner import make_plan

RANKS_PER_NODE = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory-factor", type=float, default=1.5)
    parser.add_argument("--without", nargs="*", default=["row_wise"], choices=KINDS)
    arguments = parser.parse_args()
    with as_file(files("sparring_plan.planning") / "calibration.yaml") as default:
        calibration = read_document(default).as_model(Calibration)
    inputs = synthetic(arguments.tables, arguments.ranks, arguments.seed, arguments.memory_factor)
    kinds = sorted(set(KINDS) - set(arguments.without))
    inputs = inputs.model_copy(update={"kinds": kinds})
    begin = time.process_time()
    plan = make_plan(inputs, calibration)
    seconds = time.process_time() - begin
    taken = [table.kind for table in plan.tables.values()]
    print(
        f"{arguments.tables} tables, {arguments.ranks} ranks, seed {arguments.seed}: {seconds:.2f} s, "
        f"step {plan.step_ms:g} ms, bound {plan.bound_ms:g} ms by {plan.solver}, gap {plan.gap:.2%}; "
        + ", ".join(f"{taken.count(kind)} {kind}" for kind in sorted(set(taken)))
    )


def synthetic(num_tables: int, num_ranks: int, seed: int, memory_factor: float) -> PlanInputs:
    """Creates tables of random sizes, and nodes of 8 ranks."""
    random = np.random.default_rng(seed)
    tables = {}
    total = 0.0
    for index in range(num_tables):
        rows, dim = int(10 ** random.uniform(3, 7.7)), int(2 ** random.integers(4, 9))
        total += rows * (dim * 8 + 8) * 1.05
        features = {"ids": {"ids": float(round(10 ** random.uniform(0, 1.7)))}}
        tables[f"table_{index:04}"] = {
            "dim": dim, "skew": float(random.uniform(0.6, 1.3)), "method": "adagrad",
            "rows": rows, "features": features,
        }  # fmt: skip
    within = min(RANKS_PER_NODE, num_ranks)
    topology = {
        "nodes": num_ranks // within,
        "ranks_per_node": within,
        "memory": {
            "host": int(total / num_ranks * memory_factor)
            + (24 << 30) * max(num_tables, 1000) // 1000
        },
        "near": {"gbit": 400},
        "far": {"gbit": 400, "latency_us": 10},
        "message_us": 5,
    }
    return PlanInputs.model_validate(
        {
            "topology": topology, "samples": 1024, "tables": tables,
            "transfers": ["rows", "pooled"],
        }
    )  # fmt: skip


if __name__ == "__main__":
    main()
