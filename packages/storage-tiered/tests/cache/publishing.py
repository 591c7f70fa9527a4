"""A trainer and a reader over one backend, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage.results import Columns, EvictedRows, Keys, Rows, ScanChunk, Scores
from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.errors import StorageIOError
from sparring.storage.memory import MemoryOptions, MemoryStorage
from sparring_tiered import CachedStorage, ChangePublisher, FolderLog, RefreshOptions

__all__ = ["TABLE", "ReadOnly", "Trainer", "open_reader", "rows_of"]

TABLE = TableConfig("item", 4)


def rows_of(keys: npt.ArrayLike, version: float) -> Rows:
    """Rows whose elements all contain key and version, so that a torn row is detected."""
    column = np.asarray(keys, np.float64) * 1_000 + version
    return np.repeat(column[:, None], TABLE.dim, axis=1).astype(np.float32)


class ReadOnly(Storage):
    """A view of a storage in another process, which can be closed and cut separately.

    Attributes:
        is_cut: finds fail.
        before_return: called when a find has read its rows.
        num_asked: number of requested keys.
    """

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner.table)
        self.inner = inner
        self.capabilities = inner.capabilities
        self.is_cut = False
        self.before_return: Any = None
        self.num_asked = 0

    @property
    def memory_bytes(self) -> int:
        return self.inner.memory_bytes

    def _find_impl(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        if self.is_cut:
            raise StorageIOError("the backend cannot be reached; mend it")
        self.num_asked += len(keys)
        self.inner.find_into(keys, columns, rows, found)
        if self.before_return is not None:
            self.before_return(keys)

    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        return self.inner.scan(chunk_rows, columns)

    def _size_impl(self) -> int:
        return self.inner.size

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        raise AssertionError("a reader wrote")

    def _erase_impl(self, keys: Keys) -> int:
        raise AssertionError("a reader wrote")

    def _clear_impl(self) -> None:
        raise AssertionError("a reader wrote")

    def _close_impl(self) -> None:
        pass


class Trainer:
    """Writes rows of `TABLE` to a backend, and publishes notes."""

    def __init__(self, backend: Storage, folder: Path, **options: Any) -> None:
        self.backend = backend
        self.container = StepContainer()
        self.container.declare(TABLE, backend)
        self.publisher = ChangePublisher(self.container, url=str(folder), run="run", **options)
        self.step = 0

    def write(self, keys: npt.ArrayLike, version: float) -> None:
        self.container.storage("item").upsert(keys, rows_of(keys, version))

    def erase(self, keys: npt.ArrayLike) -> None:
        self.container.storage("item").erase(keys)

    def publish(self) -> int:
        self.step += 1
        return self.publisher.publish(self.step)["item"]


def open_reader(
    backend: Storage, folder: Path, *, capacity: int | None = None, **options: Any
) -> CachedStorage:
    """A reader that only checks for notes on request."""
    cache = MemoryStorage(
        TABLE, MemoryOptions(capacity=capacity, policy="lru" if capacity else "none")
    )
    chosen = RefreshOptions(**{"poll_seconds": 3600, "drop_seconds": 0, **options})
    view = backend if isinstance(backend, ReadOnly) else ReadOnly(backend)
    return CachedStorage(TABLE, cache, view, FolderLog(str(folder), "item"), chosen)
