"""Embeddings from tables on a device, alone or as the first tier of a stack."""

from __future__ import annotations

from sparring.declared_table import DeclaredTable
from sparring.kernel_set import DeviceArray, KernelSet
from sparring.kernels import Pooling
from sparring.storage.tiered.device_front import device_front

__all__ = ["pooled_on_device"]


def pooled_on_device(
    kernels: KernelSet,
    entry: DeclaredTable,
    ids: DeviceArray,
    offsets: DeviceArray,
    *,
    mode: Pooling,
    weights: DeviceArray | None,
) -> DeviceArray:
    """One embedding for each bag: ``(b, dim)`` of the computing dtype.

    A table of its own is pooled where its rows lie, and nobody waits. Of a stack, the rows of the
    batch are gathered first, because some may lie below: that waits for the device twice, and once
    more where some do.

    Args:
        kernels: of the table's device.
        entry: the table.
        ids: ``(n,)``, with repeats.
        offsets: ``(b + 1,)``, from 0 to n.
        mode: ``sum`` or ``mean``.
        weights: ``(n,)`` of the computing dtype.

    Raises:
        SparringError: a lower tier failed.
    """
    front = None if entry.storage is None else device_front(entry.storage, kernels)
    if front is None:
        return kernels.pool_storage(
            entry.storage, entry.config, ids, offsets, mode=mode, weights=weights
        )
    table = entry.config
    found = kernels.dedup(ids)
    stored = front.find(found.keys, table.dim)
    kernels.initialize(stored.rows, found.keys, stored.found, table)
    rows = kernels.decode(stored.rows) if table.is_half else stored.rows
    return kernels.pool(rows, found.inverse, offsets, mode=mode, weights=weights)
