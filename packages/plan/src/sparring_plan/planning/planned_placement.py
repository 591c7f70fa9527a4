"""Converts plans, which people may edit, to placements of the search."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparring.errors import ConfigError
from sparring_plan.planning.costs.costs import Options, Shape, Span
from sparring_plan.planning.plan import Plan
from sparring_plan.planning.search.placement import Placement

__all__ = ["find_pins", "make_placement"]


def find_pins(plan: Plan, options: Options) -> Placement | None:
    """Returns the pinned and edited tables of the inputs; None if there are none."""
    names = [name for name in plan.kept if name in set(options.table_names)]
    if not names:
        return None
    _check_ranks(plan, options)
    placement = Placement(options)
    for name in names:
        _put(placement, plan, name)
    return placement


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


def _check_ranks(plan: Plan, options: Options) -> None:
    if plan.ranks != options.num_ranks:
        raise ConfigError(
            f"{plan.prefix('ranks')}the plan is for {plan.ranks} ranks, but the topology has "
            f"{options.num_ranks}; create it again"
        )


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
