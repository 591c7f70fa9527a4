"""What steps over tables on a device have in common: no id, row or gradient comes to the host.

    forward   ids, offsets ──► KernelSet.pool_storage ──► bags
    backward  gradient of the bags ──► DeviceGradients, held by the ResourceManager
    apply     dedup (waits once: how many keys) ──► sums by key ──► finite? (waits) ──► rows change

Rows change by update methods of core (`sparring.device_methods`), or by a function of the framework
over rows that were gathered on the device (`sparring.device_functions`). Both are taken where all
rows are on this rank and all tables with gradients lie on a device. Anything else goes by way of host
arrays, as for every other storage, and gives the same rows: `DeviceGradients.summed` is what it takes.

What an admission filter is asked about comes to the host: the keys that have no row. So do the keys
of a step, where somebody follows what changes, and rows that leave while a snapshot is being taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from sparring.device_gradients import DeviceGradients, SummedByKey
from sparring.kernel_set import KernelSet, NumEvicted
from sparring.non_finite import NonFinite, finite_only
from sparring.resources import Accumulated
from sparring.storage.tiered.device_front import first_device
from sparring.storage.watching import UNWATCHED, Write

if TYPE_CHECKING:
    from sparring.step import StepContainer

__all__ = ["DeviceWrite", "lie_on_device", "sums_on_device", "writing_on_device"]


def lie_on_device(container: StepContainer, waiting: Mapping[str, Any]) -> bool:
    """Whether these gradients, and the tables that they are of, lie on devices of this rank."""
    return (
        bool(waiting)
        and container.collective.world_size == 1
        and all(isinstance(each, DeviceGradients) for each in waiting.values())
        and all(_takes_arrays(container, name, each.kernels) for name, each in waiting.items())
    )


def _takes_arrays(container: StepContainer, name: str, kernels: KernelSet) -> bool:
    devices = {kernels.device, kernels.device.removesuffix(":0")}
    storage = container.storage(name)
    # Below the first tier nobody sees which keys are new: a filter is asked by way of the host.
    is_plain = storage.front() is None or container.entry(name).admission_filter is None
    return is_plain and first_device(storage) in devices


def sums_on_device(
    container: StepContainer, waiting: Mapping[str, DeviceGradients]
) -> dict[str, SummedByKey]:
    """The finite gradients of each table by key; tables without any are left out.

    Raises:
        NonFiniteGradientError: there are others, and the policy is to raise.
    """
    summed = {}
    for name, each in waiting.items():
        found = each.by_key()
        if not each.kernels.is_finite(found.gradients):
            found = _finite_only(container, name, each.kernels, found)
        if len(found.keys):
            summed[name] = found
    return summed


def _finite_only(
    container: StepContainer, name: str, kernels: KernelSet, found: SummedByKey
) -> SummedByKey:
    arrays, step = kernels.arrays, container.counters.steps
    if container.non_finite is NonFinite.RAISE:
        on_host = Accumulated(arrays.to_host(found.keys), arrays.to_host(found.gradients))
        refusal = finite_only({name: on_host}, container.non_finite, step).refusal
        assert refusal is not None
        raise refusal
    is_good = arrays.to_host(kernels.finite_rows(found.gradients)).astype(np.bool_)
    container.counters.rows_skipped_non_finite += int(np.count_nonzero(~is_good))
    kept = arrays.from_host(np.flatnonzero(is_good))
    return SummedByKey(arrays.take(found.keys, kept), arrays.take(found.gradients, kept))


class DeviceWrite:
    """One write to a table on a device, and who wants to know of it."""

    def __init__(self, container: StepContainer, name: str, write: Write) -> None:
        self._container, self._name = container, name
        self.watched: Write = write
        """What follows the write."""

    @property
    def keeps_evicted(self) -> bool:
        """Whether rows that leave are wanted in host memory."""
        return self._container.entry(self._name).watch.is_active

    def note_evicted(self, evicted: NumEvicted) -> None:
        """What left to make room."""
        self._container.counters.rows_evicted += evicted.count
        if evicted.rows is not None:
            self.watched.note_evicted(evicted.rows)
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
