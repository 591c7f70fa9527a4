"""One rank of the benchmark `planned_steps`: steps of several plans, alternately, and their traffic.

Started by `benchmarks.planned_steps` with one argument, JSON. Rank 0 writes JSON to the file `output`.
Without plans, the ranks measure the costs of this machine.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rank_exchange import join
from sparring import ExchangeOptions, StepContainer, make_plugin_manager
from sparring.adapter import EnvironmentRendezvous
from sparring.contracts import (
    Collective,
    EnvironmentOptions,
    ShardingPlan,
    TableConfig,
    TableSharding,
)
from sparring_plan.planning.calibration.calibrate import CalibrateOptions, measure
from sparring_plan.planning.calibration.step_timings import NUM_BATCHES, make_step


def _batches(tables: dict[str, Any], samples: int, rank: int) -> list[list[tuple[str, Any]]]:
    """Returns the ids of each table, batch by batch, with a Zipf distribution."""
    random = np.random.default_rng(rank)
    drawn: dict[str, list[Any]] = {}
    for name, each in tables.items():
        weights = np.arange(1, each["rows"] + 1, dtype=np.float64) ** -each["skew"]
        bounds = np.cumsum(weights)
        bounds /= bounds[-1]
        count = samples * each["ids"]
        drawn[name] = [
            np.searchsorted(bounds, random.random(count)).astype(np.int64)
            for _ in range(NUM_BATCHES)
        ]
    return [[(name, drawn[name][batch]) for name in tables] for batch in range(NUM_BATCHES)]


def _plans(
    given: dict[str, Any], rendezvous: EnvironmentRendezvous, closing: ExitStack
) -> dict[str, Any]:
    meeting = closing.enter_context(join(given["collective"], rendezvous))
    tables = given["tables"]
    batches = _batches(tables, given["samples"], meeting.rank)
    containers = {
        name: _container(plan, given, rendezvous, closing) for name, plan in given["plans"].items()
    }
    contenders = {
        name: make_step(container, batches, given["tables"], given["method"])
        for name, container in containers.items()
    }
    for step in contenders.values():
        for _ in range(NUM_BATCHES):
            step()  # creates all rows and allocates buffers
    before = {name: _counted(each) for name, each in containers.items()}
    for step in contenders.values():
        for _ in range(NUM_BATCHES):
            step()
    sent = {
        name: [
            (now - then) / NUM_BATCHES
            for now, then in zip(_counted(each), before[name], strict=True)
        ]
        for name, each in containers.items()
    }
    seconds, processor = _rounds(meeting, contenders, given["rounds"])
    gathered = {
        name: np.asarray(meeting.all_gather(np.asarray(each, np.float64))).tolist()
        for name, each in sent.items()
    }
    return {"seconds": seconds, "processor": processor, "sent": gathered}


def _rounds(
    meeting: Collective, contenders: dict[str, Callable[[], object]], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Returns the seconds of each round, and processor seconds, of the slowest rank of each plan."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, step in contenders.items():
            meeting.barrier()
            begin = time.perf_counter(), time.process_time()
            step()
            taken[name].append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
    slowest = {
        name: np.max(meeting.all_gather(np.asarray(each, np.float64)), axis=0)
        for name, each in taken.items()
    }
    return (
        {name: each[:, 0].tolist() for name, each in slowest.items()},
        {name: each[:, 1].tolist() for name, each in slowest.items()},
    )


def _container(
    plan: dict[str, Any],
    given: dict[str, Any],
    rendezvous: EnvironmentRendezvous,
    closing: ExitStack,
) -> StepContainer:
    container = StepContainer(
        collective=join(given["collective"], rendezvous),
        rendezvous=rendezvous,
        exchange=ExchangeOptions(given["chunk_rows"], given["chunks_in_flight"]),
        plan=ShardingPlan({name: TableSharding(**each) for name, each in plan.items()}),
    )
    closing.enter_context(container)
    for name, each in given["tables"].items():
        container.declare(TableConfig(name, each["dim"]))
        container.set_state(name, np.empty(0, np.float32), given["method"])
    return container


def _counted(container: StepContainer) -> list[int]:
    counters = container.exchange.counters
    sent = counters.wire_bytes_sent
    return [sent.headers, sent.keys, sent.rows, sent.gradients, counters.num_messages_sent]


def _calibrate(output: Path) -> None:
    """Measures the costs of this machine, as `sparring plan calibrate` does."""
    measured = measure(CalibrateOptions(), make_plugin_manager()).calibration
    if measured is not None:
        output.write_text(measured.model_dump_json())


def main() -> None:
    """Runs the measurements that the argument specifies."""
    asked = json.loads(sys.argv[1])
    rendezvous = EnvironmentRendezvous(EnvironmentOptions())
    if "plans" not in asked:
        _calibrate(Path(asked["output"]))
        return
    # Before the pool creates threads: one core per rank, as in the simulation.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rendezvous.membership().rank % len(cores)]})
    with ExitStack() as closing:
        measured = _plans(asked, rendezvous, closing)
    if rendezvous.membership().rank == 0:
        Path(asked["output"]).write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
