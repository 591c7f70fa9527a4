"""Creates plans from inputs, and computes the costs of edited plans."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from sparring.errors import CapacityError, ConfigError
from sparring_plan.planning.allowed_kinds import with_kinds
from sparring_plan.planning.costs.costs import (
    RESOURCES,
    Options,
    compute_option_costs,
)
from sparring_plan.planning.description import (
    compute_bytes,
    compute_step_with,
    describe_placement,
    format_size,
    round_digits,
)
from sparring_plan.planning.inputs import Calibration, PlanInputs
from sparring_plan.planning.plan import Plan
from sparring_plan.planning.planned_placement import find_pins, make_placement
from sparring_plan.planning.search.bound import compute_aggregate_bound
from sparring_plan.planning.search.placement import Placement
from sparring_plan.planning.search.search import SearchResult, search
from sparring_plan.planning.suggestions import suggest_changes
from sparring_plan.simulation.ranking import list_neighbors, rank_again

__all__ = [
    "Alternative",
    "Pins",
    "list_alternatives",
    "check_plan",
    "compute_pin_costs",
    "make_plan",
]


@dataclass(frozen=True, slots=True)
class Alternative:
    """An option of a table in a plan whose other tables do not change.

    Args:
        is_chosen: Whether the plan uses it.
        step_ms: Step of the whole plan; None if the option does not fit in memory.
        bytes: Bytes on the table's busiest rank.
        resource_ms: Milliseconds on its busiest rank, per resource.
        hit_rate: For a stack, share of ids whose row is in the first tier; None for a single storage.
    """

    kind: str
    columns: int
    num_shards: int
    transfer: str
    storage: str
    is_chosen: bool
    step_ms: float | None
    bytes: int
    resource_ms: dict[str, float]
    hit_rate: float | None


@dataclass(frozen=True, slots=True)
class Pins:
    """Effect of pins on the step time, in milliseconds.

    Args:
        names: Tables that are pinned or were edited.
        with_ms: Step of the best plan that keeps them; None if no such plan was found.
        without_ms: Step of the best plan.
    """

    names: list[str]
    with_ms: float | None
    without_ms: float | None


def make_plan(
    inputs: PlanInputs,
    calibration: Calibration,
    allowed: Mapping[str, Collection[str]] | None = None,
    before: Plan | None = None,
) -> Plan:
    """Finds a plan, and a lower bound for the step time of any plan.

    Args:
        inputs: Inputs of the plan.
        calibration: Costs.
        allowed: Table → allowed kinds; other tables may have all kinds of `inputs`.
        before: A plan whose pinned and edited tables are kept; the bound then applies to plans that
            keep them. Pins of tables that are no longer in the inputs are dropped.

    Raises:
        InvalidArgumentError: No kind is possible for a table.
        CapacityError: No plan that fits was found; the message contains the shortage and suggestions.
        ConfigError: A pin is for other ranks, or the inputs do not allow its option.
    """
    options = with_kinds(compute_option_costs(inputs, calibration), allowed or {})
    pins = None if before is None else find_pins(before, options)
    if pins is not None:
        _check_fits(pins, "the pinned tables do not fit")
    found = search(options, pins)
    if found is None and before is not None and pins is not None and search(options) is not None:
        names = ", ".join(before.kept)
        raise CapacityError(
            f"found no plan with these pins that fits; remove some of them: {names}"
        )
    if found is None:
        message, ways = _describe_missing(options), suggest_changes(inputs, calibration)
        message += "\nsuggestions:" if ways else "\nfound no suggestion except smaller tables"
        raise CapacityError("\n".join([message, *(f"- {way}" for way in ways)]))
    kept = () if pins is None else np.flatnonzero(pins.option >= 0).tolist()
    # Sums of costs do not consider overlap, so the best placements are replayed.
    placement, _ = rank_again(
        found.placement, partial(list_neighbors, found.placement, kept), inputs, calibration
    )
    return describe_placement(replace(found, placement=placement), inputs, calibration, before)


def compute_pin_costs(plan: Plan, inputs: PlanInputs, calibration: Calibration) -> Pins:
    """Returns the costs of the pinned and edited tables of a plan.

    Raises:
        ConfigError: A pin is for other ranks, or the inputs do not allow its option.
    """
    options = compute_option_costs(inputs, calibration)
    pins = find_pins(plan, options)
    free = search(options)
    kept = free if pins is None else search(options, pins)
    return Pins(
        plan.kept,
        None if kept is None else round_digits(kept.placement.seconds * 1e3),
        None if free is None else round_digits(free.placement.seconds * 1e3),
    )


def check_plan(plan: Plan, inputs: PlanInputs, calibration: Calibration) -> Plan:
    """Returns the plan with its costs and gap for `inputs`; edits remain.

    Raises:
        ConfigError: The plan has other tables or ranks, or options that `inputs` does not allow.
        CapacityError: A rank has too little memory for it.
    """
    options = compute_option_costs(inputs, calibration)
    placement = make_placement(plan, options)
    _check_fits(placement, "the plan does not fit", plan)
    found = search(options)
    if found is None:
        # The search can miss plans that fill the memory completely; this one fits.
        bound = compute_aggregate_bound(options)
        found = SearchResult(placement, bound, bound.seconds)
    seconds = min(found.bound_seconds, placement.seconds)
    return describe_placement(
        SearchResult(placement, found.bound, seconds), inputs, calibration, plan
    )


def _check_fits(placement: Placement, failure: str, plan: Plan | None = None) -> None:
    """Raises an error if a rank has too little memory, with the location of its largest table in
    `plan`."""
    options = placement.options
    excess = placement.memory - options.capacity
    if (excess <= 0).all():
        return
    rank, kind = (int(each) for each in np.unravel_index(np.argmax(excess), excess.shape))
    held = [
        (options.shard_memory[placement.option[table], kind], name)
        for table, name in enumerate(options.table_names)
        if placement.owns[table, rank]
    ]
    largest = f"; its largest shard is of {max(held)[1]}" if held else ""
    location = plan.prefix("tables", max(held)[1]) if plan is not None and held else ""
    raise CapacityError(
        f"{location}{failure}: rank {rank} needs {format_size(float(excess[rank, kind]))} more "
        f"{options.memories[kind]} memory{largest}; move a table or change its kind"
    )


def list_alternatives(
    plan: Plan, inputs: PlanInputs, calibration: Calibration, name: str
) -> list[Alternative]:
    """Returns all options of a table, best first, with the step of the plan if it used them.

    Raises:
        ConfigError: The table does not exist, or the plan does not match `inputs`.
    """
    options = compute_option_costs(inputs, calibration)
    placement = make_placement(plan, options)
    if name not in plan.tables:
        raise ConfigError(
            f"explain: there is no table {name!r}; use one of {', '.join(plan.tables)}"
        )
    table = options.table_names.index(name)
    chosen = int(placement.option[table])
    found = []
    for option in options.of(table):
        shape = options.shape_of(option)
        seconds = (
            placement.seconds if option == chosen else compute_step_with(placement, table, option)
        )
        load = options.base[option] + options.shard[option]
        found.append(
            Alternative(
                shape.kind,
                shape.num_columns,
                shape.num_shards,
                shape.transfer,
                options.storages[options.storage[option]],
                option == chosen,
                None if seconds is None else seconds * 1e3,
                compute_bytes(options, option),
                {each: float(ms) for each, ms in zip(RESOURCES, load * 1e3, strict=True)},
                None if np.isnan(options.hits[option, 0]) else float(options.hits[option, 0]),
            )
        )
    return sorted(
        found, key=lambda each: (each.step_ms is None, each.step_ms, max(each.resource_ms.values()))
    )


def _describe_missing(options: Options) -> str:
    """Describes which memory is too small, and by how many bytes."""
    total, ranks = options.total_memory(), options.num_ranks
    # With any options, each table needs at least its minimum of a kind of memory.
    short = np.minimum.reduceat(total, options.start[:-1]).sum(axis=0) / ranks - options.capacity
    kind = int(np.argmax(short))
    if len(options.memories) > 1 and short[kind] > 0:
        own = float(options.capacity[kind])
        return (
            f"the tables do not fit: in {options.memories[kind]} memory they need at least "
            f"{format_size(float(short[kind]) + own)} per rank, and a rank has {format_size(own)}: "
            f"{format_size(float(short[kind]))} are missing on each of {ranks} ranks"
        )
    least = np.minimum.reduceat(total.sum(axis=1), options.start[:-1])
    needed = float(least.sum())
    held = ", ".join(
        f"{format_size(float(bytes_))} of {name}"
        for name, bytes_ in zip(options.memories, options.capacity, strict=True)
    )
    missing = needed / ranks - float(options.capacity.sum())
    if missing > 0:
        text = (
            f"the tables do not fit: they need at least {format_size(needed)}, "
            f"{format_size(needed / ranks)} per rank, and a rank has {held}: {format_size(missing)} are "
            f"missing on each of {ranks} ranks"
        )
    else:
        largest = int(np.argmax(least))
        text = (
            f"found no plan that fits: a rank has {held}, which is enough on average, but not for "
            f"whole shards; the largest table is {options.table_names[largest]} with "
            f"{format_size(float(least[largest]))}; allow kinds that split it, or more memory"
        )
    return text
