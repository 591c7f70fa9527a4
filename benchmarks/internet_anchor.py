"""`python -m benchmarks.internet_anchor [--ids N …]`: one rank of the plan for 10¹¹ ids, at 10⁷ and 10⁸.

Fills a table, steps over batches drawn by Zipf's law, and prints what the plan's costs predict next to
what was measured. The costs are measured first, on a table of 2·10⁶ ids, so that each size is an
extrapolation. Each size runs alone; 10⁸ ids need 6 GB of memory and some minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import StepContainer, hyper_from, resolve_method, update_rows
from sparring.contracts import MethodChoice, Storage, TableConfig
from sparring_plan.planning.inputs import Calibration, PlanInputs, TableSpec, read_inputs
from sparring_plan.simulation.sheet import inputs_for, simulated_plan

__all__ = ["Anchor", "measure_anchor", "measured_costs"]

PLAN = Path(__file__).resolve().parents[1] / "configs/plans/internet.yaml"
SMALL, CHUNK, BATCHES, RUNS = 2_000_000, 1_000_000, 12, 3
SECONDS_ERROR, BYTES_ERROR = 0.3, 0.1

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Anchor:
    """One size. Seconds are of a step, the median of each run."""

    num_ids: int
    predicted_bytes: int
    measured_bytes: int
    predicted_keys: float
    measured_keys: float
    predicted_seconds: float
    measured_seconds: list[float]

    @property
    def bytes_error(self) -> float:
        return self.predicted_bytes / self.measured_bytes - 1

    @property
    def seconds_error(self) -> float:
        return self.predicted_seconds / median(self.measured_seconds) - 1


@dataclass(frozen=True, slots=True)
class _Costs:
    """Seconds of one rank, for the rows of the plan's table."""

    find: float
    update: float
    per_id: float
    """Of a step, apart from finds and updates: ids made distinct, rows begun, gradients collected."""


def zipf(generator: np.random.Generator, skew: float, num_ids: int, count: int) -> Keys:
    """Draws of Zipf's law over `num_ids` ids: of the law over all numbers those that are ids."""
    drawn = np.empty(0, np.int64)
    while len(drawn) < count:
        more = generator.zipf(skew, count)
        drawn = np.concatenate([drawn, more[more <= num_ids]])
    return drawn[:count] - 1


def spread(ids: Keys) -> Keys:
    """Ids to keys all over the range of int64."""
    return ids * np.int64(0x1E3779B97F4A7C15)


def _median(call: Callable[[Any], object], arguments: Sequence[Any]) -> float:
    times = []
    for argument in arguments:
        begin = time.perf_counter()
        call(argument)
        times.append(time.perf_counter() - begin)
    return median(times)


class _Table:
    """A table of one rank, filled, and steps over batches."""

    def __init__(self, spec: TableSpec, num_ids: int, num_draws: int) -> None:
        self.table = TableConfig("everything", spec.dim)
        method = resolve_method(spec.method)
        self.choice = MethodChoice(method, hyper_from(method, {"lr": 0.1}), 1)
        self.container = StepContainer()
        self.container.declare(self.table)
        state = np.zeros(method.state_width(spec.dim), np.float32)
        self.container.set_state("everything", state, spec.method)
        self.storage: Storage = self.container.storage("everything")
        width = self.storage.table.width
        for begin in range(0, num_ids, CHUNK):
            ids = np.arange(begin, min(begin + CHUNK, num_ids), dtype=np.int64)
            self.storage.upsert(spread(ids), np.full((len(ids), width), 0.01, np.float32))
        generator = np.random.default_rng(num_ids)
        self.batches = [
            spread(zipf(generator, spec.skew, num_ids, num_draws)) for _ in range(BATCHES)
        ]

    def step(self, ids: Keys) -> None:
        found = self.container.lookup("everything", ids)
        assert found.shadow_id is not None
        self.container.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
        self.container.apply_methods({"everything": self.choice})

    def costs(self) -> _Costs:
        keys = [np.random.default_rng(0).permutation(np.unique(ids)) for ids in self.batches]
        counts = [len(each) for each in keys]
        dim = self.table.dim
        gradients = np.ones((max(counts), dim), np.float32)
        find = _median(self.storage.find, keys) / median(counts)
        update = _median(
            lambda each: update_rows(self.storage, each, gradients[: len(each)], self.choice), keys
        ) / median(counts)
        step = _median(self.step, self.batches)
        rest = step - (find + update) * median(counts)
        return _Costs(find, update, max(rest, 0.0) / len(self.batches[0]))


def _plan_inputs(num_ids: int) -> tuple[PlanInputs, Calibration]:
    inputs, calibration = read_inputs(PLAN)
    name, spec = next(iter(inputs.tables.items()))
    small = spec.model_copy(update={"rows": num_ids, "growth": None})
    changed = inputs_for(inputs, 1).model_copy(
        update={"tables": {name: TableSpec.model_validate(small.model_dump())}}
    )
    return changed, calibration


def _spec(inputs: PlanInputs) -> TableSpec:
    return next(iter(inputs.tables.values()))


def measured_costs() -> _Costs:
    """Costs of a rank on this machine, on a table of `SMALL` ids."""
    inputs, _ = _plan_inputs(SMALL)
    spec = _spec(inputs)
    table = _Table(spec, SMALL, int(inputs.samples * spec.ids_per_sample))
    try:
        table.costs()
        return table.costs()
    finally:
        table.container.close()


def measure_anchor(num_ids: int, costs: _Costs) -> Anchor:
    """Predicts and measures one size; `RUNS` runs over the same filled table."""
    inputs, calibration = _plan_inputs(num_ids)
    spec = _spec(inputs)
    storage = calibration.storages["hkv"].model_copy(
        update={
            "find_ns": costs.find * 1e9,
            "find_ns_per_byte": 0.0,
            "update_ns": costs.update * 1e9,
            "update_ns_per_element": 0.0,
        }
    )
    exchange = calibration.exchange.model_copy(
        # Nothing is exchanged, so that nothing is added up; the rest is a cost of each id.
        update={"add_ns": 0.0, "pool_ns_per_byte": costs.per_id * 1e9 / (spec.dim * 4)}
    )
    measured = calibration.model_copy(
        update={"name": "measured", "storages": {"hkv": storage}, "exchange": exchange}
    )
    simulated = simulated_plan(inputs, measured)
    draws = int(inputs.samples * spec.ids_per_sample)
    table = _Table(spec, num_ids, draws)
    try:
        _median(table.step, table.batches[:2])
        seconds = [_median(table.step, table.batches) for _ in range(RUNS)]
        return Anchor(
            num_ids,
            simulated.plan.tables["everything"].table_bytes,
            table.storage.memory_bytes,
            float(simulated.step.num_keys),
            float(np.mean([len(np.unique(each)) for each in table.batches])),
            simulated.step.seconds,
            seconds,
        )
    finally:
        table.container.close()


def main(arguments: Sequence[str]) -> int:
    """Prints a line for each size; 1 where a prediction is off by more than it may be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.internet_anchor")
    parser.add_argument("--ids", type=int, nargs="+", default=[10**7])
    parser.add_argument("--output", type=Path, help="a JSON file for the figures")
    given = parser.parse_args(arguments)
    costs = measured_costs()
    print(
        f"costs at {SMALL:,} ids: find {costs.find * 1e9:.0f} ns, update {costs.update * 1e9:.0f} ns, "
        f"an id {costs.per_id * 1e9:.0f} ns"
    )
    anchors = [measure_anchor(num_ids, costs) for num_ids in given.ids]
    for each in anchors:
        print(
            f"{each.num_ids:>13,} ids: {each.measured_bytes / 1e9:.3f} GB, predicted "
            f"{each.predicted_bytes / 1e9:.3f} ({each.bytes_error:+.1%}); distinct keys of a batch "
            f"{each.measured_keys:,.0f}, predicted {each.predicted_keys:,.0f}; step "
            f"{median(each.measured_seconds) * 1e3:.1f} ms "
            f"({min(each.measured_seconds) * 1e3:.1f}-{max(each.measured_seconds) * 1e3:.1f}), "
            f"predicted {each.predicted_seconds * 1e3:.1f} ({each.seconds_error:+.0%})"
        )
    if given.output is not None:
        given.output.write_text(json.dumps([asdict(each) for each in anchors], indent=1) + "\n")
    is_near = all(
        abs(each.bytes_error) <= BYTES_ERROR and abs(each.seconds_error) <= SECONDS_ERROR
        for each in anchors
    )
    return 0 if is_near else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
