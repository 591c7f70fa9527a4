"""Merges a delta and its bases into a full serving snapshot, without the training snapshots."""

from __future__ import annotations

import math
import os
from contextlib import nullcontext
from tempfile import TemporaryDirectory

import numpy as np

from sparring.adapter import BloomFilter
from sparring.contracts import partition
from sparring_packed.manifest import ServingTable, read_manifest
from sparring_packed.tables import PackedTables
from sparring_packed.version_files import (
    FILE_BYTES,
    NUM_PARTITIONS,
    Window,
    WriteOptions,
    WriteResult,
    commit,
)

__all__ = ["merge"]

_WHOLE = (0, NUM_PARTITIONS)


def merge(
    url: str | os.PathLike[str],
    out_url: str | os.PathLike[str],
    *,
    file_bytes: int = FILE_BYTES,
    filter_rate: float | None = 0.01,
) -> WriteResult:
    """Writes a full serving snapshot with the stored rows and the model of a delta.

    The bytes of the rows are copied, so quantized rows are not rounded again. The time depends on the
    size of the tables and not on the number of snapshots that the run has saved. Files in object storage
    are copied to a temporary folder first.

    Args:
        url: URL of the delta.
        out_url: URL of the new serving snapshot. A delta on it contains all changes since the given
            delta was trained.
        file_bytes: see `WriteOptions`.
        filter_rate: see `WriteOptions`.

    Raises:
        SnapshotError: `out_url` already exists.
        SnapshotDamagedError: the delta or one of its bases is damaged.
        SnapshotIOError: the file system failed. Nothing was committed.

    Examples:
        >>> import sparring_packed
        >>> from tempfile import TemporaryDirectory
        >>> from sparring import SaveOptions, StepContainer, TableConfig
        >>> with TemporaryDirectory() as folder, StepContainer() as container:
        ...     container.declare(TableConfig("item", dim=4))
        ...     _ = container.save(f"{folder}/first", options=SaveOptions(is_base=True))
        ...     container.assign("item", [7], [[0, 1, 2, 3]])
        ...     _ = container.save(f"{folder}/second", base=f"{folder}/first")
        ...     full, delta = f"{folder}/served/1", f"{folder}/served/2"
        ...     _ = sparring_packed.write(f"{folder}/first", full)
        ...     _ = sparring_packed.write(f"{folder}/second", delta, base=full)
        ...     result = sparring_packed.merge(delta, f"{delta}-002")
        >>> result.num_rows
        {'item': 1}
    """
    with TemporaryDirectory(prefix="sparring-merge-") as cache:
        rows = _StoredRows(url)
        with PackedTables(url, keep_versions=1, cache=cache) as whole:
            model = {
                str(each.kind): whole.read_model(each.kind).content for each in rows.manifest.model
            }
            rows.whole = whole
            options = WriteOptions(file_bytes=file_bytes, filter_rate=filter_rate, model=model)
            return commit(out_url, rows, rows.manifest.tables, options)


class _StoredRows:
    """Rows of a serving snapshot and its bases."""

    base = None

    whole: PackedTables

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.manifest = read_manifest(url)
        self.step, self.source = self.manifest.step, self.manifest.source
        self.generation = self.manifest.generation

    def _mapped(self, window: tuple[int, int]) -> PackedTables:
        """Maps the files of a range of partitions, or their copies."""
        return PackedTables(self.whole.url, verify="open", keep_versions=1, partitions=window)

    def count_windows(self, table: ServingTable, file_bytes: int) -> int:
        wanted = self.whole.tables[table.name].num_rows * (table.row_bytes + 16) / file_bytes
        return int(min(NUM_PARTITIONS, 2 ** math.ceil(math.log2(max(wanted, 1.0)))))

    def filters(self, table: ServingTable, rate: float) -> dict[str, BloomFilter]:
        # Larger than necessary, because deltas add new ids.
        size = max(1024, self.whole.tables[table.name].num_rows * 3 // 2)
        return {"existing": BloomFilter(size, false_positive_rate=rate)}

    def read_window(self, table: ServingTable, window: tuple[int, int]) -> Window:
        none = np.empty(0, np.int64)
        keys, rows = [none], [np.empty((0, table.row_bytes), np.uint8)]
        is_whole = window == _WHOLE
        with nullcontext(self.whole) if is_whole else self._mapped(window) as tables:
            for some, stored in tables.scan(table.name, dtype="stored"):
                # Files of deltas may contain more partitions than the window.
                place = partition(some)
                is_in = (window[0] <= place) & (place < window[1])
                keys.append(some[is_in])
                rows.append(stored[is_in])
        return Window(np.concatenate(keys), np.concatenate(rows), none, is_stored=True)
