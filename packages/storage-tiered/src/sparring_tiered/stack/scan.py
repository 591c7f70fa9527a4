"""A scan of a stack, which yields each key once.

The scan reads the tiers from the first to the last and skips keys that it has already yielded. Rows only
move down, and promotion copies rows, so a key that exists during the whole scan is found in the first or
a lower tier. If a write has changed rows since the scan began, the scan reads rows again from all
tiers before it yields them. Therefore it yields no old row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sparring.contracts import Columns, Keys, ScanChunk
from sparring_tiered.stack.stack import Stack
from sparring_tiered.stack.tier import Tier

__all__ = ["scan_tiers"]


def scan_tiers(
    stack: Stack, chunk_rows: int, columns: Columns, *, keeps_scores: bool
) -> Iterator[ScanChunk]:
    """Scans a stack, like `Storage._scan_impl`.

    Args:
        stack: Stack to scan.
        chunk_rows: Maximum number of rows per chunk.
        columns: Columns to read.
        keeps_scores: Whether to return the scores of the tiers instead of zeros.
    """
    num_writes = stack.num_writes
    given: list[Keys] = []
    for place, tier in enumerate(stack.tiers):
        before = _sort_keys(given)
        for chunk in _scan_tier(stack, tier, chunk_rows, columns):
            stack.check_open()
            keys, rows, scores = chunk.keys, chunk.rows, chunk.scores
            if len(before):
                places = np.minimum(np.searchsorted(before, keys), len(before) - 1)
                is_new = before[places] != keys
                if not is_new.all():
                    keys, rows, scores = keys[is_new], rows[is_new], scores[is_new]
            if not len(keys):
                continue
            if stack.num_writes != num_writes and place > 0:
                rows = stack.newest(keys, rows, columns)
            if not tier.is_last:
                given.append(keys.copy())
            yield ScanChunk(keys, rows, scores if keeps_scores else np.zeros_like(scores))


def _scan_tier(stack: Stack, tier: Tier, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
    """Yields the rows in the write buffer of a tier, then the other rows of the tier."""
    # Read before the tier, so that a row that is written to the tier during the scan is not missed.
    buffered = tier.write_buffer.merged()
    for begin in range(0, len(buffered), chunk_rows):
        part = slice(begin, begin + chunk_rows)
        rows = buffered.rows[part, columns.begin : columns.end].copy()
        yield ScanChunk(buffered.keys[part].copy(), rows, buffered.scores[part].copy())
    chunks = tier.storage.scan(chunk_rows, columns)
    while True:
        with stack.lock.reading():
            chunk = next(chunks, None)
        if chunk is None:
            return
        is_new = (
            ~np.isin(chunk.keys, buffered.keys) if len(buffered) else np.ones(len(chunk), np.bool_)
        )
        yield ScanChunk(chunk.keys[is_new], chunk.rows[is_new], chunk.scores[is_new])


def _sort_keys(parts: list[Keys]) -> Keys:
    return np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)
