"""A storage that fails on request, like a broken disk or server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage.results import Columns, EvictedRows, Keys, Rows, ScanChunk, Scores
from sparring.contracts.storage.storage import Storage
from sparring.errors import DeadlineError, StorageIOError

__all__ = ["FaultyStorage"]


class FaultyStorage(Storage):
    """Passes all calls on, until it is broken.

    Args:
        inner: storage of the rows.

    Attributes:
        breakage: None: it works. ``writes``: writes fail and change nothing. ``halfway``: writes
            fail after the first half of their keys. ``lost``: all calls fail, like after a lost
            connection. ``slow``: all calls end with their deadline. ``hung``: writes stop after the
            first half of their keys until it is repaired, or fail after `hung_seconds`.
        hung_seconds: duration of a hung write.
        delay_seconds: duration of a write, half of it before the second half of its keys.
        num_failures: number of failed calls.
        is_amid_write: set while a hung write has written its first half.
    """

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner.table, validate=inner.validate)
        self.inner = inner
        self.capabilities = inner.capabilities
        self.hung_seconds = 10.0
        self.delay_seconds = 0.0
        self.num_failures = 0
        self.is_amid_write = threading.Event()
        self._breakage: str | None = None
        self._is_mended = threading.Event()

    @property
    def breakage(self) -> str | None:
        return self._breakage

    @breakage.setter
    def breakage(self, breakage: str | None) -> None:
        self._breakage = breakage
        if breakage == "hung":
            self._is_mended.clear()
        else:
            self._is_mended.set()

    @property
    def capacity(self) -> int | None:
        return self.inner.capacity

    @property
    def memory_bytes(self) -> int:
        return self.inner.memory_bytes

    def _find_impl(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        self._fail_in("lost", "slow")
        self.inner._find_impl(keys, columns, rows, found)

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        time.sleep(self.delay_seconds / 2)
        if self.breakage in ("halfway", "hung") and len(keys) > 1:
            self.inner._upsert_impl(keys[: len(keys) // 2], rows[: len(keys) // 2], None)
        time.sleep(self.delay_seconds / 2)
        self._hang()
        self._fail_in("lost", "slow", "writes", "halfway")
        return self.inner._upsert_impl(keys, rows, scores)

    def _erase_impl(self, keys: Keys) -> int:
        if self.breakage == "halfway" and len(keys) > 1:
            self.inner._erase_impl(keys[: len(keys) // 2])
        self._hang()
        self._fail_in("lost", "slow", "writes", "halfway")
        return self.inner._erase_impl(keys)

    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        self._fail_in("lost", "slow")
        return self.inner._scan_impl(chunk_rows, columns)

    def _size_impl(self) -> int:
        self._fail_in("lost", "slow")
        return self.inner._size_impl()

    def _clear_impl(self) -> None:
        self._hang()
        self._fail_in("lost", "slow", "writes", "halfway")
        self.inner._clear_impl()

    def _flush_impl(self) -> None:
        self._fail_in("lost", "slow")
        self.inner._flush_impl()

    def _close_impl(self) -> None:
        self.inner.close()

    def _hang(self) -> None:
        if self.breakage != "hung":
            return
        self.is_amid_write.set()
        is_mended = self._is_mended.wait(self.hung_seconds)
        self.is_amid_write.clear()
        if not is_mended:
            self.num_failures += 1
            raise DeadlineError("the lower tier hung; look at its server")

    def _fail_in(self, *breakages: str) -> None:
        if self.breakage not in breakages:
            return
        self.num_failures += 1
        if self.breakage == "slow":
            raise DeadlineError("the lower tier did not answer within 2 s; look at its server")
        raise StorageIOError(f"the lower tier is broken: {self.breakage}; mend it")
