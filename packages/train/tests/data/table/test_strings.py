"""Strings of ids, as stored by a run with `data.dictionary`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from sparring import hash_strings
from sparring.errors import DataError
from sparring_train import find_strings
from sparring_train.data.dataset import OpenRequest
from sparring_train.data.table.dataset import open_table
from sparring_train.data.table.strings import StringWriter, _IdSet

from .table_files import click_log, section, write_files

LOG = click_log(500)


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("name", ["log.csv", "log.parquet"])
def test_every_string_is_found_by_its_id(name: str, world_size: int, tmp_path: Path) -> None:
    write_files(tmp_path, LOG)
    runs = str(tmp_path / "runs")
    for rank in range(world_size):
        request = OpenRequest(3, "binary", rank, world_size, snapshots_url=runs)
        data = open_table(section(tmp_path / name, dictionary=True), request)
        for batches in (data.batches(0), data.test_batches(), data.batches(1)):
            list(batches)
    for feature in ("user", "item", "tags"):
        column = LOG[feature].combine_chunks()
        column = column.flatten() if feature == "tags" else column
        strings = sorted({each for each in column.to_pylist() if each})
        for url in (runs, f"{runs}/step-000000000001"):
            assert find_strings(url, feature, hash_strings(strings)) == strings
    files = list(tmp_path.glob("runs/strings/item/*.parquet"))
    rows = sum(parquet.read_metadata(each).num_rows for each in files)
    # Once by each rank, and never the empty string.
    assert rows == len(strings_in("item")) or world_size > 1
    assert find_strings(runs, "item", [1, 2]) == [None, None]
    assert find_strings(runs, "user", hash_strings([""])) == [None]
    assert find_strings(str(tmp_path), "item", [1]) == [None]


def strings_in(feature: str) -> set[str]:
    return {each for each in LOG[feature].to_pylist() if each}


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    writer = StringWriter(str(tmp_path / "runs"), 0)
    writer.add("item", hash_strings(["a"]), pyarrow.array(["a"]))
    with pytest.raises(DataError, match=r"data\.dictionary: writing .* failed"):
        writer.flush()


@given(st.lists(st.lists(st.integers(0, 50)), max_size=12))
def test_a_set_of_ids_detects_new_ones(added: list[list[int]]) -> None:
    ids, known = _IdSet(), set[int]()
    for each in added:
        distinct = np.unique(np.array(each, np.int64))
        assert ids.add(distinct).tolist() == [one not in known for one in distinct.tolist()]
        known |= set(each)
