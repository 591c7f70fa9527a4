"""The index of changed keys finds exactly the keys of a delta, and damage to it is reported."""

from __future__ import annotations

import gc
import os
import shutil
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.errors import SnapshotDamagedError, SnapshotError
from sparring.snapshot import changed_keys, reader
from sparring.snapshot.changed_keys import CHANGED_KEYS, has_changed, index_keys, index_without
from sparring.snapshot.place.place import SnapshotRoot
from sparring.snapshot.reader import Snapshot, open_snapshot
from sparring.snapshot.retention import compact, list_unreadable_snapshots, open_snapshots
from sparring.snapshot.writer import SnapshotWriter

from .snapshot_samples import ITEM, SnapshotOptions, make_chunk, save

KEYS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 30)


def write_delta(root: Path, changed: list[int], erased: list[int]) -> Snapshot:
    base = save(root, 1, make_chunk(range(3)))
    options = SnapshotOptions(index_keys=True)
    return save(root, 2, make_chunk(changed), base=base.url, erased=erased, options=options)


@settings(max_examples=15, deadline=None)
@given(st.lists(KEYS, unique=True, max_size=40), st.lists(KEYS, max_size=20))
def test_an_index_contains_exactly_the_keys(
    tmp_path_factory: pytest.TempPathFactory, keys: list[int], others: list[int]
) -> None:
    half = len(keys) // 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changed_keys, "_RUN_KEYS", 7)  # Several runs for a few keys.
        delta = write_delta(tmp_path_factory.mktemp("run"), keys[:half], keys[half:])
        for key in {*keys, *others, -(2**63), 2**63 - 1}:
            assert has_changed(delta, "item", key) == (key in keys)
        assert not has_changed(delta, "other", 1)
        index, gone = delta.state(CHANGED_KEYS), np.array(others, np.int64)
        left = index_without(index, "item", gone)
        assert (left is None) == {*keys}.isdisjoint(others)
        if left is not None:
            expected = index_keys({"item": [np.array([*{*keys} - {*others}], np.int64)]})
            assert left.values == expected.values
            assert left.arrays["keys.item"].tolist() == expected.arrays["keys.item"].tolist()


def test_a_snapshot_without_an_index_may_contain_every_key(tmp_path: Path) -> None:
    base = save(tmp_path, 1, make_chunk([1]), options=SnapshotOptions(index_keys=True))
    delta = save(tmp_path, 2, make_chunk([2]), base=base.url)
    assert all(has_changed(each, "item", 9) for each in (base, delta))
    assert CHANGED_KEYS not in {*base.state_names(), *delta.state_names()}
    indexed = write_delta(tmp_path / "other", [5], [])
    assert CHANGED_KEYS in indexed.state_names()
    full = compact(indexed.url, tmp_path / "full")
    assert CHANGED_KEYS not in full.state_names()
    assert "optimizer" in full.state_names()


@pytest.mark.parametrize("at", [3, 100, -9])
def test_a_damaged_index_is_reported(tmp_path: Path, at: int) -> None:
    delta = write_delta(tmp_path, [*range(9)], [])
    (path,) = (tmp_path / delta.name).glob("state.changed_keys.*")
    damaged = bytearray(path.read_bytes())
    damaged[at] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(SnapshotDamagedError, match=r"changed_keys.*is damaged"):
        has_changed(delta, "item", 4)


@pytest.mark.parametrize(
    ("values", "keys", "message"),
    [
        (None, np.arange(3), "no valid first keys of table 'item'"),
        ({"first_keys": {"item": ["a"]}}, np.arange(3), "no valid first keys"),
        ({"first_keys": {"item": [0, 5]}}, np.arange(3), "found 2 first keys for a tensor I64"),
        ({"first_keys": {"item": [0]}}, np.zeros((1, 3)), "found 1 first keys for a tensor F64"),
        ({"first_keys": {"item": [0]}}, np.array([0, 2, 1]), "not in the order of the index"),
        ({"first_keys": {"item": [1]}}, np.arange(3), "not in the order of the index"),
    ],
)
def test_an_inconsistent_index_is_reported(
    tmp_path: Path, values: object, keys: np.ndarray, message: str
) -> None:
    base = save(tmp_path, 1, make_chunk([1]))
    writer = SnapshotWriter(str(tmp_path / "step-2"), step=2, base=base.url)
    writer.write_table(ITEM, [make_chunk([7])])
    writer.write_state(CHANGED_KEYS, values, {"keys.item": keys})
    writer.finish()
    with pytest.raises(SnapshotDamagedError, match=message):
        has_changed(writer.commit(), "item", 4)


def test_a_folder_is_opened_like_each_of_its_snapshots(tmp_path: Path) -> None:
    """Also if a base is missing, was replaced, or describes the table differently."""
    base = save(tmp_path, 1, make_chunk([1]))
    for step in (2, 3):
        base = save(tmp_path, step, make_chunk([step]), base=base.url)
    lost = save(tmp_path, 4, make_chunk([4]))
    save(tmp_path, 5, make_chunk([5]), base=lost.url)
    save(tmp_path, 6, make_chunk([6]), base=f"{tmp_path}/step-000000005")
    for path in (tmp_path / lost.name).iterdir():
        path.unlink()
    (tmp_path / lost.name).rmdir()
    found = open_snapshots(tmp_path)
    assert [each.step for each in found] == [1, 2, 3]
    assert [[link.step for link in each.chain] for each in found] == [[1], [2, 1], [3, 2, 1]]
    assert (found[2].full_name, found[2].num_bases) == ("step-000000001", 2)
    errors = {url[-1]: str(error) for url, error in list_unreadable_snapshots(tmp_path).items()}
    assert "there is no snapshot" in errors["5"]
    assert "the base of" in errors["6"]
    lost = save(tmp_path, 4, make_chunk([44]))
    errors = {url[-1]: str(error) for url, error in list_unreadable_snapshots(tmp_path).items()}
    assert [each.step for each in open_snapshots(tmp_path)] == [1, 2, 3, 4]
    assert sorted(errors) == ["5", "6"]
    assert "the base was replaced" in errors["5"]


def test_removed_snapshots_are_not_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, checked = [], []

    class Counting(reader.RememberedSnapshots):
        def _forget_removed(self, place: SnapshotRoot) -> None:
            checked.append(len(self._found))
            super()._forget_removed(place)

    monkeypatch.setattr(reader, "_remembered", Counting())
    for step in range(1, 21):
        saved = save(tmp_path, step, make_chunk([step]))
        os.utime(Path(saved.url) / "manifest.json", ns=(0, 0))  # new ones are not remembered
        os.utime(saved.url, ns=(0, 0))
        opened.append(weakref.ref(open_snapshot(saved.url)))
        if step > 1:
            shutil.rmtree(tmp_path / f"step-{step - 1:09d}")
    del saved
    gc.collect()
    assert sum(each() is not None for each in opened) <= 6  # 2 of them exist
    assert sum(checked) <= 3 * len(opened)


def test_a_remembered_chain_is_not_extended_beyond_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparring.snapshot.reader.MAX_CHAIN", 2)
    last = save(tmp_path, 1, make_chunk([1]))
    for step in (2, 3):
        last = save(tmp_path, step, make_chunk([step]), base=last.url)
    with pytest.raises(SnapshotError, match="does not end within 2 snapshots"):
        save(tmp_path, 4, make_chunk([4]), base=last.url)
    assert [each.step for each in open_snapshots(tmp_path)] == [1, 2, 3]
