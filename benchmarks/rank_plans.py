"""One rank of the benchmark `planned_steps`: steps of several plans, in turn, and what they send.

Started by `benchmarks.planned_steps` with one argument, JSON. Rank 0 writes JSON to the file `output`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.rank_exchange import join
from sparring import (
    EnvironmentOptions,
    EnvironmentRendezvous,
    ExchangeOptions,
    StepContainer,
    _native,
    hyper_from,
    resolve_method,
    update_rows,
)
from sparring.adapter import BagLookup, look_up_bags, pool, pool_backward
from sparring.contracts import Collective, MethodChoice, TableConfig
from sparring_plan import Plan

NUM_BATCHES, COSTS_ROUNDS = 3, 9
DIM, LARGE, SWEPT_BYTES = 64, 1 << 20, 96 << 20


def _choice(method: str) -> MethodChoice:
    found = resolve_method(method)
    return MethodChoice(found, hyper_from(found, {"lr": 0.1}), 1)


def _batches(tables: dict[str, Any], samples: int, rank: int) -> list[list[tuple[str, Any]]]:
    """Ids of each table, a batch after the other, by Zipf's law."""
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
        name: _stepping(container, batches, given["tables"], given["method"])
        for name, container in containers.items()
    }
    for step in contenders.values():
        for _ in range(NUM_BATCHES):
            step()  # every row is there, chunks are in place
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
    costs = _costs(given, batches, meeting)
    seconds, processor = _rounds(meeting, contenders, given["rounds"])
    gathered = {
        name: np.asarray(meeting.all_gather(np.asarray(each, np.float64))).tolist()
        for name, each in sent.items()
    }
    return {"seconds": seconds, "processor": processor, "sent": gathered, "costs": costs}


def _rounds(
    meeting: Collective, contenders: dict[str, Callable[[], object]], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Plan → seconds of each round, and seconds of a processor, of the slowest rank. Plans take turns."""
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
        plan=Plan.model_validate(plan).sharding(rendezvous.membership().world_size),
    )
    closing.enter_context(container)
    for name, each in given["tables"].items():
        container.declare(TableConfig(name, each["dim"]))
        container.set_state(name, np.empty(0, np.float32), given["method"])
    return container


def _stepping(
    container: StepContainer,
    batches: list[list[tuple[str, Any]]],
    tables: dict[str, Any],
    method: str,
) -> Callable[[], object]:
    """A step: bags of every table to pools, and a gradient of ones back."""
    choices = {name: _choice(method) for name in tables}
    pooled = [name for name in tables if container.transfer(name)[0] == "pooled"]
    offsets = {
        name: np.arange(0, len(ids) + 1, tables[name]["ids"], dtype=np.int64)
        for name, ids in batches[0]
    }
    ones = {
        name: np.ones((len(offsets[name]) - 1, tables[name]["dim"]), np.float32) for name in tables
    }
    turns = iter(range(1 << 30))

    def step() -> None:
        batch = batches[next(turns) % NUM_BATCHES]
        by_rows = [each for each in batch if each[0] not in pooled]
        if by_rows:
            found = container.lookup_all(by_rows)
            for (name, _), each in zip(by_rows, found, strict=True):
                pool(each.rows, each.inverse, offsets[name], "sum")
                gradient = pool_backward(
                    ones[name], each.inverse, offsets[name], len(each.keys), "sum"
                )
                assert each.shadow_id is not None
                container.resources.accumulate(each.shadow_id, gradient)
        if pooled:
            wanted = [BagLookup(name, ids, offsets[name]) for name, ids in batch if name in pooled]
            bags = look_up_bags(container.state, wanted, is_training=True)
            for each, request in zip(bags, wanted, strict=True):
                assert each.shadow_id is not None
                container.resources.accumulate_bags(each.shadow_id, ones[request.table])
        container.apply_methods(choices)

    return step


def _counted(container: StepContainer) -> list[int]:
    counters = container.exchange.counters
    sent = counters.wire_bytes_sent
    return [sent.headers, sent.keys, sent.rows, sent.gradients, counters.num_messages_sent]


def _costs(
    given: dict[str, Any], batches: list[list[tuple[str, Any]]], meeting: Collective
) -> dict[str, Any]:
    """Costs of a rank, in seconds; all ranks measure at the same time, as they step at the same time.

    Of each table those of the keys of a batch: to find, to update, to add up. `one_rank`: a whole step
    of one rank alone, with no exchange. `small`, `large`: a message each way of 64 bytes, and of 1 MiB
    that is packed and placed.
    """
    found: dict[str, Any] = {"find": {}, "update": {}, "add": {}}
    choice = _choice(given["method"])
    meeting.barrier()
    with StepContainer() as container:
        for name, each in given["tables"].items():
            container.declare(TableConfig(name, each["dim"]))
            container.set_state(name, np.empty(0, np.float32), given["method"])
        step = _stepping(container, batches, given["tables"], given["method"])
        for _ in range(NUM_BATCHES):
            step()
        found["one_rank"] = _median(step)
        for name, ids in batches[0]:
            keys, dim = np.unique(ids), given["tables"][name]["dim"]
            keys = np.random.default_rng(0).permutation(keys)
            gradients = np.ones((len(keys), dim), np.float32)
            storage = container.storage(name)

            def add(keys: Any = keys, gradients: Any = gradients, dim: int = dim) -> None:
                accumulator = _native.GradientAccumulator(dim, "float32")
                accumulator.add(keys, gradients)
                accumulator.take()

            calls = {
                "find": partial(storage.find, keys),
                "update": partial(update_rows, storage, keys, gradients, choice),
                "add": add,
            }
            for what, call in calls.items():
                found[what][name] = _median(call) / len(keys)
    found["small"] = _median(partial(_pass_message, meeting, 0), 50)
    found["large"] = _median(partial(_pass_message, meeting, LARGE // DIM // 4), 50)
    return found


def _pass_message(meeting: Collective, num_rows: int) -> None:
    outgoing = np.zeros((num_rows, DIM), np.float32) if num_rows else np.zeros(16, np.float32)
    incoming = np.empty_like(outgoing)
    peer = (meeting.rank + 1) % meeting.world_size
    before = (meeting.rank - 1) % meeting.world_size
    places = np.arange(num_rows)
    if num_rows:
        _native.gather(incoming, places, outgoing)
    works = [meeting.receive(incoming, before), meeting.send(outgoing, peer)]
    for work in works:
        work.wait()
    if num_rows:
        _native.place_rows(incoming, places, outgoing)


def _median(call: Callable[[], object], rounds: int = COSTS_ROUNDS) -> float:
    """Processor time, with cold caches, as steps of other plans leave them.

    A rank has one core, and what else the machine does is no cost of ours.
    """
    call()
    times, others = [], np.zeros(SWEPT_BYTES, np.uint8)
    for _ in range(rounds):
        others += 1
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return median(times)


def main() -> None:
    """Measures what the argument says."""
    asked = json.loads(sys.argv[1])
    rendezvous = EnvironmentRendezvous(EnvironmentOptions())
    # Before the pool has threads: a core for each rank, as the simulation takes it.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rendezvous.membership().rank % len(cores)]})
    with ExitStack() as closing:
        measured = _plans(asked, rendezvous, closing)
    if rendezvous.membership().rank == 0:
        Path(asked["output"]).write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
