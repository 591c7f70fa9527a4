"""Division of a training loop among ranks, and collection of its results.

All ranks go through the same batches in the same order, and each trains on its own part of each. So
W ranks take the steps that one process takes, whatever W is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts import Collective, Reduction, TierCounters
from sparring_train.columns import ColumnBatch

__all__ = ["Ranks", "sum_over_ranks"]


class Ranks:
    """This rank among the others.

    Args:
        collective: this rank's place in the group. All ranks call `gathered`, `largest`, `means`,
            `sum` and `total` at the same time.
        wait: returns when nothing else uses the collective; called before each use.
    """

    def __init__(self, collective: Collective, wait: Callable[[], None] = lambda: None) -> None:
        self._collective = collective
        self._wait = wait
        self.rank = collective.rank
        self.world_size = collective.world_size

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that talks to people."""
        return self.rank == 0

    def part(self, batch: ColumnBatch) -> ColumnBatch:
        """This rank's samples of a batch; none where there are fewer than ranks."""
        return batch if self.world_size == 1 else batch.part(self.rank, self.world_size)

    def gathered(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Arrays of all ranks, one after the other: the results for the parts of one batch.

        Args:
            values: ``(n,)``, contiguous; n may differ from rank to rank.
        """
        if self.world_size == 1:
            return values
        self._wait()
        return np.concatenate(self._collective.all_gather(values))

    def means(self, arrays: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """The means over ranks of arrays of any shapes and float dtypes, in one exchange.

        Args:
            arrays: at least one, with the same shapes and dtypes on all ranks.
        """
        if self.world_size == 1:
            return list(arrays)
        # float64 holds every gradient, and a loss with them.
        flat = np.concatenate([each.reshape(-1).astype(np.float64) for each in arrays])
        mean = self._reduced(flat, Reduction.MEAN)
        parts = np.split(mean, np.cumsum([each.size for each in arrays])[:-1])
        return [
            part.reshape(own.shape).astype(own.dtype)
            for part, own in zip(parts, arrays, strict=True)
        ]

    def sum(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The sum over ranks, element by element, with the same bits on all of them.

        Args:
            values: ``(n,)``, contiguous, of one n and dtype on all ranks.
        """
        return self._reduced(values, Reduction.SUM)

    def largest(self, value: int) -> int:
        """The largest of all ranks."""
        return int(self._reduced(np.array([value], np.int64), Reduction.MAX)[0])

    def total(self, counts: Mapping[str, int]) -> dict[str, int]:
        """The sums over ranks of counts of the same names."""
        sums = self.sum(np.array(list(counts.values()), np.int64))
        return dict(zip(counts, sums.tolist(), strict=True))

    def _reduced(self, values: npt.NDArray[Any], reduction: Reduction) -> npt.NDArray[Any]:
        if self.world_size == 1 or not len(values):
            return values
        self._wait()
        return self._collective.all_reduce(values, reduction)


def sum_over_ranks(tiers: list[TierCounters], ranks: Ranks) -> list[TierCounters]:
    """The counters of one table's tiers on all ranks together; every rank calls it."""
    names = [each.name for each in fields(TierCounters) if each.name != "backend"]
    mine = np.array([[getattr(tier, name) for name in names] for tier in tiers], np.float64)
    sums = ranks.sum(mine.reshape(-1)).reshape(mine.shape).tolist()
    return [
        TierCounters(
            tier.backend,
            **{
                name: type(getattr(tier, name))(value)
                for name, value in zip(names, values, strict=True)
            },
        )
        for tier, values in zip(tiers, sums, strict=True)
    ]
