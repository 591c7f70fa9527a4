"""Distinct keys of a batch whose ids follow Zipf's law."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["unique_keys"]

_NUM_BINS = 256
_EXACT = 32
_MOST_AT_ONCE = 1024

Floats = NDArray[np.float64]


def unique_keys(num_rows: Floats, skew: Floats, num_ids: Floats) -> Floats:
    """Expected number of distinct keys among `num_ids` draws: Σᵢ 1 − (1 − pᵢ)^x.

    The most frequent keys count one by one, the others in bins of equal width on a logarithmic
    scale, each with the probability of its geometric middle. All arguments are of shape (n,).
    """
    parts = [
        _unique_keys(num_rows[at:], skew[at:], num_ids[at:])
        for at in range(0, len(num_rows), _MOST_AT_ONCE)
    ]
    return np.concatenate(parts)


def _unique_keys(num_rows: Floats, skew: Floats, num_ids: Floats) -> Floats:
    rows, alpha, ids = (
        each[:_MOST_AT_ONCE, None].astype(np.float64) for each in (num_rows, skew, num_ids)
    )
    exact = np.arange(1, _EXACT + 1, dtype=np.float64)[None, :]
    steps = np.linspace(0, 1, _NUM_BINS + 1)[None, :]
    # Keys _EXACT + 1 … rows, from half before the first to half after the last.
    first, last = _EXACT + 0.5, np.maximum(rows + 0.5, _EXACT + 0.5)
    edges = first * (last / first) ** steps
    counts = np.concatenate([np.where(exact <= rows, 1.0, 0.0), np.diff(edges, axis=1)], axis=1)
    middles = np.concatenate(
        [np.broadcast_to(exact, (len(rows), _EXACT)), np.sqrt(edges[:, 1:] * edges[:, :-1])], axis=1
    )
    weights = middles**-alpha
    probability = weights / np.sum(counts * weights, axis=1, keepdims=True)
    seen = -np.expm1(ids * np.log1p(-np.minimum(probability, 1 - 1e-15)))
    found: Floats = np.minimum(np.sum(counts * seen, axis=1), np.minimum(rows, ids)[:, 0])
    return found
