"""Expected number of distinct keys in a batch, from the probability of each key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Floats", "KeyBins", "unique_keys", "make_zipf_bins"]

_NUM_BINS = 256
_EXACT = 32
_MAX_AT_ONCE = 1024

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class KeyBins:
    """Keys of several tables; keys with similar probabilities share a bin.

    Args:
        counts: (tables, bins): number of keys; 0 for unused bins.
        probability: (tables, bins): probability that an id is a specific key of the bin.
    """

    counts: Floats
    probability: Floats

    @classmethod
    def joined(cls, parts: Sequence[KeyBins]) -> KeyBins:
        """Concatenates the tables of all parts."""
        most = max(part.counts.shape[1] for part in parts)

        def padded(bins: Floats) -> Floats:
            return np.pad(bins, ((0, 0), (0, most - bins.shape[1])))

        return cls(
            np.concatenate([padded(part.counts) for part in parts]),
            np.concatenate([padded(part.probability) for part in parts]),
        )

    def __getitem__(self, tables: slice) -> KeyBins:
        return KeyBins(self.counts[tables], self.probability[tables])

    def unique_keys(self, num_ids: Floats) -> Floats:
        """Expected number of distinct keys among `num_ids` draws, (tables,): Σᵢ 1 − (1 − pᵢ)^x."""
        parts = []
        for at in range(0, len(self.counts), _MAX_AT_ONCE):
            part = self[at : at + _MAX_AT_ONCE]
            ids = num_ids[at : at + _MAX_AT_ONCE]
            found = np.sum(part.counts * part.asked(ids), axis=1)
            parts.append(np.minimum(found, np.minimum(part.counts.sum(axis=1), ids)))
        return np.concatenate(parts)

    def asked(self, num_ids: Floats) -> Floats:
        """Probability that a key of the bin is among `num_ids` draws, (tables, bins)."""
        log_not = np.log1p(-np.minimum(self.probability, 1 - 1e-15))
        asked: Floats = -np.expm1(num_ids[:, None] * log_not)
        return asked


def make_zipf_bins(num_rows: Floats, skew: Floats) -> KeyBins:
    """Returns keys whose probabilities follow Zipf's law.

    The most frequent keys have separate bins; the others are in bins of equal width on a logarithmic
    scale, with the probability of the geometric middle. All arguments have the shape (n,).
    """
    rows, alpha = num_rows[:, None].astype(np.float64), skew[:, None].astype(np.float64)
    exact = np.arange(1, _EXACT + 1, dtype=np.float64)[None, :]
    steps = np.linspace(0, 1, _NUM_BINS + 1)[None, :]
    # Keys _EXACT + 1 … rows, with edges half a key before the first and after the last.
    first, last = _EXACT + 0.5, np.maximum(rows + 0.5, _EXACT + 0.5)
    edges = first * (last / first) ** steps
    counts = np.concatenate([np.where(exact <= rows, 1.0, 0.0), np.diff(edges, axis=1)], axis=1)
    middles = np.concatenate(
        [np.broadcast_to(exact, (len(rows), _EXACT)), np.sqrt(edges[:, 1:] * edges[:, :-1])], axis=1
    )
    weights = middles**-alpha
    return KeyBins(counts, weights / np.sum(counts * weights, axis=1, keepdims=True))


def unique_keys(num_rows: Floats, skew: Floats, num_ids: Floats) -> Floats:
    """Expected number of distinct keys among `num_ids` draws by Zipf's law; all of shape (n,)."""
    return make_zipf_bins(num_rows, skew).unique_keys(num_ids)
