"""Selection of the GPU of a rank among the GPUs that are visible to its process.

Launchers either make all GPUs of the machine visible to each process, so that local rank n uses GPU n;
or each process only sees its own GPU (CUDA_VISIBLE_DEVICES, a container, MIG), which then has number 0
on every rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparring.errors import SparringError

if TYPE_CHECKING:
    from sparring.contracts.ranks.rendezvous import Membership
    from sparring.plugins.registry import PluginManager

__all__ = ["find_own_gpu", "to_visible_number"]


def to_visible_number(number: int, count: int) -> int:
    """Converts a device number on the machine to the number in this process.

    Args:
        number: device number on the machine.
        count: number of devices that are visible to this process. If it is one, the result is 0.
    """
    return 0 if count == 1 else number


def find_own_gpu(membership: Membership, manager: PluginManager) -> str | None:
    """Returns the GPU that ``cuda`` means on a rank, such as ``cuda:1``.

    Args:
        membership: membership of the rank, with its local rank or device.
        manager: plugin manager with the kernels of ``cuda``, which count the visible GPUs.

    Returns:
        The device; None on a single rank without a device number, where ``cuda`` means the current GPU.
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
    """Returns the number of visible GPUs, or 0 if unknown; opening a device then raises the reason."""
    try:
        count = manager.kernels("cuda").num_devices
    except SparringError:
        return 0
    return 0 if count is None else count()
