"""Promises of `scan`."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np
import pytest

from sparring.contracts import Columns, Storage
from sparring.errors import InvalidArgumentError
from sparring_testing.references.samples import (
    MakeStorage,
    distinct_keys,
    make_table,
    random_rows,
    read_contents,
    row_bytes,
)

__all__ = ["ScanTests"]


class ScanTests:
    """A scan returns all rows, in chunks that belong to the caller."""

    def test_scan_returns_every_row_exactly_once(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        keys = distinct_keys(rng, 3_000)
        rows = random_rows(rng, 3_000, storage.table)
        storage.upsert(keys, rows)
        storage.erase(keys[2_000:])
        held = read_contents(storage)
        assert sorted(held) == sorted(keys[:2_000].tolist())
        assert [held[key].data for key in keys[:2_000].tolist()] == row_bytes(rows[:2_000])

    @pytest.mark.parametrize("chunk_rows", [1, 7, 999, 1_000, 1_001, 10**9])
    def test_scan_chunks_have_at_most_chunk_rows(
        self, storage: Storage, rng: np.random.Generator, chunk_rows: int
    ) -> None:
        keys = distinct_keys(rng, 1_000)
        storage.upsert(keys, random_rows(rng, 1_000, storage.table))
        seen: list[int] = []
        for chunk in storage.scan(chunk_rows):
            assert len(chunk) <= chunk_rows
            assert chunk.keys.dtype == np.int64
            assert chunk.scores.dtype == np.uint64
            assert chunk.scores.shape == (len(chunk),)
            assert chunk.rows.shape == (len(chunk), storage.table.width)
            assert chunk.rows.dtype == storage.table.numpy_dtype
            seen += chunk.keys.tolist()
        assert sorted(seen) == sorted(keys.tolist())

    def test_scan_of_columns_selects_a_part_of_each_row(
        self, new_storage: MakeStorage, rng: np.random.Generator
    ) -> None:
        table = make_table(dim=4, state_width=3)
        storage = new_storage(table)
        keys = distinct_keys(rng, 300)
        rows = random_rows(rng, 300, table)
        storage.upsert(keys, rows)
        position = {key: i for i, key in enumerate(keys.tolist())}
        for span in (Columns(0, 4), Columns(4, 7), Columns(6, 7)):
            num_rows = 0
            for chunk in storage.scan(64, span):
                wanted = rows[[position[key] for key in chunk.keys.tolist()]]
                assert row_bytes(chunk.rows) == row_bytes(wanted[:, span.begin : span.end])
                num_rows += len(chunk)
            assert num_rows == 300

    def test_scan_of_an_empty_storage_returns_no_rows(self, storage: Storage) -> None:
        assert sum(len(chunk) for chunk in storage.scan()) == 0

    def test_two_scans_do_not_disturb_each_other(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        keys = distinct_keys(rng, 100)
        storage.upsert(keys, random_rows(rng, 100, storage.table))
        seen: tuple[list[int], list[int]] = ([], [])
        for chunks in zip_longest(storage.scan(9), storage.scan(9)):
            for chunk, keys_seen in zip(chunks, seen, strict=True):
                keys_seen.extend([] if chunk is None else chunk.keys.tolist())
        assert sorted(seen[0]) == sorted(seen[1]) == sorted(keys.tolist())

    def test_scan_during_writes_returns_every_key_that_remains(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        keys = distinct_keys(rng, 4_000)
        staying, leaving, coming = keys[:500], keys[500:1_000], keys[1_000:]
        both = np.concatenate([staying, leaving])
        storage.upsert(both, random_rows(rng, 1_000, storage.table))
        seen: set[int] = set()
        writes = zip(np.array_split(coming, 20), np.array_split(leaving, 20), strict=True)
        for chunk in storage.scan(31):
            seen.update(chunk.keys.tolist())
            new, old = next(writes, (coming[:0], leaving[:0]))
            storage.upsert(new, random_rows(rng, len(new), storage.table))
            storage.erase(old)
        lost = set(staying.tolist()) - seen
        assert not lost, f"{len(lost)} of 500 keys that stayed in the table were not returned"
        assert seen <= set(keys.tolist())

    @pytest.mark.parametrize("chunk_rows", [0, -1])
    def test_scan_rejects_chunks_of_no_rows(self, storage: Storage, chunk_rows: int) -> None:
        with pytest.raises(InvalidArgumentError):
            storage.scan(chunk_rows)
