"""Tests of concurrent readers and, if declared, one concurrent writer."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from sparring.contracts import Keys, Rows, Storage
from sparring_testing.references.samples import (
    MakeStorage,
    distinct_keys,
    make_table,
    random_rows,
    read_contents,
    require,
    row_bytes,
)

__all__ = ["ThreadTests"]

_NUM_READERS = 3
_SECONDS = 0.4


class ThreadTests:
    """Readers only see rows that were written."""

    def test_concurrent_readers_agree(self, storage: Storage, rng: np.random.Generator) -> None:
        keys = distinct_keys(rng, 2_000)
        rows = random_rows(rng, 2_000, storage.table)
        storage.upsert(keys, rows)
        expected = read_contents(storage)

        def read(reader: int) -> None:
            chosen = np.random.default_rng(reader).permutation(2_000)[:500]
            for _ in range(10):
                result = storage.find(keys[chosen])
                assert result.found.all()
                assert row_bytes(result.rows) == row_bytes(rows[chosen])
                assert storage.size == 2_000
            assert read_contents(storage) == expected

        with _frequent_switches(), ThreadPoolExecutor(_NUM_READERS) as threads:
            list(threads.map(read, range(_NUM_READERS)))

    def test_readers_during_writes_see_old_or_new_rows_never_a_mixture(
        self, new_storage: MakeStorage, rng: np.random.Generator
    ) -> None:
        storage = new_storage(make_table(dim=256))
        _require_concurrent_reads(storage)
        keys = distinct_keys(rng, 20_000)
        written, added = keys[:200], iter(np.array_split(keys[200:], 200))
        _write_version(storage, written, 1)

        def read(is_over: threading.Event) -> None:
            latest: npt.NDArray[np.float32] = np.zeros(len(written), np.float32)
            while not is_over.is_set():
                result = storage.find(written)
                assert result.found.all(), "a row that was only replaced was not found"
                versions = _versions(result.rows)
                assert (versions >= latest).all(), "a row returned to an older version"
                latest = versions

        def scan(is_over: threading.Event) -> None:
            wanted = set(written.tolist())
            while not is_over.is_set():
                seen: set[int] = set()
                for chunk in storage.scan(500):
                    _versions(chunk.rows)
                    seen.update(chunk.keys.tolist())
                assert wanted <= seen, "a scan missed a row that was only replaced"

        def write(version: int) -> None:
            _write_version(storage, written, version + 2)
            _write_version(storage, next(added, written[:0]), version + 2)  # the table grows

        _run_concurrently([read, read, scan], write)

    def test_readers_during_erasure_see_whole_rows_or_none(
        self, new_storage: MakeStorage, rng: np.random.Generator
    ) -> None:
        storage = new_storage(make_table(dim=256))
        _require_concurrent_reads(storage)
        keys = distinct_keys(rng, 200)
        staying, leaving = keys[:100], keys[100:]
        _write_version(storage, staying, 1)

        def read(is_over: threading.Event) -> None:
            while not is_over.is_set():
                assert storage.find(staying).found.all(), "a row that stayed was not found"
                result = storage.find(leaving)
                versions = _versions(result.rows)
                assert (versions[~result.found] == 0).all(), (
                    "a missing row was not filled with zeros"
                )
                assert (versions[result.found] > 0).all(), "a row was found before it was written"

        def write(version: int) -> None:
            _write_version(storage, leaving, version + 1)
            storage.erase(leaving)

        _run_concurrently([read] * _NUM_READERS, write)


def _require_concurrent_reads(storage: Storage) -> None:
    require(storage.capabilities.concurrent_reads, "this storage declares concurrent_reads=False")


def _write_version(storage: Storage, keys: Keys, version: int) -> None:
    """Writes rows whose elements are all `version`."""
    storage.upsert(keys, np.full((len(keys), storage.table.width), version, np.float32))


def _versions(rows: Rows) -> npt.NDArray[np.float32]:
    """Returns the version of each row; fails if a row is a mixture of two versions."""
    versions: npt.NDArray[np.float32] = rows[:, 0].copy()
    assert (rows == versions[:, None]).all(), "a reader saw a mixture of two rows"
    return versions


def _run_concurrently(
    readers: list[Callable[[threading.Event], None]], write: Callable[[int], None]
) -> None:
    """Calls `write` repeatedly while readers run on threads; raises the readers' errors."""
    is_over = threading.Event()
    with _frequent_switches(), ThreadPoolExecutor(len(readers)) as threads:
        running = [threads.submit(reader, is_over) for reader in readers]
        try:
            end = time.monotonic() + _SECONDS
            version = 0
            while version < 3 or time.monotonic() < end:
                write(version)
                version += 1
                if any(reader.done() for reader in running):
                    break
        finally:
            is_over.set()
        for reader in running:
            reader.result()


@contextmanager
def _frequent_switches() -> Iterator[None]:
    """Makes Python switch threads after 10 µs instead of 5 ms, which makes races more likely."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
