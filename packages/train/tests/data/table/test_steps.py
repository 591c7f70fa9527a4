"""Data of kind `table`: each row once, and in step s the same rows at every number of ranks."""

from __future__ import annotations

import threading
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv, parquet

from sparring import hash_strings
from sparring.errors import DataError
from sparring_train.data.table import parquet_dataset
from sparring_train.data.table.lanes import Lanes, assign_lanes

from .table_files import batches, click_log, opened, rows_of, section, write_files

LOG = click_log(1000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("table")
    write_files(place, LOG)
    parquet.write_table(LOG, place / "one_group.parquet")
    return place


def steps(path: Path, world_size: int = 1, epoch: int = 0, **keys: Any) -> list[list[Any]]:
    sets = opened(section(path, **keys), world_size)
    return [rows_of(each) for each in batches([each.batches(epoch) for each in sets])]


def held_out(path: Path, world_size: int = 1, **keys: Any) -> list[Any]:
    sets = opened(section(path, **keys), world_size)
    found = batches([each.test_batches() for each in sets])
    return [row for batch in found for row in rows_of(batch)]


def expected_rows() -> list[Any]:
    def ids(values: list[Any]) -> tuple[int, ...]:
        return tuple(hash_strings([each for each in values if each]).tolist())

    return [
        (ids([row["user"]]), ids([row["item"]]), ids(row["tags"]), row["at"], row["clicked"])
        for row in LOG.to_pylist()
    ]


@pytest.mark.parametrize("file", ["log.parquet", "log.csv", "one_group.parquet"])
def test_every_row_occurs_once_and_in_one_part(file: str, folder: Path) -> None:
    train = [row for step in steps(folder / file) for row in step]
    test = held_out(folder / file)
    assert sorted(train + test) == sorted(expected_rows())
    assert 50 < len(test) < 150


@pytest.mark.parametrize("world_size", [2, 3, 5, 24])
@pytest.mark.parametrize("file", ["log.parquet", "log.csv", "one_group.parquet"])
def test_a_step_has_the_same_rows_at_every_number_of_ranks(
    file: str, world_size: int, folder: Path
) -> None:
    path = folder / file
    assert steps(path, world_size, epoch=1) == steps(path, epoch=1)
    assert held_out(path, world_size) == held_out(path)
    assert {len(step) for step in steps(path)[:-1]} == {64}


def test_each_rank_reads_only_its_own_row_groups(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = opened(section(folder / "log.parquet"), 3)
    read: list[set[int]] = []
    for each in sets:
        groups: set[int] = set()
        original = each._files.read  # type: ignore[attr-defined]

        def noted(chosen: Any, *rest: Any, groups: set[int] = groups, read: Any = original) -> Any:
            groups |= {group.position for group in chosen}
            return read(chosen, *rest)

        monkeypatch.setattr(each._files, "read", noted)  # type: ignore[attr-defined]
        list(each.batches(0))
        read.append(groups)
    assert sum(map(len, read)) == len(set().union(*read)) == 15


def test_epochs_have_separate_orders_and_the_seed_repeats_them(folder: Path) -> None:
    path = folder / "log.parquet"
    first, second = steps(path, epoch=0), steps(path, epoch=1)
    assert first != second
    assert first == steps(path, epoch=0)
    assert sorted(chain(*first)) == sorted(chain(*second))


def test_one_row_group_and_csv_give_the_same_steps(folder: Path) -> None:
    keys = {"draw": "position"}  # the names of the files differ
    assert steps(folder / "one_group.parquet", **keys) == steps(folder / "log.csv", **keys)


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("file", ["log.parquet", "log.csv"])
def test_without_shuffle_rows_are_in_the_order_of_the_files(
    file: str, world_size: int, folder: Path
) -> None:
    found = [row[3] for step in steps(folder / file, world_size, shuffle=False) for row in step]
    assert found == sorted(found)


def test_integers_in_text_and_dictionaries_are_the_same_ids(tmp_path: Path) -> None:
    """Strings as hashes, plain, and in dictionaries: the same steps."""
    hashed = LOG
    for at, name in ((0, "user"), (1, "item")):
        values = [hash_strings([each])[0] if each else None for each in LOG[name].to_pylist()]
        hashed = hashed.set_column(at, name, pyarrow.array(values, pyarrow.int64()))
    tags = [hash_strings(each).tolist() for each in LOG["tags"].to_pylist()]
    hashed = hashed.set_column(2, "tags", pyarrow.array(tags, pyarrow.list_(pyarrow.int64())))
    (tmp_path / "hashed").mkdir()
    write_files(tmp_path, LOG)
    write_files(tmp_path / "hashed", hashed)
    (tmp_path / "plain").mkdir()
    plain = tmp_path / "plain/log.parquet"
    parquet.write_table(LOG, plain, row_group_size=70, use_dictionary=False)
    want = steps(tmp_path / "log.parquet")
    assert steps(tmp_path / "hashed/log.parquet") == want
    assert steps(plain) == want
    assert steps(tmp_path / "hashed/log.csv") == steps(tmp_path / "log.csv")


def test_files_are_read_in_order_of_name_and_as_one(tmp_path: Path) -> None:
    for number, name in enumerate(("b", "a", "c")):
        csv.write_csv(
            LOG.select(["user", "at", "clicked"]).slice(10 * number, 10), tmp_path / f"{name}.csv"
        )
    keys = {"categorical": ["user"], "lists": [], "shuffle": False}
    for path in (tmp_path, tmp_path / "*.csv", f"file://{tmp_path}/*.csv"):
        found = [row[1] for step in steps(path, **keys) for row in step]
        found += [row[1] for row in held_out(path, **keys)]
        assert sorted(found) == list(range(30))
        assert found[0] >= 10


def test_an_object_store_is_read_through_fsspec() -> None:
    import fsspec

    with fsspec.open("memory://table21/log.parquet", "wb") as file:
        parquet.write_table(LOG, file, row_group_size=70)
    found = steps("memory://table21/*.parquet")  # type: ignore[arg-type]
    assert sum(map(len, found)) > 800


lengths = st.lists(st.integers(0, 300), min_size=1, max_size=30).filter(any)


@given(rows=lengths, batch_size=st.integers(1, 200), world_size=st.integers(1, 40))
def test_steps_read_each_row_of_each_lane_once(
    rows: list[int], batch_size: int, world_size: int
) -> None:
    lanes = Lanes(np.array(rows), batch_size)
    before = np.zeros(len(rows), np.int64)
    for number, (begin, end) in enumerate(lanes.steps()):
        assert np.array_equal(begin, before)
        assert (end >= begin).all()
        is_last = number == lanes.num_steps - 1
        assert is_last or (end - begin).sum() == batch_size
        # No lane is ahead of its share by more than a row.
        assert (np.abs(end - np.array(rows) * end.sum() / sum(rows)) <= 1.5 + 1e-9).all()
        taken = [
            (each.lane, row)
            for rank in range(world_size)
            for each in assign_lanes(lanes.rows, rank, world_size)
            for row in range(*each.part(int(begin[each.lane]), int(end[each.lane])))
        ]
        want = [(lane, row) for lane in range(len(rows)) for row in range(begin[lane], end[lane])]
        assert taken == want
        before = end
        if number > 3:
            return
    assert np.array_equal(before, rows)


def test_read_own_rejects_csv(folder: Path) -> None:
    with pytest.raises(DataError, match=r"log\.csv with data\.read: own requires Parquet files"):
        opened(section(folder / "log.csv", read="own"))


def test_threads_that_read_ahead_report_errors_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_dataset, "ROWS_SHUFFLED", 100)
    labels = pyarrow.array([*LOG["clicked"].to_pylist()[:-1], 7])
    log = LOG.set_column(LOG.schema.get_field_index("clicked"), "clicked", labels)
    parquet.write_table(log, tmp_path / "log.parquet", row_group_size=70)
    (data,) = opened(section(tmp_path / "log.parquet", shuffle=False, split={"fraction": 0.001}))

    before = threading.enumerate()

    def started() -> list[threading.Thread]:
        named = [each for each in threading.enumerate() if each.name.startswith("sparring-read")]
        return [each for each in named if each not in before]

    def join_all() -> None:
        for each in started():
            each.join(60)
            assert not each.is_alive()

    found = data.batches(0)
    next(found)
    assert started()
    found.close()
    join_all()

    found = data.batches(0)
    assert sum(len(next(found)) for _ in range(13)) > 800
    with pytest.raises(DataError, match=r"log\.parquet, row 1000, column 'clicked': found 7"):
        list(found)
    join_all()
