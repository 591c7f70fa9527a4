"""Estimates the memory of a stack before it is opened."""

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
"""Approximate bytes per row for key, index and score in a storage with a budget."""
_MAX_IN_PARTS = 5 * PLANNED_KEYS
"""Number of keys that fit into two parts of a filter; the second part is four times as large as the
first."""


def estimate_tiered_bytes(
    table: TableConfig, options: TieredOptions, rows: int, manager: PluginManager
) -> Mapping[str, int]:
    """Estimates the bytes of a stack with `rows` rows after a flush, per memory space.

    The last tier contains all rows, and the tiers above are full. The filters of dirty rows and of the
    keys of lower tiers are in host memory. Buffers are empty between steps.

    Raises:
        PluginError: The backend of a tier does not provide an estimate.
    """
    total: Counter[str] = Counter()
    for place, tier in enumerate(options.tiers):
        descriptor = manager.storage(tier.backend)
        if descriptor.estimate_bytes is None:
            raise PluginError(
                f"estimate of a stack: its tier {place} ({tier.backend}) does not provide an estimate; "
                "request estimate_bytes from the authors of that plugin",
                backend=tier.backend,
            )
        given = build_backend_options(options, place, manager, row_bytes=table.row_bytes)
        checked: Any = descriptor.options.model_validate(given)
        rest = () if descriptor.inner is None else (manager,)
        total.update(descriptor.estimate_bytes(table, checked, rows, *rest))
        if place < len(options.tiers) - 1:
            total["host"] += growing_filter_bytes(_plan_dirty_keys(table, checked, given), 0)
        if place > 0:
            # A flush merges the parts of a filter that has grown.
            planned = PLANNED_KEYS if rows <= _MAX_IN_PARTS else rows + rows // 4
            total["host"] += growing_filter_bytes(planned, rows, options.false_positive_rate)
    return dict(total)


def _plan_dirty_keys(table: TableConfig, checked: Any, given: Mapping[str, Any]) -> int:
    capacity = getattr(checked, "capacity", None)
    if capacity is None and "memory_bytes" in given:
        capacity = checked.memory_bytes // (table.row_bytes + _INDEX_BYTES)
    return PLANNED_DIRTY_KEYS if capacity is None else max(1_024, 2 * capacity)
