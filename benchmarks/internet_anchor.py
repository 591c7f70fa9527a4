"""`python -m benchmarks.internet_anchor [--ids N …]`: one rank of the plan for 10¹¹ ids, at 10⁷ and 10⁸.

Fills a table, steps over batches with a Zipf distribution, and prints predictions of the plan's costs
with the measurements. The costs are measured first, on a table of 2·10⁶ ids, so each size is an
extrapolation. Each size runs separately; 10⁸ ids need 6 GB of memory and some minutes.

`--stack N …` does the same for a stack with a tenth of the rows in hkv and all rows in RocksDB, as the
sheet has for few ranks, with an eighth of its batch. Costs of RocksDB are measured in a folder in
`--path`, as by `sparring plan calibrate`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import StepContainer, StorageChoice, make_plugin_manager, update_rows
from sparring.adapter import parse_hyper, resolve_method
from sparring.contracts import MethodChoice, Storage, TableConfig
from sparring_plan.planning.calibration.storage_timings import (
    MeasuredStorage,
    measure_storage_costs,
)
from sparring_plan.planning.costs.storage_bytes import estimate_bytes
from sparring_plan.planning.inputs import Calibration, PlanInputs, StepCosts, TableSpec, read_inputs
from sparring_plan.simulation.sheet import make_simulated_plan, with_ranks

__all__ = ["Anchor", "measure_anchor"]

PLAN = Path(__file__).resolve().parents[1] / "configs/plans/internet.yaml"
SMALL, CHUNK, BATCHES, RUNS, WARM_UP = 2_000_000, 1_000_000, 8, 3, 2
STACK_SHARE, STACK_WARM_UP = 0.1, 24
SECONDS_ERROR, BYTES_ERROR = 0.3, 0.1

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Anchor:
    """Results of one size. Times are medians per step of each run, in seconds."""

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


def zipf(generator: np.random.Generator, skew: float, num_ids: int, count: int) -> Keys:
    """Draws ids below `num_ids` from the Zipf distribution."""
    drawn = np.empty(0, np.int64)
    while len(drawn) < count:
        more = generator.zipf(skew, count)
        drawn = np.concatenate([drawn, more[more <= num_ids]])
    return drawn[:count] - 1


def spread(ids: Keys) -> Keys:
    """Maps ids to keys in the whole range of int64."""
    return ids * np.int64(0x1E3779B97F4A7C15)


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


class _Table:
    """A filled table of one rank, and steps over batches."""

    def __init__(
        self,
        spec: TableSpec,
        num_ids: int,
        num_draws: int,
        choice: StorageChoice | None = None,
        batches: int = BATCHES,
    ) -> None:
        self.table = TableConfig("everything", spec.dim)
        method = resolve_method(spec.method)
        self.choice = MethodChoice(method, parse_hyper(method, {"lr": 0.1}), 1)
        self.container = StepContainer()
        self.container.declare(self.table, choice)
        state = np.zeros(method.state_width(spec.dim), np.float32)
        self.container.set_state("everything", state, spec.method)
        self.storage: Storage = self.container.storage("everything")
        width = self.storage.table.width
        for begin in range(0, num_ids, CHUNK):
            ids = np.arange(begin, min(begin + CHUNK, num_ids), dtype=np.int64)
            self.storage.upsert(spread(ids), np.full((len(ids), width), 0.01, np.float32))
        generator = np.random.default_rng(num_ids)
        self.batches = [
            spread(zipf(generator, spec.skew, num_ids, num_draws)) for _ in range(batches)
        ]

    def step(self, ids: Keys) -> None:
        found = self.container.lookup("everything", ids)
        assert found.shadow_id is not None
        self.container.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
        self.container.apply_methods({"everything": self.choice})

    def distinct(self) -> list[Keys]:
        """Returns the distinct keys of each batch, in any order."""
        shuffle = np.random.default_rng(0).permutation
        return [shuffle(np.unique(ids)) for ids in self.batches]


@dataclass(slots=True)
class _Costs:
    """Seconds per batch on the small table, and its numbers of distinct keys."""

    table: _Table
    keys: list[Keys]
    find: list[float] = field(default_factory=list)
    update: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)

    def measure(self, batch: int) -> None:
        """Measures one batch."""
        table, keys = self.table, self.keys[batch]
        gradients = np.ones((len(keys), table.table.dim), np.float32)
        self.step.append(_seconds(lambda: table.step(table.batches[batch])))
        self.find.append(_seconds(lambda: table.storage.find(keys)) / len(keys))
        self.update.append(
            _seconds(lambda: update_rows(table.storage, keys, gradients, table.choice)) / len(keys)
        )

    @property
    def per_id(self) -> float:
        """Cost of a step without finds and updates: deduplication, new rows, collecting gradients."""
        stored = (median(self.find) + median(self.update)) * median(map(len, self.keys))
        return max(median(self.step) - stored, 0.0) / len(self.table.batches[0])


def _plan_inputs(num_ids: int) -> tuple[PlanInputs, Calibration]:
    inputs, calibration = read_inputs(PLAN)
    name, spec = next(iter(inputs.tables.items()))
    small = spec.model_copy(update={"rows": num_ids, "growth": None})
    table = TableSpec.model_validate(small.model_dump())
    changed = with_ranks(inputs, 1).model_copy(
        update={"tables": {name: table}, "storages": ["hkv"], "start": None}
    )
    return changed, calibration


def _spec(inputs: PlanInputs) -> TableSpec:
    return next(iter(inputs.tables.values()))


def measure_anchor(num_ids: int) -> tuple[Anchor, dict[str, float]]:
    """Predicts and measures one size; returns the costs of the prediction in nanoseconds.

    Batches of the small table, from which the costs are computed, alternate with batches of the large
    one, so that changes of the machine affect both.
    """
    inputs, calibration = _plan_inputs(num_ids)
    spec = _spec(inputs)
    draws = int(inputs.samples * spec.ids_per_sample)
    with ExitStack() as opened:
        small = _Table(spec, SMALL, draws)
        opened.callback(small.container.close)
        table = _Table(spec, num_ids, draws)
        opened.callback(table.container.close)
        costs = _Costs(small, small.distinct())
        for batch in range(WARM_UP):
            small.step(small.batches[batch])
            table.step(table.batches[batch])
        seconds = []
        for _ in range(RUNS):
            times = []
            for batch in range(BATCHES):
                costs.measure(batch)
                times.append(_seconds(lambda batch=batch: table.step(table.batches[batch])))
            seconds.append(median(times))
        taken = table.storage.memory_bytes
        keys = float(np.mean([len(np.unique(each)) for each in table.batches]))
    told = {
        "find": median(costs.find) * 1e9,
        "update": median(costs.update) * 1e9,
        "id": costs.per_id * 1e9,
    }
    simulated = make_simulated_plan(inputs, _with_costs(calibration, spec, told))
    predicted = estimate_bytes("hkv", table.storage.table, num_ids, make_plugin_manager())
    assert predicted is not None
    anchor = Anchor(
        num_ids,
        predicted["host"],
        taken,
        float(simulated.step.num_keys),
        keys,
        simulated.step.seconds,
        seconds,
    )
    return anchor, told


@dataclass(frozen=True, slots=True)
class StackAnchor:
    """Results of a stack of hkv over RocksDB. Times are medians per step of each run, in seconds."""

    num_ids: int
    predicted_hits: float
    measured_hits: float
    """Fraction of the ids of a batch that the first tier contains."""
    predicted_bytes: int
    measured_bytes: int
    """Memory of the stack: the first tier, and the buffers and caches of RocksDB."""
    predicted_seconds: float
    measured_seconds: list[float]


def measure_stack(num_ids: int, path: Path) -> tuple[StackAnchor, dict[str, float]]:
    """Predicts and measures one size of a stack; returns the costs of the prediction in nanoseconds.

    Every batch is new, because the ids of an earlier batch are in the first tier.
    """
    inputs, calibration = _plan_inputs(num_ids)
    stack: Any = {"tiers": [{"hkv": f"{STACK_SHARE:.0%}".replace("%", " %")}, "rocksdb"]}
    topology = inputs.topology.model_dump() | {"memory": {"host": 1 << 40, "disk": 1 << 44}}
    inputs = PlanInputs.model_validate(
        inputs.model_dump()
        | {"storages": [stack], "topology": topology, "samples": inputs.samples // 8}
    )
    spec, manager = _spec(inputs), make_plugin_manager()
    draws = int(inputs.samples * spec.ids_per_sample)
    with ExitStack() as opened:
        folder = opened.enter_context(TemporaryDirectory(dir=path))
        given = {"path": f"{folder}/costs"}
        asked = MeasuredStorage(
            "rocksdb", "disk", given, {"path": "rows"}, SMALL // 10, 16_384, [spec.method]
        )
        rocksdb = measure_storage_costs(asked, manager)
        small = _Table(spec, SMALL, draws)
        opened.callback(small.container.close)
        costs = _Costs(small, small.distinct())
        tiers = [
            {"backend": "hkv", "options": {"capacity": int(num_ids * STACK_SHARE)}},
            {"backend": "rocksdb", "options": {"path": f"{folder}/rows"}},
        ]
        choice = StorageChoice("tiered", {"tiers": tiers})
        table = _Table(spec, num_ids, draws, choice, STACK_WARM_UP + RUNS * BATCHES)
        opened.callback(table.container.close)
        first: Any = table.storage.tiers[0]  # type: ignore[attr-defined]
        hits, seconds, turns = [], list[float](), iter(table.batches)
        for _ in range(STACK_WARM_UP):
            table.step(next(turns))
        for _ in range(RUNS):
            times = []
            for batch in range(BATCHES):
                ids = next(turns)
                keys, counts = np.unique(ids, return_counts=True)
                hits.append(counts[first.find(keys).found].sum() / counts.sum())
                costs.measure(batch)
                times.append(_seconds(lambda ids=ids: table.step(ids)))
            seconds.append(median(times))
        taken = table.storage.memory_bytes
    told = {
        "find": median(costs.find) * 1e9,
        "update": median(costs.update) * 1e9,
        "id": costs.per_id * 1e9,
    }
    known = _with_costs(calibration, spec, told)
    known = known.model_copy(update={"storages": {**known.storages, "rocksdb": rocksdb}})
    simulated = make_simulated_plan(inputs, known)
    plan = next(iter(simulated.plan.tables.values()))
    anchor = StackAnchor(
        num_ids,
        (plan.hit_rates or [0.0])[0],
        float(np.mean(hits)),
        int(plan.memory["host"] - simulated.step.num_keys * spec.dim * 8),
        taken,
        simulated.step.seconds,
        seconds,
    )
    of_rocksdb = {"rocksdb find": rocksdb.find_ns, "rocksdb update": rocksdb.update_ns}
    return anchor, told | of_rocksdb


def _with_costs(calibration: Calibration, spec: TableSpec, costs: dict[str, float]) -> Calibration:
    changed = {"find_ns": costs["find"], "update_ns": costs["update"]}
    changed |= {"find_ns_per_byte": 0.0, "update_ns_per_element": 0.0}
    storage = calibration.storages["hkv"].model_copy(update=changed)
    exchange = calibration.exchange.model_copy(
        # Without an exchange nothing is summed; the remaining cost is per id.
        update={
            "add_ns": 0.0,
            "pool_ns_per_byte": costs["id"] / (spec.dim * 4),
            "steps": StepCosts(),
        }
    )
    return calibration.model_copy(
        update={"name": "measured", "storages": {"hkv": storage}, "exchange": exchange}
    )


def main(arguments: Sequence[str]) -> int:
    """Prints a line per size; returns 1 if the error of a prediction exceeds its limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.internet_anchor")
    parser.add_argument("--ids", type=int, nargs="*", default=[10**7])
    parser.add_argument("--stack", type=int, nargs="*", default=[], help="sizes of a stack")
    parser.add_argument(
        "--path", type=Path, default=Path(gettempdir()), help="of RocksDB's folders"
    )
    parser.add_argument("--output", type=Path, help="a JSON file for the figures")
    given = parser.parse_args(arguments)
    anchors = []
    for num_ids in given.ids:
        each, costs = measure_anchor(num_ids)
        anchors.append(each)
        print(
            f"costs at {SMALL:,} ids: find {costs['find']:.0f} ns, update {costs['update']:.0f} ns, "
            f"an id {costs['id']:.0f} ns"
        )
        print(
            f"{each.num_ids:>13,} ids: {each.measured_bytes / 1e9:.3f} GB, predicted "
            f"{each.predicted_bytes / 1e9:.3f} ({each.bytes_error:+.1%}); distinct keys of a batch "
            f"{each.measured_keys:,.0f}, predicted {each.predicted_keys:,.0f}; step "
            f"{median(each.measured_seconds) * 1e3:.1f} ms "
            f"({min(each.measured_seconds) * 1e3:.1f}-{max(each.measured_seconds) * 1e3:.1f}), "
            f"predicted {each.predicted_seconds * 1e3:.1f} ({each.seconds_error:+.0%})"
        )
    for num_ids in given.stack:
        stack, costs = measure_stack(num_ids, given.path)
        print("costs in ns: " + ", ".join(f"{name} {value:.0f}" for name, value in costs.items()))
        print(
            f"{num_ids:>13,} ids, {STACK_SHARE:.0%} of them in hkv, all in RocksDB: hits in hkv "
            f"{stack.measured_hits:.1%}, predicted {stack.predicted_hits:.1%}; in memory "
            f"{stack.measured_bytes / 1e9:.3f} GB, predicted {stack.predicted_bytes / 1e9:.3f}; step "
            f"{median(stack.measured_seconds) * 1e3:.1f} ms ({min(stack.measured_seconds) * 1e3:.1f}-"
            f"{max(stack.measured_seconds) * 1e3:.1f}), predicted {stack.predicted_seconds * 1e3:.1f} "
            f"({stack.predicted_seconds / median(stack.measured_seconds) - 1:+.0%})"
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
