"""Simulated steps, bytes, memory and prices of plans for several numbers of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparring.errors import CapacityError, InvalidArgumentError
from sparring_plan.planning.costs.costs import compute_option_costs
from sparring_plan.planning.inputs import Calibration, PlanInputs
from sparring_plan.planning.plan import Plan
from sparring_plan.planning.planned_placement import make_placement
from sparring_plan.planning.planner import check_plan, make_plan
from sparring_plan.planning.search.placement import Placement
from sparring_plan.simulation.model import MAX_RANKS
from sparring_plan.simulation.plan_step import PlanStep, simulate_plan

__all__ = ["SheetRow", "SimulatedPlan", "with_ranks", "simulate_sheet", "make_simulated_plan"]


@dataclass(frozen=True, slots=True)
class SimulatedPlan:
    """A plan, its placement, and its simulated step."""

    plan: Plan
    placement: Placement
    step: PlanStep


@dataclass(frozen=True, slots=True)
class SheetRow:
    """Results for one number of ranks. If no plan fits, all results are None and `problem` contains
    the reason.

    Args:
        kinds: Kinds of the tables, sorted.
        storages: Storages of the tables, sorted.
        samples_per_second: Samples per second of all ranks, without dense layers.
        memory_bytes: Kind of memory → bytes on the rank with the highest use.
        hit_rates: Table → share of its ids that each tier serves, hottest first; only for stacks.
        memory_full: When growing tables fill a rank; None if no table grows.
        price_per_hour: Price of all nodes, as given.
    """

    ranks: int
    nodes: int
    problem: str | None = None
    step: PlanStep | None = None
    step_bound_ms: float | None = None
    kinds: Sequence[str] = ()
    storages: Sequence[str] = ()
    samples_per_second: float | None = None
    memory_bytes: dict[str, int] | None = None
    hit_rates: dict[str, list[float]] | None = None
    memory_full: str | None = None
    price_per_hour: float | None = None
    price_per_billion_samples: float | None = None


def simulate_sheet(
    inputs: PlanInputs, calibration: Calibration, ranks: Sequence[int], plan: Plan | None = None
) -> list[SheetRow]:
    """Returns one row per number of ranks, in ascending order. The batch size per rank does not
    change, and the number of nodes grows with the ranks.

    Args:
        plan: Used for its number of ranks; plans for other numbers are created.

    Raises:
        InvalidArgumentError: The ranks do not fill nodes, or the list is empty.
        ConfigError, CapacityError: `plan` is for other tables, or does not fit.
    """
    if not ranks:
        raise InvalidArgumentError("simulation: found no number of ranks; specify one, such as 8")
    return [
        _row(with_ranks(inputs, each), calibration, plan if plan and plan.ranks == each else None)
        for each in sorted(set(ranks))
    ]


def with_ranks(inputs: PlanInputs, ranks: int) -> PlanInputs:
    """Returns the inputs with another number of ranks: on as many nodes as needed, or on part of one
    node.

    Raises:
        InvalidArgumentError: The ranks do not fill nodes, or are too many.
    """
    topology = inputs.topology
    within = min(topology.ranks_per_node, ranks)
    if not 1 <= ranks <= MAX_RANKS:
        raise InvalidArgumentError(
            f"simulation: ranks must be from 1 to {MAX_RANKS:,}, found {ranks}"
        )
    if ranks % within:
        raise InvalidArgumentError(
            f"simulation: {ranks} ranks do not fill nodes of {within}; choose a multiple of {within}"
        )
    changed = topology.model_copy(update={"nodes": ranks // within, "ranks_per_node": within})
    return inputs.model_copy(update={"topology": changed})


def make_simulated_plan(
    inputs: PlanInputs, calibration: Calibration, plan: Plan | None = None
) -> SimulatedPlan:
    """Simulates a plan, or the plan that is created from `inputs`.

    Raises:
        CapacityError: No plan fits, or this one does not.
        ConfigError: `plan` is for other tables or ranks.
    """
    options = compute_option_costs(inputs, calibration)
    if plan is None:
        plan = make_plan(inputs, calibration)
        placement = make_placement(plan, options)
    else:
        # Keep edits, but compute the costs again, because they may be for other inputs.
        plan = check_plan(plan, inputs, calibration)
        placement = make_placement(plan, options)
    return SimulatedPlan(plan, placement, simulate_plan(placement, inputs, calibration))


def _row(inputs: PlanInputs, calibration: Calibration, plan: Plan | None) -> SheetRow:
    topology = inputs.topology
    try:
        simulated = make_simulated_plan(inputs, calibration, plan)
    except CapacityError as error:
        if plan is not None:
            raise
        return SheetRow(topology.num_ranks, topology.nodes, str(error).partition("\n")[0])
    step, placement = simulated.step, simulated.placement
    samples = inputs.samples * topology.num_ranks / step.seconds
    price = topology.price_per_hour * topology.nodes
    tables = simulated.plan.tables.values()
    return SheetRow(
        topology.num_ranks,
        topology.nodes,
        None,
        step,
        simulated.plan.bound_ms,
        sorted({each.kind for each in tables}),
        sorted({each.storage for each in tables}),
        samples,
        {
            kind: int(most)
            for kind, most in zip(
                placement.options.memories, placement.memory.max(axis=0), strict=True
            )
        },
        {
            name: each.hit_rates
            for name, each in simulated.plan.tables.items()
            if each.hit_rates is not None
        },
        simulated.plan.memory_full,
        price,
        price / (samples * 3600) * 1e9,
    )
