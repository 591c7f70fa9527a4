"""Shares of finds that each tier serves, by Che's approximation.

A tier that keeps the C rows that were requested last behaves as if it kept each row for T ids after
its last request: for probabilities pᵢ, Σᵢ 1 − exp(−pᵢ·T) = C determines T, and a key is present with
the probability 1 − exp(−pᵢ·T) (H. Che, Y. Tung, Z. Wang, "Hierarchical web caching systems", JSAC
20(7), 2002).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparring_plan.planning.costs.unique_keys import Floats, KeyBins

__all__ = ["TierHits"]

_NUM_POINTS = 96

Ints = NDArray[np.int64]


class TierHits:
    """Hit rates of tiers of any size, for several tables.

    Args:
        bins: Key distributions of the tables.
        ids: (tables,): number of ids per batch and rank.
        ids_of_all: (tables,): number of ids in the batches of all ranks.
    """

    def __init__(self, bins: KeyBins, ids: Floats, ids_of_all: Floats) -> None:
        held = (bins.counts > 0) & (bins.probability > 0)
        largest = np.max(np.where(held, bins.probability, 0), axis=1)
        least = np.min(np.where(held, bins.probability, np.inf), axis=1)
        # From a tier that rarely has the most frequent key to one that almost always has the rarest.
        first, last = 1e-3 / largest, 30 / least
        steps = np.linspace(0, 1, _NUM_POINTS)
        kept_for = first[:, None] * (last / first)[:, None] ** steps
        asked, asked_by_all = bins.asked(ids), bins.asked(ids_of_all)
        unique = np.sum(bins.counts * asked, axis=1)
        unique_of_all = np.sum(bins.counts * asked_by_all, axis=1)
        # The first point is a tier without rows, the last one a tier with all rows.
        values = np.zeros((4, len(ids), _NUM_POINTS + 2))
        values[:, :, 0] = [np.zeros(len(ids)), np.zeros(len(ids)), *np.ones((2, len(ids)))]
        for point in range(_NUM_POINTS):
            gone = np.exp(-bins.probability * kept_for[:, point, None]) * bins.counts
            values[:, :, point + 1] = (
                np.sum(bins.counts - gone, axis=1),
                1 - np.sum(bins.probability * gone, axis=1),
                np.sum(asked * gone, axis=1) / unique,
                np.sum(asked_by_all * gone, axis=1) / unique_of_all,
            )
        values[0, :, -1], values[1, :, -1] = bins.counts.sum(axis=1), 1
        self._rows, self._hits, self._misses, self._misses_of_all = values

    def id_hits(self, tables: Ints, rows: Floats) -> Floats:
        """Share of ids whose key is in a tier with `rows` rows. All arrays have the shape (tables,)."""
        return self._at(tables, rows, self._hits)

    def key_misses(self, tables: Ints, rows: Floats) -> Floats:
        """Share of the distinct keys of a rank's batch that are not in the tier."""
        return self._at(tables, rows, self._misses)

    def key_misses_of_all(self, tables: Ints, rows: Floats) -> Floats:
        """Share of the distinct keys of all ranks' batches that are not in the tier."""
        return self._at(tables, rows, self._misses_of_all)

    def _at(self, tables: Ints, rows: Floats, values: Floats) -> Floats:
        known, asked = self._rows[tables], values[tables]
        below = np.clip(np.sum(known <= rows[:, None], axis=1) - 1, 0, known.shape[1] - 2)
        each = np.arange(len(tables))
        first, last = known[each, below], known[each, below + 1]
        # A tier that is larger than the table contains all rows.
        share = np.clip((rows - first) / np.maximum(last - first, 1e-300), 0, 1)
        found: Floats = asked[each, below] * (1 - share) + asked[each, below + 1] * share
        return found
