"""A stack whose first tier lies on a device, used by arrays that lie there.

    find     first tier, on the device ──missing keys──► host: tiers below ──their rows──► device
    update   rows from below into the first tier ──► its own update ──what leaves──► host: down
    upsert   its own upsert ──what leaves──► host: down

What the first tier has never comes to the host. Keys do where they must: those that it lacks, and
in a step all of them, because the stack remembers which rows are newer above than below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparring.kernel_set import DeviceArray, KernelSet, NumEvicted, StorageChange, StoredRows
from sparring.storage.results import Columns, Evicted, Keys, Rows, Scores
from sparring.storage.tiered.fronting import Fronting

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparring.storage.contract import Storage
    from sparring.storage.tiered.storage import TieredStorage

__all__ = ["DeviceFront", "device_front", "first_device"]


def first_device(storage: Storage) -> str:
    """Where rows of a storage, or of its first tier, may be reached: ``cpu``, or a device."""
    front = storage.front()
    first = storage if front is None else front.first_storage
    return next((each for each in first.capabilities.devices if each != "cpu"), "cpu")


def device_front(storage: Storage, kernels: KernelSet) -> DeviceFront | None:
    """The stack that a storage is, if its first tier lies on the device of `kernels`."""
    front = storage.front()
    if front is None or first_device(storage) == "cpu":
        return None
    return DeviceFront(front, kernels)


class DeviceFront:
    """Finds and changes rows of a stack.

    Args:
        front: of the stack.
        kernels: of the device that its first tier lies on.
    """

    def __init__(self, front: Fronting, kernels: KernelSet) -> None:
        self._front = front
        self._stack: TieredStorage = front.stack
        self._kernels = kernels

    def find(self, keys: DeviceArray, width: int) -> StoredRows:
        """The first `width` elements of each row, wherever in the stack it is.

        Waits for the device once, and once more where the first tier lacks a key.

        Args:
            keys: ``(u,)``, unique.
            width: ``dim``, or that of whole rows.

        Raises:
            SparringError: a lower tier failed.
        """
        stack, arrays = self._stack, self._kernels.arrays
        stack._check_open()
        with stack._lock.reading():
            stored = self._kernels.find_storage(self._front.first_storage, keys, width)
            is_found = _flags(arrays.to_host(stored.found))
            num_found = int(np.count_nonzero(is_found))
            row_bytes = width * stack.table.numpy_dtype.itemsize
            stack._first.meter.found(
                num_found, len(is_found) - num_found, read_bytes=num_found * row_bytes, seconds=0.0
            )
            missing = np.flatnonzero(~is_found)
            if not len(missing):
                return stored
            wanted = np.ascontiguousarray(
                arrays.to_host(arrays.take(keys, arrays.from_host(missing)))
            )
            rows = np.empty((len(missing), width), stack.table.numpy_dtype)
            found = np.zeros(len(missing), np.bool_)
            stack._find_below(wanted, Columns(0, width), rows, found)
        if found.any():
            places = arrays.from_host(missing[found])
            # As bytes, for frameworks know no 16-bit dtype of NumPy's.
            to: Any = arrays.view(stored.rows, "uint8")
            to[places] = arrays.from_host(rows[found].view(np.uint8))
            flags: Any = stored.found
            flags[places] = arrays.from_host(np.ones(int(np.count_nonzero(found)), np.bool_))
        return stored

    def update(
        self,
        keys: DeviceArray,
        change: Callable[[Storage], StorageChange],
        instead: Callable[[Keys], int],
    ) -> StorageChange:
        """Rows change where they lie in the first tier; those that exist below come up first.

        Args:
            keys: ``(u,)``, unique.
            change: updates rows of the first tier, and keeps what leaves.
            instead: updates the rows of these keys by way of the host, where they do not all fit
                into the first tier; returns how many rows changed.

        Raises:
            SparringError: a lower tier failed; no row has changed.
        """
        front, arrays = self._front, self._kernels.arrays
        on_host = np.ascontiguousarray(arrays.to_host(keys))
        front.begin_update(on_host)
        try:
            probed = self._kernels.find_storage(front.first_storage, keys, 1)
            is_found = _flags(arrays.to_host(probed.found))
            fits = bool(is_found.all()) or front.bring_up(on_host, on_host[~is_found])
            changed = change(front.first_storage) if fits else None
        except BaseException:
            front.abort_update()
            raise
        if changed is None:
            front.abort_update()
            before = self._stack.size
            instead(on_host)
            return StorageChange(self._stack.size - before, NumEvicted(0, None))
        gone = self._ended(on_host, changed.num_new, changed.evicted)
        return StorageChange(changed.num_new, gone)

    def upsert(self, keys: DeviceArray, rows: DeviceArray, num_new: int) -> NumEvicted:
        """Writes whole rows into the first tier.

        Args:
            keys: ``(u,)``, unique.
            rows: ``(u, width)`` of the table's dtype.
            num_new: how many of the keys no tier has, as `find` saw.

        Returns:
            What left the stack altogether.

        Raises:
            SparringError: a lower tier failed; no row has changed.
        """
        front, arrays = self._front, self._kernels.arrays
        on_host = np.ascontiguousarray(arrays.to_host(keys))
        front.begin_update(on_host)
        try:
            evicted = self._kernels.upsert_storage(
                front.first_storage, keys, rows, keeps_evicted=True
            )
        except BaseException:
            front.abort_update()
            raise
        return self._ended(on_host, num_new, evicted)

    def _ended(self, keys: Keys, num_new: int, evicted: NumEvicted) -> NumEvicted:
        parts: tuple[Keys, Rows, Scores] | None = None
        if evicted.rows is not None and len(evicted.rows):
            parts = evicted.rows.keys, evicted.rows.rows, evicted.rows.scores
        gone = self._front.end_update(keys, num_new, parts)
        if gone is None:
            return NumEvicted(0, None)
        rows = gone[1].view(self._stack.table.numpy_dtype)
        return NumEvicted(len(gone[0]), Evicted(gone[0], rows, gone[2]))


def _flags(found: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    return np.asarray(found).astype(np.bool_)
