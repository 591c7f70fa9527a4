"""Buckets and keys that one rank owns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparring.contracts import NUM_PARTITIONS, Keys, partition

__all__ = ["Ownership"]


class Ownership:
    """Buckets that contain the partitions of one rank.

    If the world size divides `num_buckets`, each bucket has one owner. Otherwise the few buckets at the
    borders contain rows of several ranks, and the key determines the owner.

    Args:
        partitions: ``(n,)`` partitions of this rank.
        num_buckets: a power of two, at most 4,096.
    """

    def __init__(self, partitions: npt.NDArray[np.int64], num_buckets: int) -> None:
        self._is_owned = np.zeros(NUM_PARTITIONS, np.bool_)
        self._is_owned[partitions] = True
        in_bucket = self._is_owned.reshape(num_buckets, -1)
        whole = in_bucket.all(axis=1)
        self.whole_buckets: list[int] = np.flatnonzero(whole).tolist()
        """Buckets whose rows all belong to this rank."""
        self.shared_buckets: list[int] = np.flatnonzero(in_bucket.any(axis=1) & ~whole).tolist()
        """Buckets that may also contain rows of other ranks."""

    def owns(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Returns ``(n,)`` whether this rank owns each key."""
        owned: npt.NDArray[np.bool_] = self._is_owned[partition(keys)]
        return owned
