"""Which tables stay on a device, so that no row and no gradient comes to the host.

On one rank a batch may go one way and the next one another. On several, all ranks must go the same
way, also those whose batch is empty: it is decided by what all of them have alike, never by what a
batch holds. A table's rows travel between devices where

- a framework said what works on them there (`StepContainer.keep_on_device`), on all ranks: that, and
  how messages travel, is among the settings that ranks compare at each exchange;
- rows, or gradients, are not narrowed to travel;
- its gradients have one owner: those of a replicated table go to all ranks, by way of host memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sparring.device_gradients import DeviceGradients
from sparring.exchange import WireDtype
from sparring.kernel_set import KernelSet

if TYPE_CHECKING:
    from sparring.step import StepContainer

__all__ = ["kernels_of_step", "pulls_on_device", "travel_in_words"]


def pulls_on_device(container: StepContainer, tables: Iterable[str]) -> bool:
    """Whether rows of these tables come from their owners to this rank's device without a visit to
    the host; the same on all ranks."""
    return container.exchange.options.row_wire_dtype is WireDtype.EXACT and all(
        container.entry(table).kernels is not None for table in tables
    )


def kernels_of_step(container: StepContainer, taken: Mapping[str, Any]) -> dict[str, KernelSet]:
    """The tables whose rows a step changes where they lie, with what works on them there.

    Args:
        taken: table → its gradients, None where it has none. On several ranks they decide nothing.
    """
    if container.collective.world_size == 1:
        return {
            name: each.kernels
            for name, each in taken.items()
            if isinstance(each, DeviceGradients) and _takes_arrays(container, name, each.kernels)
        }
    if container.exchange.options.gradient_wire_dtype is not WireDtype.EXACT:
        return {}
    return {
        entry.config.name: entry.kernels
        for entry in container.entries()
        if entry.kernels is not None and not entry.config.is_replicated
    }


def _takes_arrays(container: StepContainer, name: str, kernels: KernelSet) -> bool:
    devices = {kernels.device, kernels.device.removesuffix(":0")}
    return bool(devices & set(container.storage(name).capabilities.devices))


def travel_in_words(container: StepContainer) -> dict[str, str]:
    """Table → how its rows travel between devices, for all ranks to compare."""
    if container.collective.world_size == 1:
        return {}
    words: dict[str, str] = {}
    devices: list[str] = []
    for entry in container.entries():
        kernels = entry.kernels
        if kernels is None:
            continue
        if kernels.device not in devices:
            devices.append(kernels.device)
        kind, number = kernels.device.partition(":")[0], devices.index(kernels.device)
        is_direct = container.exchange.on_device(kernels).is_direct
        how = "as they are" if is_direct else "by way of pinned memory"
        # Tables of one device travel together, so which ones these are must be alike too.
        which = "" if number == 0 else f", device {number + 1} of this rank"
        words[entry.config.name] = f"between devices ({kind}{which}), {how}"
    return words
