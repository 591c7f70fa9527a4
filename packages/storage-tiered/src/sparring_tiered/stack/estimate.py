"""Estimates of the bytes of a stack, before there is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparring.adapter import growing_filter_bytes
from sparring.errors import PluginError
from sparring_tiered.options import TieredOptions, build_backend_options
from sparring_tiered.stack.tier import PLANNED_DIRTY_KEYS, PLANNED_KEYS

if TYPE_CHECKING:
    from sparring import PluginManager
    from sparring.contracts import TableConfig

__all__ = ["estimate_tiered_bytes"]

_INDEX_BYTES = 24
"""Of a row, about, in a storage with a budget: key, index and score."""
_MAX_IN_PARTS = 5 * PLANNED_KEYS
"""Keys that two parts of a filter hold, the second of four times the first."""


def estimate_tiered_bytes(
    table: TableConfig, options: TieredOptions, rows: int, manager: PluginManager
) -> Mapping[str, int]:
    """Bytes of a stack of so many rows after a flush: the last tier has all of them.

    A tier above has what it can hold. The filters of rows that are newer than those below, and of
    the keys of the tiers below, are in host memory. Buffers are empty between steps.

    Raises:
        PluginError: a tier's backend gives no estimate.
    """
    total: Counter[str] = Counter()
    for place, tier in enumerate(options.tiers):
        descriptor = manager.storage(tier.backend)
        if descriptor.estimate_bytes is None:
            raise PluginError(
                f"estimate of a stack: its tier {place} ({tier.backend}) gives none; ask the makers "
                "of that plugin for estimate_bytes",
                backend=tier.backend,
            )
        given = build_backend_options(options, place, manager, row_bytes=table.row_bytes)
        checked: Any = descriptor.options.model_validate(given)
        rest = () if descriptor.inner is None else (manager,)
        total.update(descriptor.estimate_bytes(table, checked, rows, *rest))
        if place < len(options.tiers) - 1:
            total["host"] += growing_filter_bytes(_plan_dirty_keys(table, checked, given), 0)
        if place > 0:
            # A flush joins the parts of a filter that has grown.
            planned = PLANNED_KEYS if rows <= _MAX_IN_PARTS else rows + rows // 4
            total["host"] += growing_filter_bytes(planned, rows, options.false_positive_rate)
    return dict(total)


def _plan_dirty_keys(table: TableConfig, checked: Any, given: Mapping[str, Any]) -> int:
    capacity = getattr(checked, "capacity", None)
    if capacity is None and "memory_bytes" in given:
        capacity = checked.memory_bytes // (table.row_bytes + _INDEX_BYTES)
    return PLANNED_DIRTY_KEYS if capacity is None else max(1_024, 2 * capacity)
