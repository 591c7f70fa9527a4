"""Converts a placement to a plan: each table with its costs, the reason for its option, and the next best
option."""

from __future__ import annotations

import numpy as np

from sparring.contracts import TableConfig
from sparring_plan.planning.costs.costs import RESOURCES, Floats, Options, Span
from sparring_plan.planning.growth import find_first_full_day
from sparring_plan.planning.inputs import Calibration, PlanInputs, TableSpec
from sparring_plan.planning.plan import NextBest, Plan, TablePlan
from sparring_plan.planning.search.placement import Placement
from sparring_plan.planning.search.search import SearchResult, compute_prices
from sparring_plan.simulation.ranking import replay_step

__all__ = [
    "compute_bytes",
    "compute_step_with",
    "describe_placement",
    "format_size",
    "round_digits",
]

_KEY_BYTES = 8


def describe_placement(
    found: SearchResult, inputs: PlanInputs, calibration: Calibration, before: Plan | None
) -> Plan:
    placement, options, topology = found.placement, found.placement.options, inputs.topology
    prices = compute_prices(options, found.bound)
    price = topology.price_per_hour * topology.nodes
    full = find_first_full_day(placement, inputs, calibration)
    simulated = replay_step(placement, inputs, calibration)
    samples_an_hour = 3600 / placement.seconds * inputs.samples * topology.num_ranks
    return Plan(
        version=1,
        inputs=inputs.digest(calibration),
        calibration=calibration.name,
        solver=found.bound.solver,
        ranks=options.num_ranks,
        step_ms=round_digits(placement.seconds * 1e3),
        simulated_ms=None if simulated is None else round_digits(simulated.seconds * 1e3),
        bound_ms=round_digits(found.bound_seconds * 1e3),
        gap=round_digits(found.gap, 3),
        price_per_hour=round_digits(price),
        price_per_billion_samples=round_digits(price / samples_an_hour * 1e9),
        memory_full=None if full is None else full.text(inputs.start),
        tables={
            name: _with_pin(_describe_table(placement, table, prices, inputs), name, before)
            for table, name in enumerate(options.table_names)
        },
    )


def _with_pin(table: TablePlan, name: str, before: Plan | None) -> TablePlan:
    """Adds the digest of the choice, and pins the table if it was pinned or edited in `before`."""
    old = None if before is None else before.tables.get(name)
    is_kept = old is not None and old.is_kept
    return table.model_copy(update={"made": table.choice_digest, "pinned": is_kept})


def _describe_table(
    placement: Placement, table: int, prices: Floats, inputs: PlanInputs
) -> TablePlan:
    options = placement.options
    name = options.table_names[table]
    spec, option = inputs.tables[name], int(placement.option[table])
    shape, storage = options.shape_of(option), options.storages[options.storage[option]]
    load = options.base[option] + options.shard[option]
    next_best = _next_best(placement, table, prices)
    because = f"{load.max() * 1e3:.3g} ms on its busiest rank, most of it {_resource(load)}"
    other = "" if next_best is None else next_best.kind
    if next_best is not None and next_best.storage != storage:
        other = f"{other} in {next_best.storage}"
    if next_best is None:
        because += "; no other option fits"
    elif next_best.step_ms > 0:
        because += f"; with {other}, the step would be {next_best.step_ms:.3g} ms longer"
    elif next_best.bytes > 0:
        because += f"; {other} would need {format_size(next_best.bytes)} more per rank"
    else:
        because += f"; with {other}, the step would not be shorter, because other tables limit it"
    hits = options.hits[option]
    hits = hits[~np.isnan(hits)]
    if len(hits):
        because += f"; its first tier contains the rows of {hits[0]:.1%} of its ids"
    if "pooled" in inputs.transfers and not spec.is_pooled:
        because += f"; rows are transferred, because {_pooling(spec)}: owners pool sums and means"
    if spec.couples_columns and {"column_wise", "grid", "table_column_wise"} & set(inputs.kinds):
        because += f"; no column blocks, because {spec.why_coupled}"
    ranks = placement.ranks(table)
    row_bytes = TableConfig("planned", spec.dim, spec.dtype, state_width=spec.state_width).row_bytes
    memory = (options.base_memory + options.shard_memory)[option]
    return TablePlan(
        kind=shape.kind,
        ranks="all" if shape.span is Span.ALL else [int(rank) for rank in ranks],
        columns=shape.num_columns,
        transfer=shape.transfer,
        storage=storage,
        rows=spec.expected_rows,
        table_bytes=int(spec.expected_rows * (_KEY_BYTES + row_bytes)),
        bytes=compute_bytes(options, option),
        memory={
            kind: int(each)
            for kind, each in zip(options.memories, memory, strict=True)
            if each or len(memory) == 1
        },
        hit_rates=[round_digits(float(each), 4) for each in hits] if len(hits) else None,
        ms=round_digits(float(load.max()) * 1e3),
        because=because,
        next_best=next_best,
    )


def _pooling(spec: TableSpec) -> str:
    name = spec.of_rows[0]
    pooling = spec.features[name].pooling
    return f"{name} is not pooled" if pooling == "none" else f"{name} is pooled by {pooling}"


def _next_best(placement: Placement, table: int, prices: Floats) -> NextBest | None:
    """Returns the cheapest other option that fits, by the prices of the bound."""
    options, chosen = placement.options, int(placement.option[table])
    of = np.asarray(options.of(table))
    for option in map(int, of[np.argsort(prices[of], kind="stable")]):
        seconds = None if option == chosen else compute_step_with(placement, table, option)
        if seconds is not None:
            shape = options.shape_of(option)
            return NextBest(
                kind=shape.kind,
                columns=shape.num_columns,
                transfer=shape.transfer,
                storage=options.storages[options.storage[option]],
                step_ms=round_digits((seconds - placement.seconds) * 1e3),
                bytes=compute_bytes(options, option) - compute_bytes(options, chosen),
            )
    return None


def compute_step_with(placement: Placement, table: int, option: int) -> float | None:
    """Returns the step if a table had another option; None if that does not fit."""
    load, memory = placement.load.copy(), placement.memory.copy()
    before = placement.take(table)
    ranks = placement.best_ranks(option)
    seconds = None
    if ranks is not None:
        placement.put(table, option, ranks)
        seconds = placement.seconds
        placement.take(table)
    placement.put(table, *before)
    # Restore exact values, because additions and subtractions round.
    placement.load, placement.memory = load, memory
    return seconds


def compute_bytes(options: Options, option: int) -> int:
    return int((options.base_memory + options.shard_memory)[option].sum())


def _resource(load: Floats) -> str:
    words = {
        "compute": "finds and updates",
        "far_out": "bytes to other nodes",
        "far_in": "bytes from other nodes",
        "near_out": "bytes within the node",
        "near_in": "bytes within the node",
        "messages": "messages",
    }
    return words[RESOURCES[int(np.argmax(load))]]


def round_digits(value: float, digits: int = 6) -> float:
    return float(f"{value:.{digits}g}")


def format_size(bytes_: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if bytes_ < 1024:
            return f"{bytes_:.4g} {unit}"
        bytes_ /= 1024
    return f"{bytes_:.4g} TiB"
