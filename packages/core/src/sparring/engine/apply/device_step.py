"""Writes of a step to tables on a device: no id, row or gradient comes to the host.

    forward   ids, offsets ──► KernelSet.pool_storage ──► bags
    backward  gradient of the bags ──► DeviceGradients, held by the ResourceManager
    apply     dedup (waits once: how many keys) ──► sums by key ──► finite? (waits) ──► rows change

On several ranks, sums go to the devices of the owners before rows change (`device_owned_gradients`).
Rows change by update methods of core (`device_methods`), or by a function of the framework
over rows that were gathered on the device (`device_function`). Which tables go so,
`kernels_of_step` says. The others, in the same step, go through host arrays, as every other
storage does, and get the same rows: `DeviceGradients.summed` is what they take.

What an admission filter is asked about comes to the host: the keys that have no row. So do the keys
of a step, where a prefetch or a save follows changes, and rows that leave while a save runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from sparring.contracts.kernels import KernelSet, NumEvicted
from sparring.contracts.storage_optional import UNWATCHED
from sparring.engine.state import EngineState

__all__ = ["DeviceWrite", "writing_on_device"]


class DeviceWrite:
    """One write to a table on a device, noted for prefetches and saves."""

    def __init__(self, state: EngineState, name: str, write: Any) -> None:
        self._state, self._name, self._write = state, name, write

    @property
    def keeps_evicted(self) -> bool:
        """Whether rows that leave are wanted in host memory."""
        return self._state.tables.entry(self._name).write_log.is_active

    def note_evicted(self, evicted: NumEvicted) -> None:
        """Counts rows that left to make room."""
        self._state.counters.rows_evicted += evicted.count
        if evicted.rows is not None:
            self._write.note_evicted(evicted.rows)
        if evicted.count:
            # What was evicted reads as its initial value again.
            self._state.prefetches.note(self._name, None)


@contextmanager
def writing_on_device(
    state: EngineState, name: str, kernels: KernelSet, keys: Any
) -> Iterator[DeviceWrite]:
    """Surrounds a write to rows of `keys`, which are on the device."""
    log = state.tables.entries[name].write_log
    logged = UNWATCHED
    if log.is_active or state.prefetches.unfinished:
        on_host = np.ascontiguousarray(kernels.arrays.to_host(keys))
        state.prefetches.note(name, on_host)
        logged = log.writing(on_host)
    try:
        with logged as write, state.span("update"):
            yield DeviceWrite(state, name, write)
    except Exception:
        state.prefetches.note(name, None)
        raise
