"""Bugs of `scan`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sparring.contracts.storage.results import Columns, ScanChunk
from sparring.storage.memory import MemoryStorage

from .registry import caught_by


@caught_by("test_scan_returns_every_row_exactly_once")
class ScanDropsTheLastChunk(MemoryStorage):
    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        yield from list(super()._scan_impl(chunk_rows, columns))[:-1]


@caught_by("test_scan_returns_every_row_exactly_once")
class ScanRepeats(MemoryStorage):
    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        for chunk in super()._scan_impl(chunk_rows, columns):
            yield chunk
            yield ScanChunk(chunk.keys[:1], chunk.rows[:1], chunk.scores[:1])


@caught_by("test_scan_chunks_have_at_most_chunk_rows")
class ScanIgnoresChunkRows(MemoryStorage):
    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        return super()._scan_impl(100, columns)


@caught_by("test_scan_of_columns_selects_a_part_of_each_row")
class ScanIgnoresColumns(MemoryStorage):
    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        return super()._scan_impl(chunk_rows, Columns(0, self.table.width))


@caught_by("test_scanned_chunks_belong_to_the_caller")
class ScanReusesItsArrays(MemoryStorage):
    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        buffer = np.empty(chunk_rows, np.int64)
        for chunk in super()._scan_impl(chunk_rows, columns):
            buffer[: len(chunk)] = chunk.keys
            yield replace(chunk, keys=buffer[: len(chunk)])


@caught_by("test_two_scans_do_not_disturb_each_other")
class ScanHasOneCursor(MemoryStorage):
    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        self._cursor = 0
        chunks = list(super()._scan_impl(chunk_rows, columns))
        while self._cursor < len(chunks):
            self._cursor += 1
            yield chunks[self._cursor - 1]


@caught_by("test_scan_during_writes_returns_every_key_that_remains")
class ScanCountsPositions(MemoryStorage):
    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        position = 0
        while position < len(self._entries):
            # Erasing returned rows moves the rest to the front.
            keys = np.array(list(self._entries)[::-1][position : position + chunk_rows], np.int64)
            rows = self.find(keys, columns).rows
            yield ScanChunk(keys, rows, np.zeros(len(keys), np.uint64))
            position += chunk_rows + 7 * (len(self._entries) > 1_000)


@caught_by("test_scan_of_an_empty_storage_returns_no_rows")
class ScanGivesARowOfNothing(MemoryStorage):
    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        yield from super()._scan_impl(chunk_rows, columns)
        if not self._entries:
            rows = np.zeros((1, columns.end - columns.begin), self.table.numpy_dtype)
            yield ScanChunk(np.zeros(1, np.int64), rows, np.zeros(1, np.uint64))


@caught_by("test_scan_rejects_chunks_of_no_rows")
class ScanTakesAnyChunkRows(MemoryStorage):
    def scan(self, chunk_rows: int = 100, columns: Columns | None = None) -> Iterator[ScanChunk]:
        return super().scan(max(1, chunk_rows), columns)
