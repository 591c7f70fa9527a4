"""Ranks as threads of one process whose tables lie on the emulator, by several transports."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from sparring import LocalGroup
from sparring.adapter import NcclCollective
from sparring.collective.local import LocalCollective
from sparring.contracts import Collective
from sparring.errors import PeerFailure

__all__ = ["fake_nccl", "run_ranks"]


def fake_nccl() -> ModuleType:
    """Core's imitation of NCCL and the driver."""
    found = sys.modules.get("fake_nccl")
    if found is not None:
        return found
    path = Path(__file__).parents[2] / "core" / "tests" / "collective" / "fake_nccl" / "__init__.py"
    spec = importlib.util.spec_from_file_location("fake_nccl", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["fake_nccl"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class DirectCollective(LocalCollective):
    """Takes the emulator's memory, which is the host's."""

    devices = ("cpu", "emulated")


class EmulatedNccl(NcclCollective):
    """Takes the emulator's memory for that of the imitation's GPUs, whose streams are others."""

    devices = ("cpu", "emulated")

    def send(
        self, buffer: Any, destination: int, tag: int = 0, *, stream: int | None = None
    ) -> Any:
        return super().send(_on_gpu(buffer, stream), destination, tag)

    def receive(self, buffer: Any, source: int, tag: int = 0, *, stream: int | None = None) -> Any:
        return super().receive(_on_gpu(buffer, stream), source, tag)


def _on_gpu(buffer: Any, stream: int | None) -> Any:
    """What is sent on a stream lies on a device."""
    return buffer if stream is None else np.from_dlpack(buffer).view(fake_nccl().GpuArray)


def run_ranks(
    way: str,
    world_size: int,
    body: Callable[[Collective], Any],
    deadline_seconds: float = 20.0,
) -> list[Any]:
    """What each rank returns.

    Args:
        way: ``direct``: messages are the device's arrays; ``staged``, ``host``: host memory;
            ``nccl``: by the imitation of NCCL.
    """
    group = LocalGroup(world_size, deadline_seconds=deadline_seconds)
    fake = fake_nccl().open_fake() if way == "nccl" else None

    def join(rank: int) -> Collective:
        if fake is not None:
            return EmulatedNccl(group.join(rank), fake.nccl, fake.cuda, device=rank)
        return DirectCollective(group, rank) if way == "direct" else group.join(rank)

    def run(rank: int) -> Any:
        with join(rank) as collective:
            return body(collective)

    with ThreadPoolExecutor(world_size) as threads:
        futures = [threads.submit(run, rank) for rank in range(world_size)]
    errors = [each.exception() for each in futures]
    # What only follows from another rank's error says less than that one.
    for error in sorted(filter(None, errors), key=lambda each: isinstance(each, PeerFailure)):
        raise error
    return [each.result() for each in futures]
