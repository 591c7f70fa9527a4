"""Transfer of tables: whether bags are sent as rows, or pooled by the owners of their rows."""

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
    """Returns how bags of a table are transferred, and the reason.

    Raises:
        UnknownTableError: the table was not declared.
    """
    entry = state.tables.entry(table)
    if pools_at_owners(state, entry):
        return "pooled", "the plan specifies it; lookups without pooling are transferred by rows"
    if entry.layout.transfer == "rows":
        return "rows", "the plan does not specify pooled"
    if entry.kernels is not None:
        return "rows", f"they stay on {entry.kernels.device}, where owners cannot pool"
    return "rows", "all of them are on this rank"


def log_row_lookups(state: EngineState, entries: Iterable[TableEntry]) -> None:
    """Logs, once per table, that rows are looked up although the plan specifies pooled."""
    told = state.exchange.pooling.logged_tables
    for entry in entries:
        name = entry.config.name
        if name in told or not pools_at_owners(state, entry):
            continue
        told.add(name)
        _log.info(
            "table %r is planned with transfer='pooled', but a lookup of it is transferred by rows: "
            "owners pool only sums and means of bags, and neither in Keras nor in prefetches",
            name,
        )
