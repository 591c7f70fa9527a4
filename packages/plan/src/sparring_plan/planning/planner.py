"""Creates plans from inputs, and computes the costs of edited plans."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from sparring.contracts import TableConfig
from sparring.errors import CapacityError, ConfigError
from sparring_plan.planning.allowed_kinds import with_kinds
from sparring_plan.planning.costs.costs import (
    RESOURCES,
    Floats,
    Options,
    Shape,
    Span,
    compute_option_costs,
)
from sparring_plan.planning.growth import find_first_full_day
from sparring_plan.planning.inputs import Calibration, PlanInputs, TableSpec
from sparring_plan.planning.plan import NextBest, Plan, TablePlan
from sparring_plan.planning.search.bound import compute_aggregate_bound
from sparring_plan.planning.search.placement import Placement
from sparring_plan.planning.search.search import SearchResult, compute_prices, search
from sparring_plan.planning.suggestions import suggest_changes
from sparring_plan.simulation.ranking import list_neighbors, rank_again, replay_step

__all__ = [
    "Alternative",
    "Pins",
    "list_alternatives",
    "check_plan",
    "compute_pin_costs",
    "make_plan",
]

_KEY_BYTES = 8


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
    pins = None if before is None else _find_pins(before, options)
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
    return _describe(replace(found, placement=placement), inputs, calibration, before)


def compute_pin_costs(plan: Plan, inputs: PlanInputs, calibration: Calibration) -> Pins:
    """Returns the costs of the pinned and edited tables of a plan.

    Raises:
        ConfigError: A pin is for other ranks, or the inputs do not allow its option.
    """
    options = compute_option_costs(inputs, calibration)
    pins = _find_pins(plan, options)
    free = search(options)
    kept = free if pins is None else search(options, pins)
    return Pins(
        plan.kept,
        None if kept is None else _rounded(kept.placement.seconds * 1e3),
        None if free is None else _rounded(free.placement.seconds * 1e3),
    )


def _find_pins(plan: Plan, options: Options) -> Placement | None:
    """Returns the pinned and edited tables of the inputs; None if there are none."""
    names = [name for name in plan.kept if name in set(options.table_names)]
    if not names:
        return None
    _check_ranks(plan, options)
    placement = Placement(options)
    for name in names:
        _put(placement, plan, name)
    return placement


def _check_ranks(plan: Plan, options: Options) -> None:
    if plan.ranks != options.num_ranks:
        raise ConfigError(
            f"{plan.prefix('ranks')}the plan is for {plan.ranks} ranks, but the topology has "
            f"{options.num_ranks}; create it again"
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
    return _describe(SearchResult(placement, found.bound, seconds), inputs, calibration, plan)


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
        f"{location}{failure}: rank {rank} needs {_size(float(excess[rank, kind]))} more "
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
        seconds = placement.seconds if option == chosen else _step_with(placement, table, option)
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
                _bytes(options, option),
                {each: float(ms) for each, ms in zip(RESOURCES, load * 1e3, strict=True)},
                None if np.isnan(options.hits[option, 0]) else float(options.hits[option, 0]),
            )
        )
    return sorted(
        found, key=lambda each: (each.step_ms is None, each.step_ms, max(each.resource_ms.values()))
    )


def make_placement(plan: Plan, options: Options) -> Placement:
    """Returns the placement that a plan describes.

    Raises:
        ConfigError: The plan has other tables or ranks, or an option that is not possible.
    """
    _check_ranks(plan, options)
    missing = sorted(set(options.table_names) - set(plan.tables))
    others = sorted(set(plan.tables) - set(options.table_names))
    if missing or others:
        found = []
        if missing:
            found.append(f"does not contain {', '.join(missing[:5])}")
        if others:
            found.append(f"contains {', '.join(others[:5])}, which the inputs do not")
        raise ConfigError(
            f"{plan.prefix('tables', *others[:1])}the plan {' and '.join(found)}; create it again"
        )
    placement = Placement(options)
    for name in options.table_names:
        _put(placement, plan, name)
    return placement


def _put(placement: Placement, plan: Plan, name: str) -> None:
    """Adds a table with the sharding of the plan."""
    options, entry = placement.options, plan.tables[name]
    table = options.table_names.index(name)
    option = _find_option(plan, name, options, table)
    shape = options.shape_of(option)
    ranks = np.asarray([] if entry.ranks == "all" else entry.ranks, np.int64)
    expected = 0 if shape.span is Span.ALL else shape.num_shards
    num_nodes = len(np.unique(ranks // options.ranks_per_node))
    if len(ranks) != expected or len(np.unique(ranks)) != expected:
        wanted = "all" if shape.span is Span.ALL else f"{expected} different ranks"
        raise plan.make_error(
            name, "ranks", f"{shape.kind} needs {wanted}, found {entry.ranks}; correct it"
        )
    if expected and (ranks.min() < 0 or ranks.max() >= options.num_ranks):
        most = options.num_ranks - 1
        raise plan.make_error(
            name, "ranks", f"found {entry.ranks}, expected ranks from 0 to {most}; correct it"
        )
    whole = {Span.NODES: shape.num_places, Span.WITHIN: 1}.get(shape.span)
    if whole is not None and num_nodes != whole:
        raise plan.make_error(
            name,
            "ranks",
            f"{shape.kind} needs the ranks of {whole} nodes, found {num_nodes}; correct it",
        )
    placement.put(table, option, ranks)


def _find_option(plan: Plan, name: str, options: Options, table: int) -> int:
    """Returns the option that a plan specifies. Its keys narrow the choice one by one; raises an
    error for the first key that has no match."""
    entry = plan.tables[name]
    num_ranks = "all" if entry.ranks == "all" else len(entry.ranks)
    left = [(option, options.shape_of(option)) for option in options.of(table)]
    keys: list[tuple[str, int | str, Callable[[int, Shape], int | str]]] = [
        ("kind", entry.kind, lambda _, shape: shape.kind),
        ("columns", entry.columns, lambda _, shape: shape.num_columns),
        ("transfer", entry.transfer, lambda _, shape: shape.transfer),
        ("storage", entry.storage, lambda each, _: options.storages[options.storage[each]]),
    ]
    if (
        entry.kind == "table_row_wise"
    ):  # other kinds have a fixed number of ranks, which `_put` checks
        keys.append(("ranks", num_ranks, lambda _, shape: _num_ranks(shape)))
    before = ""
    for key, found, value_of in keys:
        offered = sorted({value_of(*each) for each in left}, key=str)
        if found not in offered:
            expected = " or ".join(map(str, offered))
            unit = " of them" if key == "ranks" else ""
            raise plan.make_error(
                name, key, f"expected {key} {expected}{unit}{before}, found {found}{unit}"
            )
        left = [each for each in left if value_of(*each) == found]
        before += f"{' with' if not before else ','} {key} {found}"
    return left[0][0]


def _num_ranks(shape: Shape) -> int | str:
    return "all" if shape.span is Span.ALL else shape.num_shards


def _describe(
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
        step_ms=_rounded(placement.seconds * 1e3),
        simulated_ms=None if simulated is None else _rounded(simulated.seconds * 1e3),
        bound_ms=_rounded(found.bound_seconds * 1e3),
        gap=_rounded(found.gap, 3),
        price_per_hour=_rounded(price),
        price_per_billion_samples=_rounded(price / samples_an_hour * 1e9),
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
        because += f"; {other} would need {_size(next_best.bytes)} more per rank"
    else:
        because += f"; with {other}, the step would not be shorter, because other tables limit it"
    hits = options.hits[option]
    hits = hits[~np.isnan(hits)]
    if len(hits):
        because += f"; its first tier contains the rows of {hits[0]:.1%} of its ids"
    if "pooled" in inputs.transfers and not spec.is_pooled:
        because += f"; rows are transferred, because {_pooling(spec)}: owners pool sums and means"
    if spec.couples_columns and {"column_wise", "grid", "table_column_wise"} & set(inputs.kinds):
        because += f"; no column blocks, because {spec.method} couples columns"
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
        bytes=_bytes(options, option),
        memory={
            kind: int(each)
            for kind, each in zip(options.memories, memory, strict=True)
            if each or len(memory) == 1
        },
        hit_rates=[_rounded(float(each), 4) for each in hits] if len(hits) else None,
        ms=_rounded(float(load.max()) * 1e3),
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
        seconds = None if option == chosen else _step_with(placement, table, option)
        if seconds is not None:
            shape = options.shape_of(option)
            return NextBest(
                kind=shape.kind,
                columns=shape.num_columns,
                transfer=shape.transfer,
                storage=options.storages[options.storage[option]],
                step_ms=_rounded((seconds - placement.seconds) * 1e3),
                bytes=_bytes(options, option) - _bytes(options, chosen),
            )
    return None


def _step_with(placement: Placement, table: int, option: int) -> float | None:
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


def _bytes(options: Options, option: int) -> int:
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
            f"{_size(float(short[kind]) + own)} per rank, and a rank has {_size(own)}: "
            f"{_size(float(short[kind]))} are missing on each of {ranks} ranks"
        )
    least = np.minimum.reduceat(total.sum(axis=1), options.start[:-1])
    needed = float(least.sum())
    held = ", ".join(
        f"{_size(float(bytes_))} of {name}"
        for name, bytes_ in zip(options.memories, options.capacity, strict=True)
    )
    missing = needed / ranks - float(options.capacity.sum())
    if missing > 0:
        text = (
            f"the tables do not fit: they need at least {_size(needed)}, {_size(needed / ranks)} per "
            f"rank, and a rank has {held}: {_size(missing)} are missing on each of {ranks} ranks"
        )
    else:
        largest = int(np.argmax(least))
        text = (
            f"found no plan that fits: a rank has {held}, which is enough on average, but not for "
            f"whole shards; the largest table is {options.table_names[largest]} with "
            f"{_size(float(least[largest]))}; allow kinds that split it, or more memory"
        )
    return text


def _rounded(value: float, digits: int = 6) -> float:
    return float(f"{value:.{digits}g}")


def _size(bytes_: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if bytes_ < 1024:
            return f"{bytes_:.4g} {unit}"
        bytes_ /= 1024
    return f"{bytes_:.4g} TiB"
