"""Checks that storages can be stacked, and computes the capabilities of the stack."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparring.contracts import Capabilities, Keys, Storage, TableConfig
from sparring.errors import InvalidArgumentError
from sparring_tiered.stack.tier import PROBE, Tier

__all__ = ["combine_capabilities", "check_tiers", "are_in", "list_keys"]


def list_keys(tier: Tier) -> Keys:
    """Returns all keys of a tier's storage, ``(n,)``."""
    parts = [chunk.keys for chunk in tier.storage.scan(columns=PROBE)]
    return np.concatenate([np.empty(0, np.int64), *parts])


def are_in(keys: Keys, ascending: Keys) -> npt.NDArray[np.bool_]:
    """Returns which of `keys` are in the sorted keys `ascending`."""
    if not len(ascending):
        return np.zeros(len(keys), np.bool_)
    places = np.minimum(np.searchsorted(ascending, keys), len(ascending) - 1)
    found: npt.NDArray[np.bool_] = ascending[places] == keys
    return found


def check_tiers(table: TableConfig, tiers: Sequence[tuple[str, Storage]]) -> None:
    """Checks that storages can be stacked.

    Raises:
        InvalidArgumentError: There are fewer than two tiers, a tier was opened for another table, or a
            bounded tier above the last does not evict.
    """
    if len(tiers) < 2:
        raise InvalidArgumentError(
            f"stack of table {table.name!r}: found {len(tiers)} tiers, expected at least two; add "
            "a tier, or open a single storage without a stack",
            table=table.name,
        )
    for place, (backend, storage) in enumerate(tiers):
        if storage.table != table:
            raise InvalidArgumentError(
                f"stack of table {table.name!r}: tier {place} ({backend}) was opened for "
                f"{storage.table}; open it for {table}",
                table=table.name,
            )
        offered = storage.capabilities
        if place < len(tiers) - 1 and offered.bounded and not offered.evicts:
            raise InvalidArgumentError(
                f"stack of table {table.name!r}: tier {place} ({backend}) is limited to "
                f"{storage.capacity} rows and does not evict, but tiers above the last must "
                "evict; choose a policy that evicts, such as lru",
                table=table.name,
            )


def combine_capabilities(tiers: Sequence[Tier]) -> Capabilities:
    """Returns the capabilities of a stack of these tiers."""
    first, last = tiers[0].storage.capabilities, tiers[-1].storage.capabilities
    is_bounded = all(tier.storage.capabilities.bounded for tier in tiers)
    return Capabilities(
        shared=last.shared,
        persistent=last.persistent,
        notes=last.notes,
        concurrent_reads=True,
        bounded=is_bounded,
        evicts=is_bounded and last.evicts,
        touch=first.touch,
        scores="policy" if is_bounded and last.evicts else "none",
        eviction_scope="bucket",
        devices=first.devices,
    )
