"""Tests of row handles through the C ABI, for storages that report `SPARRING_ROW_HANDLES`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts import Columns, Keys, Storage
from sparring.errors import CapacityError
from sparring_testing.native.storage_abi import Handles, StorageAbi
from sparring_testing.references.ledger import require_capacity
from sparring_testing.references.samples import (
    MakeStorage,
    distinct_keys,
    make_table,
    random_rows,
    read_contents,
    require,
    row_bytes,
)

__all__ = ["RowHandleTests"]


class RowHandleTests:
    """A row handle refers to the row of its key. If it is outdated, the key is looked up again."""

    def test_rows_by_handle_equal_the_rows_of_find(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        abi, keys = _open_abi(storage), distinct_keys(rng, 300)
        storage.upsert(keys[:200], random_rows(rng, 200, storage.table))
        _, known = abi.visit(keys, Columns(0, 0))
        assert (known.pointers != 0).tolist() == [True] * 200 + [False] * 100
        for columns in (Columns(0, abi.row_bytes), Columns(4, 8), Columns(0, 4)):
            order = rng.permutation(300)
            shown, _ = abi.visit(keys[order], columns, _chosen(known, order))
            assert shown == _found(storage, keys[order], columns)
        _assert_updates(abi, storage, known, rng)

    def test_an_update_looks_up_keys_without_a_handle(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        abi, keys = _open_abi(storage), distinct_keys(rng, 100)
        _, known = abi.visit(keys)
        storage.upsert(keys[:60], random_rows(rng, 60, storage.table))
        _assert_updates(abi, storage, known, rng)

    def test_old_handles_are_looked_up_again(
        self, storage: Storage, rng: np.random.Generator
    ) -> None:
        _change_and_reuse(storage, rng, distinct_keys(rng, 60), makes_rows=True)

    def test_old_handles_of_a_bounded_storage_are_looked_up_again(
        self, bounded_storage: Storage, rng: np.random.Generator
    ) -> None:
        keys = distinct_keys(rng, 2 * require_capacity(bounded_storage))
        _change_and_reuse(bounded_storage, rng, keys, makes_rows=False)

    def test_handles_of_another_storage_are_ignored(
        self, new_storage: MakeStorage, rng: np.random.Generator
    ) -> None:
        keys = distinct_keys(rng, 50)
        storages = [new_storage(make_table()) for _ in range(2)]
        for storage in storages:
            storage.upsert(keys, random_rows(rng, 50, storage.table))
        (_, known), (_, others) = (_open_abi(each).visit(keys) for each in storages)
        assert known.generation != others.generation
        shown, _ = _open_abi(storages[1]).visit(keys, handles=known)
        assert shown == _found(storages[1], keys)
        _assert_updates(_open_abi(storages[1]), storages[1], known, rng)


def _change_and_reuse(
    storage: Storage, rng: np.random.Generator, keys: Keys, *, makes_rows: bool
) -> None:
    """Changes a storage in random ways and uses old handles after each change.

    Args:
        makes_rows: whether updates may create rows, which can evict other rows.
    """
    abi, kept = _open_abi(storage), list[Handles]()

    def some() -> Keys:
        return rng.permutation(keys)[: rng.integers(1, len(keys))]

    for _ in range(80):
        what = rng.integers(20)
        if what < 10:
            given = some()
            try:
                storage.upsert(given, random_rows(rng, len(given), storage.table))
            except CapacityError:
                storage.erase(given)
        elif what < 17:
            storage.erase(some())
        elif what < 19 and storage.capabilities.evict:
            storage.evict(int(rng.integers(1, 10)))
        else:
            storage.clear()
        kept.append(abi.visit(some())[1])
        known = kept[rng.integers(max(0, len(kept) - 4), len(kept))]
        is_there = storage.find(known.keys).found
        # A handle of a key that had no row may still report no row, even if the key has one now.
        had_row = _chosen(known, (known.pointers != 0) | ~is_there)
        shown, _ = abi.visit(had_row.keys, handles=had_row)
        assert shown == _found(storage, had_row.keys)
        updated = known if makes_rows else _chosen(known, is_there)
        if len(updated.keys):
            _assert_updates(abi, storage, updated, rng)


def _assert_updates(
    abi: StorageAbi, storage: Storage, known: Handles, rng: np.random.Generator
) -> None:
    """Updates all keys of `known` by their handles and checks that exactly these rows change."""
    rows = random_rows(rng, len(known.keys), storage.table)
    expected = {key: row.data for key, row in read_contents(storage).items()}
    is_new = (~storage.find(known.keys).found).tolist()
    expected |= dict(zip(known.keys.tolist(), row_bytes(rows), strict=True))
    assert abi.update(known.keys, rows.view(np.uint8), known) == is_new
    found = {key: row.data for key, row in read_contents(storage).items()}
    wrong = [key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)]
    assert not wrong, f"{len(wrong)} of {len(expected)} rows differ, the first is of key {wrong[0]}"


def _found(storage: Storage, keys: Keys, columns: Columns | None = None) -> list[bytes | None]:
    """Returns the rows that a visit must show. `columns` are in bytes."""
    found, span = storage.find(keys), columns or Columns(0, storage.table.row_bytes)
    return [
        row[span.begin : span.end] if is_there else None
        for row, is_there in zip(row_bytes(found.rows), found.found.tolist(), strict=True)
    ]


def _chosen(known: Handles, which: npt.NDArray[Any]) -> Handles:
    return Handles(known.keys[which], known.pointers[which], known.generation)


def _open_abi(storage: Storage) -> StorageAbi:
    require(
        storage.capabilities.devices == ("cpu",), "rows on a device are not accessible from the CPU"
    )
    abi = StorageAbi(storage)
    require(abi.keeps_handles, "this storage does not report SPARRING_ROW_HANDLES")
    return abi
