"""Ranks as threads of one process with tables on the emulator, with several transports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparring import LocalGroup
from sparring.collective.local import LocalCollective
from sparring.contracts import Collective
from sparring_testing.processes import rank_threads

__all__ = ["run_ranks"]

fake_nccl = pytest.importorskip("sparring_nccl.testing", reason="sparring-nccl is not installed")


class DirectCollective(LocalCollective):
    """Treats the emulator's memory as host memory, which it is."""

    devices = ("cpu", "emulated")


class EmulatedNccl(fake_nccl.NcclCollective):  # type: ignore[misc, name-defined]
    """Treats the emulator's memory as the imitation's GPU memory, which has other streams."""

    devices = ("cpu", "emulated")

    def send(
        self, buffer: Any, destination: int, tag: int = 0, *, stream: int | None = None
    ) -> Any:
        return super().send(_on_gpu(buffer, stream), destination, tag)

    def receive(self, buffer: Any, source: int, tag: int = 0, *, stream: int | None = None) -> Any:
        return super().receive(_on_gpu(buffer, stream), source, tag)


def _on_gpu(buffer: Any, stream: int | None) -> Any:
    """Treats tensors with a stream as tensors on a device."""
    return buffer if stream is None else np.from_dlpack(buffer).view(fake_nccl.GpuArray)


def run_ranks(
    way: str,
    world_size: int,
    body: Callable[[Collective], Any],
    deadline_seconds: float = 20.0,
) -> list[Any]:
    """Returns the result of each rank.

    Args:
        way: ``direct``: messages are arrays of the device; ``staged``, ``host``: host memory;
            ``nccl``: the imitation of NCCL.
    """
    fake = fake_nccl.open_fake_nccl() if way == "nccl" else None

    def join(group: LocalGroup, rank: int) -> Collective:
        if fake is not None:
            return EmulatedNccl(group.join(rank), fake.nccl, fake.cuda, device=rank)
        return DirectCollective(group, rank) if way == "direct" else group.join(rank)

    return rank_threads.run_ranks(world_size, body, deadline_seconds, join)
