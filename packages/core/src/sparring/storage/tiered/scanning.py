"""All rows of a stack, each key once.

From the top down, skipping keys that were given. Rows only move down, and a promoted row stays
below, so a key that is there throughout is met in the first tier or further down. What a write
changed since the scan began is looked up again in the tiers above, so that no old row is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sparring.storage.contract import Columns, Keys, ScanChunk
from sparring.storage.tiered.tier import Tier

if TYPE_CHECKING:
    from sparring.storage.tiered.storage import TieredStorage

__all__ = ["scan_tiers"]


def scan_tiers(
    stack: TieredStorage, tiers: Sequence[Tier], chunk_rows: int, columns: Columns
) -> Iterator[ScanChunk]:
    """As the twin `_scan_impl` of a stack.

    Args:
        stack: for its lock and its count of writes.
        tiers: hottest first.
        chunk_rows: the most rows of a chunk.
        columns: the part of each row that is wanted.
    """
    num_writes = stack._num_writes
    keeps_scores = stack.capabilities.scores != "none"
    given: list[Keys] = []
    for place, tier in enumerate(tiers):
        before = _sorted(given)
        for chunk in _of_place(stack, tier, chunk_rows, columns):
            stack._check_open()
            keys, rows, scores = chunk.keys, chunk.rows, chunk.scores
            if len(before):
                places = np.minimum(np.searchsorted(before, keys), len(before) - 1)
                is_new = before[places] != keys
                if not is_new.all():
                    keys, rows, scores = keys[is_new], rows[is_new], scores[is_new]
            if not len(keys):
                continue
            if stack._num_writes != num_writes and place > 0:
                rows = stack.newest(keys, rows, columns)
            if not tier.is_last:
                given.append(keys.copy())
            yield ScanChunk(keys, rows, scores if keeps_scores else np.zeros_like(scores))


def _of_place(
    stack: TieredStorage, tier: Tier, chunk_rows: int, columns: Columns
) -> Iterator[ScanChunk]:
    """What is on its way to a tier, then what is there and was not on its way."""
    # Looked at before the tier: what lands meanwhile was held, or is met there.
    held = tier.holding.merged()
    for begin in range(0, len(held), chunk_rows):
        part = slice(begin, begin + chunk_rows)
        rows = held.rows[part, columns.begin : columns.end].copy()
        yield ScanChunk(held.keys[part].copy(), rows, held.scores[part].copy())
    chunks = tier.storage.scan(chunk_rows, columns)
    while True:
        with stack._lock.reading():
            chunk = next(chunks, None)
        if chunk is None:
            return
        is_new = ~np.isin(chunk.keys, held.keys) if len(held) else np.ones(len(chunk), np.bool_)
        yield ScanChunk(chunk.keys[is_new], chunk.rows[is_new], chunk.scores[is_new])


def _sorted(parts: list[Keys]) -> Keys:
    return np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)
