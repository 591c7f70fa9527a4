"""The GPU to measure, or the emulator, on which programs are only tested."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import torch

from benchmarks.measuring import Figure
from sparring import make_plugin_manager
from sparring.contracts import ArraySource, KernelSet

__all__ = ["Bar", "Machine", "Stage", "measure"]

_SAMPLES, _CALLS, _UNCOUNTED = 15, 8, 3
_COPY_BYTES = 1 << 30
_SHRINK = 4096

Call = Callable[[int], object]
"""Function to measure; it is called with the number of the round."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One kernel, or one kind of copy, in a call."""

    name: str
    launches: float
    """Number of launches per call."""
    seconds: float
    """Seconds on the GPU per call."""


@dataclass(frozen=True)
class Machine:
    """The device on which programs run, and how they are timed.

    Args:
        device: ``cuda``, or ``emulated``, where sizes are tiny and times are meaningless.
    """

    device: str

    @property
    def is_measured(self) -> bool:
        return self.device != "emulated"

    @property
    def where(self) -> str:
        """Name of the device for torch; the memory of the emulator is host memory."""
        return "cuda" if self.is_measured else "cpu"

    @property
    def name(self) -> str:
        return str(torch.cuda.get_device_name()) if self.is_measured else "the emulator"

    def sized(self, count: int) -> int:
        """Returns the number of rows or ids to use; a small number on the emulator."""
        return count if self.is_measured else max(64, count // _SHRINK)

    def stream(self) -> int:
        return int(torch.cuda.current_stream().cuda_stream) if self.is_measured else 0

    def kernels(self) -> KernelSet:
        def empty(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
            return torch.empty(shape, dtype=getattr(torch, dtype), device=self.where)

        arrays = ArraySource(empty=empty, stream=self.stream)
        return make_plugin_manager().kernels(self.device).factory(arrays)

    def seconds_of(self, call: Call) -> float:
        """Returns the median time of a call.

        Calls follow each other without a pause, so that host work for the next call overlaps with GPU
        work, as in a training loop.
        """
        if not self.is_measured:
            begin_seconds = time.perf_counter()
            call(0)
            return time.perf_counter() - begin_seconds
        seconds = []
        turn = 0
        for sample in range(_UNCOUNTED + _SAMPLES):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(_CALLS):
                call(turn)
                turn += 1
            end.record()
            end.synchronize()
            if sample >= _UNCOUNTED:
                seconds.append(begin.elapsed_time(end) / 1000 / _CALLS)
        return median(seconds)

    def stages_of(self, call: Call) -> list[Stage]:
        """Returns the stages of a call, longest first; empty on the emulator."""
        if not self.is_measured:
            return []
        from torch.profiler import ProfilerActivity, profile

        call(0)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for turn in range(_CALLS):
                call(turn)
            torch.cuda.synchronize()
        stages = [
            Stage(each.key, each.count / _CALLS, each.self_device_time_total / 1e6 / _CALLS)
            for each in profiled.key_averages()
            if each.self_device_time_total > 0
        ]
        return sorted(stages, key=lambda stage: -stage.seconds)

    @cached_property
    def copy_bandwidth(self) -> float:
        """Bytes read and written per second by a copy of 1 GiB within GPU memory."""
        source = torch.empty(self.sized(_COPY_BYTES), dtype=torch.uint8, device=self.where)
        source.random_(0, 256)
        target = torch.empty_like(source)
        return 2 * len(source) / self.seconds_of(lambda _: target.copy_(source))

    def explained(self, seconds: float, stages: list[Stage]) -> str:
        """Describes the stages of a call in one line."""
        if not stages:
            return ""
        busy = sum(stage.seconds for stage in stages)
        parts = [
            f"{stage.name[:48]} {stage.launches:g} x, {stage.seconds * 1e6:.0f} us"
            for stage in stages[:6]
        ]
        return (
            f"{seconds * 1e6:.0f} us per call, the GPU is busy for {busy * 1e6:.0f} us in "
            f"{sum(stage.launches for stage in stages):.0f} launches: {'; '.join(parts)}"
        )

    def figure(self, what: str, value: float, unit: str, bar: Bar | None, detail: str) -> Figure:
        """Returns a line of the report. On the emulator it contains no number."""
        if not self.is_measured:
            return Figure(what, "tried", None if bar is None else bar.text(unit), None, detail)
        return Figure(
            what,
            f"{value:.3g} {unit}",
            None if bar is None else bar.text(unit),
            None if bar is None else bar.is_reached(value),
            detail,
        )


@dataclass(frozen=True, slots=True)
class Bar:
    """The limit of a figure."""

    at_least: float | None = None
    at_most: float | None = None

    def text(self, unit: str) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g} {unit}"
        return f"<= {self.at_most:g} {unit}"

    def is_reached(self, value: float) -> bool:
        if self.at_least is not None:
            return value >= self.at_least
        assert self.at_most is not None
        return value <= self.at_most


def measure(machine: Machine) -> list[Figure]:
    """Measures figures that are printed in every run."""
    rate = machine.copy_bandwidth / 1e9
    return [machine.figure("copy within the memory", rate, "GB/s", None, "1 GiB")]
