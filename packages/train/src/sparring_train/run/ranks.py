"""Divides batches among ranks, and collects their results.

All ranks read the same batches in the same order, and each trains on its part of each batch. Therefore
W ranks make the same steps as one process.
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
    """Communication of this rank with the others.

    Args:
        collective: collective of all ranks. All ranks must call `gathered`, `largest`, `means`, `sum`
            and `total` at the same time.
        wait: returns when nothing else uses the collective; called before each use.
    """

    def __init__(self, collective: Collective, wait: Callable[[], None] = lambda: None) -> None:
        self._collective = collective
        self._wait = wait
        self.rank = collective.rank
        self.world_size = collective.world_size

    @property
    def is_first(self) -> bool:
        """Whether this rank reports to the user."""
        return self.rank == 0

    def part(self, batch: ColumnBatch) -> ColumnBatch:
        """Returns this rank's part of a batch, which may be empty."""
        return batch if self.world_size == 1 else batch.part(self.rank, self.world_size)

    def gathered(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Concatenates the arrays of all ranks, for example the results for the parts of a batch.

        Args:
            values: ``(n,)``, contiguous; n may differ between ranks.
        """
        if self.world_size == 1:
            return values
        self._wait()
        return np.concatenate(self._collective.all_gather(values))

    def gathered_bytes(self, value: bytes) -> list[bytes]:
        """Returns the bytes of each rank, in the order of ranks."""
        if self.world_size == 1:
            return [value]
        self._wait()
        return [
            each.tobytes() for each in self._collective.all_gather(np.frombuffer(value, np.uint8))
        ]

    def means(self, arrays: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Returns the means over ranks of arrays of any shapes and float dtypes, in one exchange.

        Args:
            arrays: at least one, with the same shapes and dtypes on all ranks.
        """
        if self.world_size == 1:
            return list(arrays)
        # float64 represents gradients of all dtypes, and the loss.
        flat = np.concatenate([each.reshape(-1).astype(np.float64) for each in arrays])
        mean = self._reduced(flat, Reduction.MEAN)
        parts = np.split(mean, np.cumsum([each.size for each in arrays])[:-1])
        return [
            part.reshape(own.shape).astype(own.dtype)
            for part, own in zip(parts, arrays, strict=True)
        ]

    def sum(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the element-wise sum over ranks, bit for bit equal on all of them.

        Args:
            values: ``(n,)``, contiguous, with the same n and dtype on all ranks.
        """
        return self._reduced(values, Reduction.SUM)

    def largest(self, value: int) -> int:
        """Returns the maximum over ranks."""
        return int(self._reduced(np.array([value], np.int64), Reduction.MAX)[0])

    def total(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Returns the sums over ranks of counts with the same names."""
        sums = self.sum(np.array(list(counts.values()), np.int64))
        return dict(zip(counts, sums.tolist(), strict=True))

    def _reduced(self, values: npt.NDArray[Any], reduction: Reduction) -> npt.NDArray[Any]:
        if self.world_size == 1 or not len(values):
            return values
        self._wait()
        return self._collective.all_reduce(values, reduction)


def sum_over_ranks(tiers: list[TierCounters], ranks: Ranks) -> list[TierCounters]:
    """Returns the sums of the counters of a table's tiers over ranks. All ranks call it."""
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
