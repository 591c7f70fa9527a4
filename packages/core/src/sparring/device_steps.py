"""Steps over tables that lie on a device: no id, row or gradient comes to the host.

    forward   ids, offsets ──► KernelSet.pool_storage ──► bags
    backward  gradient of the bags ──► DeviceGradients, held by the ResourceManager
    apply     dedup (waits once: how many keys) ──► sums by key ──► finite? (waits) ──► update_storage

This way is taken where all rows are on this rank, all tables with gradients lie on a device, and
update methods of core change them. Anything else goes by way of host arrays, as for every other
storage, and gives the same rows: `DeviceGradients.summed` is what it takes. So does a table that may
evict, or that has an admission filter.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from sparring.device_gradients import DeviceGradients, SummedByKey
from sparring.errors import (
    CapacityError,
    NonFiniteGradientError,
    PartialStepError,
)
from sparring.kernel_set import KernelSet
from sparring.non_finite import NonFinite
from sparring.updates.builtin import NativeMethod
from sparring.updates.contract import MethodChoice

if TYPE_CHECKING:
    from sparring.step import StepContainer

__all__ = ["apply_on_device", "goes_on_device"]


def goes_on_device(
    container: StepContainer, waiting: Mapping[str, Any], choices: Mapping[str, MethodChoice]
) -> bool:
    """Whether `apply_on_device` may apply the step of these gradients."""
    return (
        bool(waiting)
        and container.collective.world_size == 1
        and container.non_finite is NonFinite.RAISE
        and all(isinstance(each, DeviceGradients) for each in waiting.values())
        and all(isinstance(choices[name].method, NativeMethod) for name in waiting)
        and all(_is_plain(container, name, each.kernels) for name, each in waiting.items())
    )


def _is_plain(container: StepContainer, name: str, kernels: KernelSet) -> bool:
    capabilities = container.storage(name).capabilities
    devices = {kernels.device, kernels.device.removesuffix(":0")}
    return (
        container.entry(name).admission_filter is None
        and not capabilities.evicts
        and bool(devices & set(capabilities.devices))
    )


def apply_on_device(
    container: StepContainer,
    waiting: Mapping[str, DeviceGradients],
    choices: Mapping[str, MethodChoice],
) -> list[str]:
    """As `apply_methods`, for gradients that `goes_on_device` found to be such.

    Raises:
        NonFiniteGradientError, CapacityError, DeviceMemoryError: no row has changed.
        PartialStepError: the device failed or was full when other tables had changed already.
    """
    summed = {}
    for name, each in waiting.items():
        summed[name] = each.by_key()
        if not each.kernels.is_finite(summed[name].gradients):
            raise _non_finite(container, name)
        _check_room(container, name, len(summed[name].keys))
    container.saves.wait_for_room()
    written: list[str] = []
    for name, by_key in summed.items():
        try:
            _write(container, name, waiting[name].kernels, by_key, choices[name])
        except Exception as error:
            container.aheads.note(name, None)
            _raise_interrupted(container, error, written, name, list(summed))
        written.append(name)
        container.counters.rows_updated += len(by_key.keys)
    container.end_step()
    return [name for name in summed if len(summed[name].keys)]


def _write(
    container: StepContainer,
    name: str,
    kernels: KernelSet,
    summed: SummedByKey,
    choice: MethodChoice,
) -> None:
    entry = container.entry(name)
    state = entry.initial_state
    with ExitStack() as watched:
        # Who follows the changes of a table wants to know its keys, in host memory.
        if entry.watch.is_active or container.aheads.are_any:
            keys = np.ascontiguousarray(kernels.arrays.to_host(summed.keys))
            container.aheads.note(name, keys)
            watched.enter_context(entry.watch.writing(keys))
        with container.span("update"):
            kernels.update_storage(
                container.storage(name),
                choice,
                summed.keys,
                summed.gradients,
                state,
            )


def _check_room(container: StepContainer, name: str, num_keys: int) -> None:
    """Refuses what might not fit before anything is written, if there is more than one table; the
    update of a single one changes nothing where it raises."""
    storage = container.storage(name)
    if not storage.capabilities.bounded or len(container.tables) == 1:
        return
    # Asking waits for the device.
    capacity, size = storage.capacity, storage.size
    assert capacity is not None
    if size + num_keys > capacity:
        raise CapacityError(
            f"table {name!r} holds {size} rows and may hold {capacity}; this step has gradients "
            f"for {num_keys} keys, all of which may be new. No row was changed. Raise its "
            "capacity, or choose a policy that evicts",
            table=name,
            capacity=capacity,
        )


def _non_finite(container: StepContainer, name: str) -> NonFiniteGradientError:
    step = container.counters.steps
    return NonFiniteGradientError(
        f"step {step}: the gradients of table {name!r} hold NaN or infinity; no row was changed. "
        "Lower the learning rate, clip gradients, or choose non_finite='skip'",
        table=name,
        step=step,
    )


def _raise_interrupted(
    container: StepContainer, error: Exception, written: list[str], failed: str, names: list[str]
) -> None:
    if not written:
        raise error
    untouched = names[len(written) + 1 :]
    raise PartialStepError(
        f"step {container.counters.steps + 1} reached some of its tables only, as writing "
        f"{failed} failed ({type(error).__name__}: {error}). Changed: {', '.join(written)}; "
        f"failed: {failed}. Mend what failed, then load a snapshot; or go on, if a step that part "
        "of the tables took does no harm",
        written=tuple(written),
        failed=(failed,),
        untouched=tuple(untouched),
    ) from error
