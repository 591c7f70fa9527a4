"""A step over tables on a device by update methods of core: rows change where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparring.applying.room import check_room, may_refuse
from sparring.applying.writing import count_refused, raise_interrupted
from sparring.device_gradients import DeviceGradients, SummedByKey
from sparring.device_steps import lie_on_device, sums_on_device, writing_on_device
from sparring.kernel_set import DeviceArray, KernelSet
from sparring.updates.builtin import NativeMethod
from sparring.updates.contract import MethodChoice

if TYPE_CHECKING:
    from sparring.step import StepContainer

__all__ = ["apply_methods_on_device", "goes_on_device"]


def goes_on_device(
    container: StepContainer, waiting: Mapping[str, Any], choices: Mapping[str, MethodChoice]
) -> bool:
    """Whether `apply_methods_on_device` may apply the step of these gradients."""
    return lie_on_device(container, waiting) and all(
        isinstance(choices[name].method, NativeMethod) for name in waiting
    )


def apply_methods_on_device(
    container: StepContainer,
    waiting: Mapping[str, DeviceGradients],
    choices: Mapping[str, MethodChoice],
) -> list[str]:
    """As `apply_methods`, for gradients that `goes_on_device` found to be such.

    Raises:
        NonFiniteGradientError, CapacityError, DeviceMemoryError: no row has changed.
        PartialStepError: the device failed or was full when other tables had changed already.
    """
    summed = sums_on_device(container, waiting)
    for name, by_key in summed.items():
        _check_room(container, name, waiting[name].kernels, by_key.keys)
    container.saves.wait_for_room()
    written: list[str] = []
    for name, by_key in summed.items():
        try:
            _write(container, name, waiting[name].kernels, by_key, choices[name])
        except Exception as error:
            names = list(summed)
            place = len(written)
            raise_interrupted(
                container, error, written, names[place : place + 1], names[place + 1 :]
            )
        written.append(name)
        container.counters.rows_updated += len(by_key.keys)
    container.end_step()
    return written


def _write(
    container: StepContainer,
    name: str,
    kernels: KernelSet,
    summed: SummedByKey,
    choice: MethodChoice,
) -> None:
    entry = container.entry(name)
    asked = None
    if entry.admission_filter is not None:
        asked = _Asked(entry.admission_filter, container.counters.steps + 1)
    with writing_on_device(container, name, kernels, summed.keys) as write:
        change = kernels.update_storage(
            container.storage(name),
            choice,
            summed.keys,
            summed.gradients,
            entry.initial_state,
            admit=asked,
            keeps_evicted=write.keeps_evicted,
        )
        write.note_evicted(change.evicted)
    if asked is not None:
        num_refused = asked.record()
        container.counters.rows_updated -= num_refused
        count_refused(container, name, num_refused)


@dataclass(slots=True)
class _Asked:
    """What a filter was asked, and answered."""

    admission_filter: Any
    step: int
    answered: tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]] | None = None
    """Keys, and which of them were admitted."""

    def __call__(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        is_admitted: npt.NDArray[np.bool_] = self.admission_filter.decide(keys, self.step)
        self.answered = keys, is_admitted
        return is_admitted

    def record(self) -> int:
        """Counts the keys, now that the step was applied. Returns how many were refused."""
        if self.answered is None:
            return 0
        self.admission_filter.record(*self.answered)
        return int(np.count_nonzero(~self.answered[1]))


def _check_room(container: StepContainer, name: str, kernels: KernelSet, keys: DeviceArray) -> None:
    """Refuses what does not fit before anything is written, if there is more than one table; the
    update of a single one changes nothing where it raises."""
    storage = container.storage(name)
    if len(container.tables) == 1 or not may_refuse(storage):
        return
    # Asking waits for the device.
    capacity = storage.capacity
    assert capacity is not None
    if storage.size + len(keys) <= capacity:
        return
    found = kernels.find_storage(storage, keys, 1).found
    check_room(storage, int(np.count_nonzero(~np.asarray(kernels.arrays.to_host(found), np.bool_))))
