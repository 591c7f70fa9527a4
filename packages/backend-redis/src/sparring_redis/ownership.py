"""Which buckets, and which keys in them, are a rank's own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparring.contracts import NUM_PARTITIONS, Keys, partition

__all__ = ["Ownership"]


class Ownership:
    """The partitions of one rank, seen as buckets.

    Where the world size divides `num_buckets`, each bucket is one rank's. Otherwise the few buckets
    at the borders have rows of several ranks, whose keys tell whose they are.

    Args:
        partitions: ``(n,)`` those of this rank.
        num_buckets: a power of two, up to 4,096.
    """

    def __init__(self, partitions: npt.NDArray[np.int64], num_buckets: int) -> None:
        self._is_owned = np.zeros(NUM_PARTITIONS, np.bool_)
        self._is_owned[partitions] = True
        in_bucket = self._is_owned.reshape(num_buckets, -1)
        whole = in_bucket.all(axis=1)
        self.whole_buckets: list[int] = np.flatnonzero(whole).tolist()
        """All of whose rows are this rank's."""
        self.shared_buckets: list[int] = np.flatnonzero(in_bucket.any(axis=1) & ~whole).tolist()
        """Some of whose rows may be another rank's."""

    def owns(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """``(n,)`` whether each key is this rank's."""
        owned: npt.NDArray[np.bool_] = self._is_owned[partition(keys)]
        return owned
