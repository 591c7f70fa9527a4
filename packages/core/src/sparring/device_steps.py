"""What steps over tables on a device have in common: no id, row or gradient comes to the host.

    forward   ids, offsets ──► KernelSet.pool_storage ──► bags
    backward  gradient of the bags ──► DeviceGradients, held by the ResourceManager
    apply     dedup (waits once: how many keys) ──► sums by key ──► finite? (waits) ──► rows change

On several ranks, sums go to the devices of the owners before rows change (`sparring.device_owned`).
Rows change by update methods of core (`sparring.device_methods`), or by a function of the framework
over rows that were gathered on the device (`sparring.device_functions`). Which tables go so,
`sparring.device_ways` says. The others, in the same step, go by way of host arrays, as every other
storage does, and get the same rows: `DeviceGradients.summed` is what they take.

What an admission filter is asked about comes to the host: the keys that have no row. So do the keys
of a step, where somebody follows what changes, and rows that leave while a snapshot is being taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from sparring.kernel_set import KernelSet, NumEvicted
from sparring.storage.watching import UNWATCHED

if TYPE_CHECKING:
    from sparring.step import StepContainer

__all__ = ["DeviceWrite", "writing_on_device"]


class DeviceWrite:
    """One write to a table on a device, and who wants to know of it."""

    def __init__(self, container: StepContainer, name: str, write: Any) -> None:
        self._container, self._name, self._write = container, name, write

    @property
    def keeps_evicted(self) -> bool:
        """Whether rows that leave are wanted in host memory."""
        return self._container.entry(self._name).watch.is_active

    def note_evicted(self, evicted: NumEvicted) -> None:
        """What left to make room."""
        self._container.counters.rows_evicted += evicted.count
        if evicted.rows is not None:
            self._write.note_evicted(evicted.rows)
        if evicted.count:
            # What was evicted reads as its initial value again.
            self._container.aheads.note(self._name, None)


@contextmanager
def writing_on_device(
    container: StepContainer, name: str, kernels: KernelSet, keys: Any
) -> Iterator[DeviceWrite]:
    """Surrounds a write to rows of `keys`, which lie on the device."""
    watch = container.entry(name).watch
    watched = UNWATCHED
    if watch.is_active or container.aheads.are_any:
        on_host = np.ascontiguousarray(kernels.arrays.to_host(keys))
        container.aheads.note(name, on_host)
        watched = watch.writing(on_host)
    try:
        with watched as write, container.span("update"):
            yield DeviceWrite(container, name, write)
    except Exception:
        container.aheads.note(name, None)
        raise
