"""Creates the optimizer of a distributed program's rows: torch's class, or a service's method."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sparring.errors import UnsupportedError
from sparring_torch.modules.table_module import TableModule
from sparring_torch.optim.known_optimizers import KnownOptimizer
from sparring_torch.optim.optimizer import Optimizer
from sparring_torch.optim.sparse_adam import over_rows
from sparring_torch.transpiler.rejections import get_hyperparameters
from sparring_torch.transpiler.scan import Scan
from sparring_torch.transpiler.service import find_form, find_hyper, to_update_method

__all__ = ["list_group_positions", "row_optimizer"]


def row_optimizer(
    scanned: Scan,
    made: Mapping[int, TableModule],
    optimizer: torch.optim.Optimizer,
    *,
    is_served: bool,
) -> tuple[Optimizer, KnownOptimizer | None]:
    """Creates the optimizer of all trained tables. For a service, also returns the known optimizer.

    Args:
        scanned: the scanned program.
        made: `id` of a replaced module → the module with tables.
        optimizer: the user's optimizer, which has the embeddings.
        is_served: whether rows are in a service.

    Raises:
        UnsupportedError: groups need different update methods, but a service has one for all tables.
    """
    modules = [made[id(each.module)] for each in scanned.found if each.is_trained]
    places = _map_tables_to_groups(scanned)
    optimizer_class = over_rows(type(optimizer))
    # If one group has all embeddings, one group is enough for all tables.
    place, *others = dict.fromkeys(places.values())
    by_table = {name: get_hyperparameters(optimizer, own) for name, own in places.items() if others}
    given = get_hyperparameters(optimizer, place)
    modules = [*modules, *scanned.tables]
    if not is_served:
        return Optimizer(modules, optimizer_class, tables=by_table, **given), None
    known = to_update_method(optimizer_class, given)
    assert isinstance(known, KnownOptimizer)  # the scan would have rejected it
    group = optimizer.param_groups[place]
    method = find_form(known, group).method
    by_table = {
        name: find_hyper(known, optimizer.param_groups[own])
        for name, own in places.items()
        if find_form(known, optimizer.param_groups[own]).method.name == method.name
    }
    if len(by_table) < len(places):
        raise UnsupportedError(
            "distribute: groups of the optimizer need different update methods, but all tables of one "
            "optimizer of a service have the same; use the same settings for all embeddings"
        )
    return Optimizer(modules, method, tables=by_table, **find_hyper(known, group)), known


def list_group_positions(scanned: Scan, rows: Optimizer) -> list[int]:
    """Returns, for each group of `rows`, the number of the user's group with its embeddings."""
    places = _map_tables_to_groups(scanned)
    first = next(iter(places.values()))  # if `rows` has one group, all tables are in it
    return [places.get(group.get("table", ""), first) for group in rows.param_groups]


def _map_tables_to_groups(scanned: Scan) -> dict[str, int]:
    """Returns the number of the user's group for each table."""
    places = {
        table: each.place
        for each in scanned.found
        if each.place is not None
        for table, _, _ in each.kind.rows(each.module, each.table)
    }
    first = next(iter(places.values()), 0)
    for module, place in zip(scanned.tables, scanned.table_places, strict=True):
        places |= dict.fromkeys(module.agent.table_names, first if place is None else place)
    return places
