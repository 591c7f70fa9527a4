"""A rank's own GPU among those that its process sees.

Launchers either show each process all GPUs of the machine, and rank n of it takes number n, or they
show each its own only (CUDA_VISIBLE_DEVICES, a container, MIG), and then that one is number 0 in every
process, whatever the rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparring.errors import SparringError

if TYPE_CHECKING:
    from sparring.contracts.ranks.rendezvous import Membership
    from sparring.plugins.registry import PluginManager

__all__ = ["find_own_gpu", "to_visible_number"]


def to_visible_number(number: int, count: int) -> int:
    """The device that a rank means by `number`.

    Args:
        number: of the rank on its machine.
        count: of the devices that this process sees. Where that is one, it is meant.
    """
    return 0 if count == 1 else number


def find_own_gpu(membership: Membership, manager: PluginManager) -> str | None:
    """The GPU that ``cuda`` means on a rank, as ``cuda:1``; None on a single rank that names none,
    where it means the one that is current.

    Args:
        membership: says the rank's number on its machine, or its device.
        manager: where it is asked how many GPUs this process sees.
    """
    if membership.device.startswith("cuda:"):
        number = int(membership.device.partition(":")[2])
    elif membership.world_size == 1:
        return None
    else:
        number = membership.local_rank
    if number:
        number = to_visible_number(number, _num_gpus(manager))
    return f"cuda:{number}"


def _num_gpus(manager: PluginManager) -> int:
    """The number of visible GPUs; 0 where unknown: opening a device then raises the reason."""
    try:
        count = manager.kernels("cuda").num_devices
    except SparringError:
        return 0
    return 0 if count is None else count()
