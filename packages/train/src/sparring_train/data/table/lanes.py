"""Assigns rows to steps: row groups are dealt to lanes, and each step takes rows from all lanes.

    row groups in the epoch's order     0  1  2  3  4  5  6  7      4 lanes
    lane 0                              0        4
    lane 1                              1        5                  step s takes the next rows of
    lane 2                              2        6                  each lane, in proportion to the
    lane 3                              3        7                  lane's number of rows

Lanes, and therefore the rows of a step, depend on the files and the seed, not on the number of ranks.
Each rank has consecutive lanes, so that the concatenated parts of all ranks are the step's rows in the
order of lanes. If there are more ranks than lanes, several ranks share a lane, and each takes a part of
the lane's rows of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Lanes", "Share", "deal_row_groups", "assign_lanes"]

Counts = npt.NDArray[np.int64]

_STEPS = 256
"""Number of steps whose rows are assigned at a time."""


def deal_row_groups(order: npt.NDArray[np.int64], num_lanes: int) -> list[npt.NDArray[np.int64]]:
    """Returns the row groups of each lane, given all row groups in order."""
    return [order[lane::num_lanes] for lane in range(num_lanes)]


@dataclass(frozen=True, slots=True)
class Lanes:
    """Divides the rows of lanes into steps.

    Row j of a lane with n rows is due at time (j + 1/2) / n, and a step takes the rows of all lanes that
    are due next. Therefore each step except the last has exactly `batch_size` rows, and all lanes end in
    the same step.
    """

    rows: Counts
    """``(lanes,)``, number of rows per lane."""
    batch_size: int

    @property
    def num_steps(self) -> int:
        return -(-int(self.rows.sum()) // self.batch_size)

    def steps(self) -> Iterator[tuple[Counts, Counts]]:
        """Yields begin and end ``(lanes,)`` of each step's rows in each lane."""
        begin = np.zeros(len(self.rows), np.int64)
        for first in range(0, self.num_steps, _STEPS):
            steps = np.arange(first, min(first + _STEPS, self.num_steps))
            ends = np.minimum((steps + 1) * self.batch_size, self.rows.sum())
            for end in self._count_taken(ends):
                yield begin, end
                begin = end

    def _count_taken(self, targets: Counts) -> Counts:
        """Returns the number of rows ``(s, lanes)`` of each lane among the first rows by time.

        Args:
            targets: ``(s,)``, numbers of first rows.
        """
        # This is an estimate. Rows at the border are added or removed below until the total is
        # right.
        parts = targets[:, None] / self.rows.sum()
        nearly = np.floor(self.rows * parts + 0.5).astype(np.int64)
        taken: Counts = np.minimum(nearly, self.rows)
        length = np.maximum(self.rows, 1)
        steps = np.arange(len(targets))
        while True:
            excess = taken.sum(axis=1) - targets
            last = np.where(taken > 0, (taken - 0.5) / length, -1.0)
            coming = np.where(taken < self.rows, (taken + 0.5) / length, 2.0)
            # If rows are due at the same time, the first lane takes precedence.
            latest = len(length) - 1 - np.argmax(last[:, ::-1], axis=1)
            soonest = np.argmin(coming, axis=1)
            next_due, last_due = coming[steps, soonest], last[steps, latest]
            is_swap = (next_due < last_due) | ((next_due == last_due) & (soonest < latest))
            removes = (excess > 0) | ((excess == 0) & is_swap)
            adds = (excess < 0) | ((excess == 0) & is_swap)
            if not (removes | adds).any():
                return taken
            taken[steps[removes], latest[removes]] -= 1
            taken[steps[adds], soonest[adds]] += 1


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's part of one lane. If a step takes n rows of the lane, the rank gets the rows from n
    · begin to n · end."""

    lane: int
    begin: float = 0.0
    end: float = 1.0

    def part(self, begin: int, end: int) -> tuple[int, int]:
        """Returns the range of this share among the rows from `begin` to `end`."""
        count = end - begin
        return begin + int(count * self.begin), begin + int(count * self.end)


def assign_lanes(rows: Sequence[int] | Counts, rank: int, world_size: int) -> list[Share]:
    """Returns the lanes of a rank, in order.

    Args:
        rows: number of rows per lane. Ranks get whole lanes with as equal numbers of rows as possible.
        rank: this rank.
        world_size: number of ranks.
    """
    num_lanes = len(rows)
    if world_size > num_lanes:
        # In units of 1 / world_size of a lane, so that adjacent ranks agree on the border.
        begin, end = rank * num_lanes, (rank + 1) * num_lanes
        lanes = range(begin // world_size, -(-end // world_size))
        return [
            Share(
                lane,
                max(begin - lane * world_size, 0) / world_size,
                min(end - lane * world_size, world_size) / world_size,
            )
            for lane in lanes
        ]
    ends = np.cumsum(np.asarray(rows, np.float64))
    cuts = [0]
    for each in range(1, world_size):
        nearest = int(np.argmin(np.abs(ends - ends[-1] * each / world_size))) + 1
        cuts.append(min(max(nearest, cuts[-1] + 1), num_lanes - (world_size - each)))
    cuts.append(num_lanes)
    return [Share(lane) for lane in range(cuts[rank], cuts[rank + 1])]
