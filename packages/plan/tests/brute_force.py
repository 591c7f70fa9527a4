"""Random small inputs, and the best of all their plans by trying each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import numpy as np

from sparring_plan.planning.costs.costs import Ints, Options, Span
from sparring_plan.planning.inputs import KINDS, PlanInputs
from sparring_plan.planning.search.placement import Placement

__all__ = ["best_by_brute_force", "placements_of", "random_inputs"]


def random_inputs(seed: int) -> PlanInputs:
    random = np.random.default_rng(seed)
    nodes, within = [(1, 2), (1, 3), (2, 1), (2, 2)][seed % 4]
    tables: dict[str, Any] = {}
    largest = 0
    for index in range(2 if nodes * within == 4 else 3):
        rows, dim = int(10 ** random.uniform(3, 5.5)), int(random.choice([8, 16, 32]))
        method = str(random.choice(["sgd", "adam", "rowwise_adagrad"]))
        ids = float(random.integers(1, 40))
        tables[f"t{index}"] = {
            "dim": dim, "method": method, "rows": rows, "features": {"f": {"ids": ids}},
            "skew": float(random.uniform(0, 1.3)),
        }  # fmt: skip
        largest = max(largest, rows * (8 + 12 * dim))
    # From too little memory for the largest table on one rank to enough for all tables.
    memory = (8 << 20) + int(largest * random.uniform(0.7, 2.5))
    topology = {
        "nodes": nodes, "ranks_per_node": within, "memory": {"host": memory},
        "near": {"gbit": float(random.choice([4, 40]))}, "far": {"gbit": 10},
        "message_us": float(random.choice([0, 20])),
    }  # fmt: skip
    kinds = sorted(random.choice(KINDS, 4, replace=False)) if seed % 3 else list(KINDS)
    value = {"topology": topology, "samples": 256, "tables": tables, "kinds": kinds}
    return PlanInputs.model_validate(value | {"transfers": ["rows", "pooled"]})


def placements_of(options: Options, option: int) -> Iterator[Ints]:
    """All sets of ranks that the shards of an option may be on."""
    shape, within = options.shape_of(option), options.ranks_per_node
    ranks = np.arange(options.num_ranks)
    nodes = ranks.reshape(-1, within)
    if shape.span is Span.ALL:
        yield ranks[:0]
    elif shape.span is Span.RANKS:
        yield from map(np.asarray, combinations(ranks, shape.num_places))
    elif shape.span is Span.NODES:
        for chosen in combinations(range(len(nodes)), shape.num_places):
            yield nodes[list(chosen)].ravel()
    else:
        for node in nodes:
            yield from map(np.asarray, combinations(node, shape.num_places))


def best_by_brute_force(options: Options, pins: Placement | None = None) -> float | None:
    """The shortest step of all options of all tables on all sets of ranks; None if none fits."""
    choices = [
        [
            (option, ranks)
            for option in options.of(table)
            for ranks in placements_of(options, option)
        ]
        for table in range(len(options.table_names))
    ]
    for table in np.flatnonzero(pins.option >= 0) if pins is not None else ():
        choices[table] = [(int(pins.option[table]), pins.ranks(int(table)))]
    each: list[list[tuple[Any, Any]]] = []
    for of_table in choices:
        costs = []
        for option, ranks in of_table:
            load = np.tile(options.base[option], (options.num_ranks, 1))
            memory = np.tile(options.base_memory[option], (options.num_ranks, 1))
            load[ranks] += options.shard[option]
            memory[ranks] += options.shard_memory[option]
            costs.append((load, memory))
        each.append(costs)
    last_load = np.asarray([load for load, _ in each[-1]])
    last_memory = np.asarray([memory for _, memory in each[-1]])
    best = np.inf
    for others in product(*each[:-1]):
        load = last_load + sum((other[0] for other in others), options.fixed)
        memory = last_memory + sum(other[1] for other in others)
        fits = (memory <= options.capacity).all(axis=(1, 2))
        if fits.any():
            best = min(best, float(load[fits].max(axis=(1, 2)).min()))
    return best if np.isfinite(best) else None
