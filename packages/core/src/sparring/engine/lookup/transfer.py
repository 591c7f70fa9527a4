"""Transfers of tables: whether bags travel as rows, or as pools of their owners; and why."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from sparring.contracts.ranks.layout import Transfer
from sparring.engine.state import EngineState
from sparring.engine.tables.entry import TableEntry

__all__ = ["pools_at_owners", "log_row_lookups", "find_transfer"]

_log = logging.getLogger(__name__)


def pools_at_owners(state: EngineState, entry: TableEntry) -> bool:
    """Whether bags of a table are pooled by the owners of its rows; the same on all ranks."""
    return (
        entry.layout.transfer == "pooled"
        and entry.kernels is None
        and state.collective.world_size > 1
    )


def find_transfer(state: EngineState, table: str) -> tuple[Transfer, str]:
    """How bags of a table travel, and why.

    Raises:
        UnknownTableError: it was not declared.
    """
    entry = state.tables.entry(table)
    if pools_at_owners(state, entry):
        return "pooled", "the plan says so; what is no bag goes by rows"
    if entry.layout.transfer == "rows":
        return "rows", "the plan does not say pooled"
    if entry.kernels is not None:
        return "rows", f"they stay on {entry.kernels.device}, where none pools for other ranks"
    return "rows", "this rank holds all of them"


def log_row_lookups(state: EngineState, entries: Iterable[TableEntry]) -> None:
    """Logs, once for each table, that rows are looked up of one whose plan says pooled."""
    told = state.exchange.pooling.logged_tables
    for entry in entries:
        name = entry.config.name
        if name in told or not pools_at_owners(state, entry):
            continue
        told.add(name)
        _log.info(
            "table %r is planned with transfer='pooled', and a lookup of it goes by rows: only sums and "
            "means of bags are pooled by owners, and those not in Keras, nor where they are prefetched",
            name,
        )
