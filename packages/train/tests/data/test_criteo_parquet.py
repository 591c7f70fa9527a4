"""Click logs as Parquet: the same rows as text, under any of the names, or a named refusal."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from sparring.errors import DataError
from sparring_train.data.batches import ClickBatch, concatenate
from sparring_train.data.criteo import read_clicks
from sparring_train.data.criteo_format import COLUMNS

from .criteo_files import line, write_lines

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes three rows; keywords replace columns, None drops one."""

    def write(rename: Callable[[str], str] = str, **changes: Any) -> Path:
        columns: dict[str, Any] = {"label": pyarrow.array([0, 1, 0], pyarrow.int8())}
        for number, name in enumerate(COLUMNS[1:14]):
            columns[name] = pyarrow.array([number, None, -2], pyarrow.int64())
        for number, name in enumerate(COLUMNS[14:]):
            columns[name] = pyarrow.array([f"{number:08x}", None, "ffffffff"])
        columns |= changes
        kept = {rename(name): array for name, array in columns.items() if array is not None}
        path = tmp_path / "log.parquet"
        parquet.write_table(pyarrow.table(kept), path)
        return path

    return write


def read(path: Path) -> ClickBatch:
    return concatenate(list(read_clicks(path, 2)))


def integers(path: Path, column: str) -> list[float]:
    return read(path).dense[:, COLUMNS.index(column) - 1].tolist()


def ids(path: Path, column: str) -> list[int]:
    found: list[int] = read(path).ids[:, COLUMNS.index(column) - 14].tolist()
    return found


def test_values_are_those_of_the_columns(write: Write) -> None:
    batch = read(write())
    assert batch.labels.tolist() == [0, 1, 0]
    assert batch.dense[:, 12].tolist() == [np.float32(math.log1p(12)), 0, 0]
    assert batch.ids[0].tolist() == list(range(26))
    assert batch.ids[1].tolist() == list(range(-1, -27, -1))
    assert batch.ids[2].tolist() == [2**32 - 1] * 26
    assert (batch.ids.dtype, batch.dense.dtype, batch.labels.dtype) == (
        np.int64,
        np.float32,
        np.float32,
    )


def test_parquet_and_text_give_equal_batches(tmp_path: Path, write: Write) -> None:
    fields = [str(number) for number in range(13)] + [f"{number:08x}" for number in range(26)]
    text = write_lines(
        tmp_path / "log.tsv",
        "\t".join(["0", *fields]),
        "\t".join(["1", *[""] * 39]),
        "\t".join(["0", *["-2"] * 13, *["ffffffff"] * 26]),
    )
    from_text, from_parquet = read(text), read(write())
    assert (from_text.ids == from_parquet.ids).all()
    assert (from_text.dense == from_parquet.dense).all()
    assert (from_text.labels == from_parquet.labels).all()


def short_name(name: str) -> str:
    return name.replace("int_", "I").replace("cat_", "C")


def name_from_zero(name: str) -> str:
    kind, _, number = name.partition("_")
    return f"{kind}_{int(number) - 1}" if number else kind


@pytest.mark.parametrize("rename", [short_name, name_from_zero])
def test_other_names_in_use_are_known(write: Write, rename: Callable[[str], str]) -> None:
    expected = read(write())
    found = read(write(rename))
    assert (found.ids == expected.ids).all()
    assert (found.dense == expected.dense).all()


@pytest.mark.parametrize(
    "array",
    [
        pyarrow.array(["aa", None, ""]),
        pyarrow.array(["aa", None, ""], pyarrow.large_string()),
        pyarrow.array([b"AA", None, b""], pyarrow.binary()),
        pyarrow.array(["aa", None, ""]).dictionary_encode(),
        pyarrow.array([170, None, None], pyarrow.int32()),
        pyarrow.array([170, None, None], pyarrow.uint64()),
    ],
    ids=lambda array: str(array.type),
)
def test_ids_are_hex_text_or_whole_numbers(write: Write, array: Any) -> None:
    assert ids(write(cat_2=array), "cat_2") == [170, -2, -2]


def test_ids_that_are_numbers_may_have_63_bits(write: Write) -> None:
    array = pyarrow.array([2**63 - 1, 0, 5], pyarrow.uint64())
    assert ids(write(cat_26=array), "cat_26") == [2**63 - 1, 0, 5]


@pytest.mark.parametrize(
    "array",
    [
        pyarrow.array([3, None, None], pyarrow.int16()),
        pyarrow.array([3.0, float("nan"), None]),
        pyarrow.array(["3", None, ""]),
    ],
    ids=lambda array: str(array.type),
)
def test_integers_are_whole_numbers_of_any_type(write: Write, array: Any) -> None:
    assert integers(write(int_4=array), "int_4") == [np.float32(math.log1p(3)), 0, 0]


def test_labels_may_be_booleans(write: Write) -> None:
    assert read(write(label=pyarrow.array([True, False, True]))).labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("column", "values", "row"),
    [
        ("label", [0, 2, 3], 2),
        ("label", [None, 1, 1], 1),
        ("int_1", [0.0, 0.0, 1.5], 3),
        ("int_1", ["1", "x", "2"], 2),
        ("cat_1", ["0", "g", "h"], 2),
        ("cat_1", ["123456789", "0", "0"], 1),
        ("cat_1", [1, -1, 0], 2),
    ],
)
def test_a_value_that_does_not_belong_is_named(
    write: Write, column: str, values: list[Any], row: int
) -> None:
    path = write(**{column: pyarrow.array(values)})
    with pytest.raises(DataError) as caught:
        read(path)
    assert (caught.value.row, caught.value.column) == (row, column)
    assert str(path) in str(caught.value)


def test_the_row_of_an_error_counts_over_batches_of_records(tmp_path: Path) -> None:
    labels = np.zeros(40_000, np.int8)
    labels[33_333] = 7
    columns = {name: pyarrow.nulls(40_000, pyarrow.int64()) for name in COLUMNS}
    columns["label"] = pyarrow.array(labels)
    path = tmp_path / "log.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(DataError, match=r"row 33334, column 'label': found 7"):
        read(path)


def test_a_missing_column_is_named(write: Write) -> None:
    with pytest.raises(DataError, match="column 'cat_7' is missing") as caught:
        read(write(cat_7=None))
    assert caught.value.column == "cat_7"
    with pytest.raises(DataError, match="column 'C7' is missing"):
        read(write(short_name, cat_7=None))


def test_a_column_of_another_type_is_named(write: Write) -> None:
    with pytest.raises(DataError, match=r"column 'cat_1': found the type double"):
        read(write(cat_1=pyarrow.array([1.0, 2.0, 3.0])))
    with pytest.raises(DataError, match=r"column 'int_1': found the type list"):
        read(write(int_1=pyarrow.array([[1], [2], [3]])))


def test_other_columns_are_left_alone(write: Write) -> None:
    assert len(read(write(day=pyarrow.array(["mon", "tue", "wed"])))) == 3


def test_a_damaged_file_is_refused(tmp_path: Path, write: Write) -> None:
    path = write()
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read(path)


def test_a_folder_may_hold_text_and_parquet(tmp_path: Path, write: Write) -> None:
    write()
    write_lines(tmp_path / "log.tsv", line(ids="5"))
    (first, second) = read_clicks(tmp_path, 3)
    assert second.ids[0, 0] == 5
    assert len(first) == 3
