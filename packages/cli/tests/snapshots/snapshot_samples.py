"""Small snapshots for tests of commands, and their expected contents."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from sparring import (
    ScanChunk,
    Snapshot,
    SnapshotWriter,
    TableConfig,
    TableDescription,
    scan_rows,
)

__all__ = ["ITEM", "make_chunk", "rows_by_key", "save"]

ITEM = TableDescription.of(
    TableConfig("item", 4, state_width=1, state_method="rowwise_adagrad"), has_scores=True
)


def make_chunk(keys: Iterable[int], version: int = 0, table: TableDescription = ITEM) -> ScanChunk:
    """Rows and scores that are a function of key and version."""
    named = np.asarray(list(keys), np.int64)
    rows = np.arange(table.width)[None, :] + (named[:, None] % 97) * 3 + version * 1000
    scores = np.abs(named % 1000) + version
    return ScanChunk(named, rows.astype(table.numpy_dtype), scores.astype(np.uint64))


def save(
    folder: Path,
    step: int,
    chunk: ScanChunk,
    *,
    base: str | None = None,
    erased: Iterable[int] = (),
    table: TableDescription = ITEM,
) -> Snapshot:
    """Saves one table, and a little state, as `folder`/step-…."""
    writer = SnapshotWriter(f"{folder}/step-{step:09d}", step=step, base=base)
    gone = np.asarray(list(erased), np.int64)
    writer.write_table(table, [chunk], [gone] if len(gone) else [])
    writer.write_state("optimizer", {"steps": step}, {"moment": np.arange(3) + step})
    writer.finish()
    return writer.commit()


def rows_by_key(snapshot: Snapshot) -> dict[int, tuple[bytes, int]]:
    """Key → the bytes of its row, and its score."""
    return {
        int(key): (row.tobytes(), int(score))
        for chunk in scan_rows(snapshot, "item")
        for key, row, score in zip(chunk.keys, chunk.rows, chunk.scores, strict=True)
    }
