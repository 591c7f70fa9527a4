"""Small snapshots for tests, and their expected contents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sparring.contracts.storage.results import ScanChunk
from sparring.contracts.tables.table import TableConfig
from sparring.snapshot.chain import scan_rows
from sparring.snapshot.format.manifest import TableDescription
from sparring.snapshot.reader import Snapshot
from sparring.snapshot.row_router import SnapshotOptions
from sparring.snapshot.writer import SnapshotWriter
from sparring_testing.processes.table_steps import read_chunks

__all__ = ["ITEM", "chunk_of", "chunks_of", "make_chunk", "rows_by_key", "save", "small_files"]

ITEM = TableDescription.of(
    TableConfig("item", 4, state_width=1, state_method="rowwise_adagrad"), has_scores=True
)

Contents = dict[int, tuple[bytes, int]]
"""Key → the bytes of its row, and its score."""


def small_files(**settings: Any) -> SnapshotOptions:
    """Options that cut even small tables into many files of many segments."""
    return SnapshotOptions(
        **{"num_ranges": 4, "file_bytes": 8_000, "buffer_bytes": 4_000, "small_bytes": 1_000}
        | settings
    )


def make_chunk(
    keys: Iterable[int] | np.ndarray, version: int = 0, table: TableDescription = ITEM
) -> ScanChunk:
    """Rows and scores that are a function of key and version."""
    named = np.asarray(list(keys) if not isinstance(keys, np.ndarray) else keys, np.int64)
    bits = np.arange(table.width)[None, :] + (named[:, None] % 97) * 3 + version * 1000
    return ScanChunk(
        named, bits.astype(table.numpy_dtype), (np.abs(named % 1000) + version).astype(np.uint64)
    )


def chunks_of(chunk: ScanChunk, size: int = 300) -> Iterator[ScanChunk]:
    for begin in range(0, len(chunk), size):
        part = slice(begin, begin + size)
        yield ScanChunk(chunk.keys[part], chunk.rows[part], chunk.scores[part])


def chunk_of(*parts: ScanChunk) -> ScanChunk:
    return ScanChunk(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.scores for part in parts]),
    )


def rows_by_key(snapshot: Snapshot, table: str = "item", **options: Any) -> Contents:
    """Returns all rows; fails if a key occurs twice."""
    # All of them first: a snapshot may report only at the end that it returned a key twice.
    return read_chunks(list(scan_rows(snapshot, table, **options)))


def save(
    folder: Path | str,
    step: int,
    chunk: ScanChunk,
    *,
    base: str | None = None,
    erased: Iterable[int] = (),
    table: TableDescription = ITEM,
    options: SnapshotOptions | None = None,
) -> Snapshot:
    """Saves one table, and a little state, as `folder`/step-…."""
    writer = SnapshotWriter(f"{folder}/step-{step:09d}", step=step, base=base, options=options)
    gone = np.asarray(list(erased), np.int64)
    writer.write_table(table, chunks_of(chunk), [gone] if len(gone) else [])
    writer.write_state("optimizer", {"steps": step}, {"moment": np.arange(3) + step})
    writer.finish()
    return writer.commit()
