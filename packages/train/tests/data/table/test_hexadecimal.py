"""Ids that are written in hexadecimal are read as numbers, from CSV and from Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from sparring.errors import DataError
from sparring_train.data.table.hexadecimal import parse_hexadecimal

from .table_files import batches, opened, section

TEXTS = ["0", "a", "000000ff", "", "DEADBEEF", "7fffffffffffffff", "ffffffffffffffff"]
IDS = [0, 10, 255, None, 0xDEADBEEF, 2**63 - 1, -1]


def write(path: Path, texts: list[str]) -> None:
    if path.suffix == ".parquet":
        columns = {"user": pyarrow.array(texts).dictionary_encode(), "clicked": [0] * len(texts)}
        parquet.write_table(pyarrow.table(columns), path)
    else:
        path.write_text("user,clicked\n" + "".join(f"{text},0\n" for text in texts))


def decoded(folder: Path, suffix: str, texts: list[str], **keys: Any) -> list[int | None]:
    """The id of each row in order, None if it has none."""
    write(folder / f"ids.{suffix}", texts)
    write(folder / f"test.{suffix}", ["0"])
    columns = {
        "categorical": ["user"],
        "lists": [],
        "numeric": [],
        "types": {"user": "hexadecimal"},
    }
    data = section(folder, **columns, split={"files": "test.*"}, shuffle=False, **keys)
    dataset = opened(data)[0]
    assert dataset.schema.origins == {"user": "integer"}
    found: list[int | None] = []
    for batch in batches([dataset.batches(0)]):
        ids = iter(batch.ids["user"].ids.tolist())
        found += [next(ids) if count else None for count in batch.ids["user"].counts]
    return found


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_numbers_equal_those_that_python_reads(numbers: list[int]) -> None:
    for form in ("{:x}", "{:016X}"):
        found = parse_hexadecimal(pyarrow.array(map(form.format, numbers), pyarrow.string()))
        assert found.tolist() == np.array(numbers, np.uint64).view(np.int64).tolist()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_text_is_read_as_a_number(tmp_path: Path, suffix: str) -> None:
    assert decoded(tmp_path, suffix, TEXTS) == IDS


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_missing_id_can_have_a_separate_id(tmp_path: Path, suffix: str) -> None:
    found = decoded(tmp_path, suffix, TEXTS, missing_ids={"user": -5})
    assert found == [-5 if each is None else each for each in IDS]


@pytest.mark.parametrize("bad", ["xyz", "0x1f", "-1", "1" * 17, "é"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_other_text_is_a_bad_row(tmp_path: Path, suffix: str, bad: str) -> None:
    texts = ["1f", bad, "2"]
    with pytest.raises(DataError, match="expected 1 to 16 hexadecimal digits") as caught:
        decoded(tmp_path, suffix, texts)
    row = 3 if suffix == "csv" else 2
    assert (caught.value.details["row"], caught.value.details["column"]) == (row, "user")
    assert decoded(tmp_path, suffix, texts, bad_rows="skip") == [31, 2]


def test_integers_of_parquet_are_rejected(tmp_path: Path) -> None:
    table = pyarrow.table({"user": [1, 2], "clicked": [0, 1]})
    parquet.write_table(table, tmp_path / "ids.parquet")
    types = {"user": "hexadecimal"}
    data = section(
        tmp_path / "ids.parquet", categorical=["user"], lists=[], numeric=[], types=types
    )
    with pytest.raises(DataError, match="column 'user': found whole numbers, expected strings"):
        opened(data)
