"""Judges samples of memory, descriptors and threads.

The limit of the growth applies to the heap, which is the memory that a program has allocated and not
freed, because a leak is such memory. The anonymous memory of a process also contains what malloc keeps
after the program has freed it. It grows when more is needed at once than ever before, for example when a
process catches up after a fault, until malloc can reuse what it has. It is reported too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from soak.processes import Sample

__all__ = ["MAX_SLOPE", "Resources", "judge_resources"]

MAX_SLOPE = 0.001
"""Maximum growth of the heap per 1,000 steps, as a share of the heap."""
WARM_UP_STEPS = 1_000
"""Steps of a life that are not judged: caches fill, and most rows are touched for the first time."""
MIN_GROWTH_BYTES = 1 << 16
"""Growth per 1,000 steps that is not a problem; small processes grow by single pages."""
MAX_MORE = 2
"""Number of descriptors or threads that a life may add, however long it is: a client opens a connection
to another replica of each of the two shards when it first uses it. A leak continues."""
MIN_STEPS = 500
"""Number of steps of a life, after the warm-up, from which its slope is measured."""
_MAX_POINTS = 200


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of all lives of a process.

    Args:
        num_lives: number of its starts that were sampled.
        num_steps: number of steps in lives that are long enough to be judged.
        slope: growth of the heap per 1,000 steps as a share of the heap; None if no life is long enough.
            The anonymous memory is used if the heap is not known.
        growth_bytes: the same in bytes.
        anonymous_slope: the same for the anonymous memory.
        largest_bytes: largest anonymous memory.
        descriptors: medians of the first and the last third of the longest life, after the warm-up.
        threads: the same for threads.
    """

    num_lives: int
    num_steps: int
    slope: float | None
    growth_bytes: float | None
    anonymous_slope: float | None
    largest_bytes: int
    descriptors: tuple[int, int] | None
    threads: tuple[int, int] | None

    @property
    def problems(self) -> list[str]:
        """Violated promises."""
        found = []
        growth_bytes = self.growth_bytes or 0.0
        if self.slope is not None and self.slope > MAX_SLOPE and growth_bytes > MIN_GROWTH_BYTES:
            found.append(
                f"the heap grows by {self.slope:.2%} per 1,000 steps, expected {MAX_SLOPE:.1%}"
            )
        for name in ("descriptors", "threads"):
            counts = getattr(self, name)
            if counts is not None and counts[1] > counts[0] + MAX_MORE:
                found.append(f"{name} increase from {counts[0]} to {counts[1]}")
        return found


def judge_resources(samples: Sequence[Sample]) -> Mapping[str, Resources]:
    """Returns the resources of each process, by name.

    The slope is the median of the slopes between samples of the same life (Theil and Sen), which a few
    samples during a fault do not change.
    """
    lives: dict[str, dict[int, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for each in samples:
        lives[each.name][each.pid].append(each)
    return {name: _judge(list(each.values())) for name, each in sorted(lives.items())}


def _judge(lives: Sequence[Sequence[Sample]]) -> Resources:
    warm = [
        [each for each in life if each.steps >= _first_steps(life) + WARM_UP_STEPS]
        for life in lives
    ]
    long = [life for life in warm if life and life[-1].steps - life[0].steps >= MIN_STEPS]
    counts: list[tuple[int, int] | None] = [None, None]
    if long:
        longest = max(long, key=lambda life: life[-1].steps - life[0].steps)
        third = max(1, len(longest) // 3)
        for at, name in enumerate(("descriptors", "threads")):
            values = [getattr(each, name) for each in longest]
            counts[at] = int(np.median(values[:third])), int(np.median(values[-third:]))
    growth, slope = _slope(long, _heap_bytes)
    return Resources(
        len(lives),
        sum(life[-1].steps - life[0].steps for life in long),
        slope,
        growth,
        _slope(long, lambda each: each.anonymous_bytes)[1],
        max(each.anonymous_bytes for life in lives for each in life),
        *counts,
    )


def _heap_bytes(each: Sample) -> int:
    return each.anonymous_bytes if each.heap_bytes is None else each.heap_bytes


def _slope(
    lives: Sequence[Sequence[Sample]], read: Callable[[Sample], int]
) -> tuple[float | None, float | None]:
    """Returns the growth of a memory per 1,000 steps in bytes, and as a share of the memory."""
    growths = [each for life in lives for each in _growths(life, read)]
    if not growths:
        return None, None
    growth = float(np.median(growths))
    return growth, growth / float(np.median([read(each) for life in lives for each in life]))


def _first_steps(life: Sequence[Sample]) -> int:
    """Returns the trained steps at the begin of a life; a rank that resumes first shows later steps."""
    return min(each.steps for each in life[:30])


def _growths(life: Sequence[Sample], read: Callable[[Sample], int]) -> list[float]:
    """Returns the growth of a memory per 1,000 steps between samples that are at least a quarter of the
    life apart."""
    some = life[:: max(1, len(life) // _MAX_POINTS)]
    steps = np.array([each.steps for each in some], np.float64)
    memory = np.array([read(each) for each in some], np.float64)
    distance = steps[None, :] - steps[:, None]
    growth = memory[None, :] - memory[:, None]
    far = distance >= (steps[-1] - steps[0]) / 4
    return [float(each) for each in growth[far] / distance[far] * 1000]
