"""Click logs as text: what a slow reader reads, in batches, refused where they are wrong."""

from __future__ import annotations

import gzip
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.errors import DataError, InvalidArgumentError
from sparring_train.data import delimited_text
from sparring_train.data.batches import ClickBatch, concatenate
from sparring_train.data.criteo import criteo_files, read_clicks
from sparring_train.data.criteo_format import COLUMNS, MISSING_IDS

from .criteo_files import Refused, line, parse_slowly, write_lines


def read(path: Path) -> ClickBatch | Refused:
    try:
        return concatenate(list(read_clicks(path, 3)))
    except DataError as error:
        return Refused(error.row, error.column)


def assert_same(found: object, expected: object) -> None:
    if isinstance(expected, Refused):
        assert found == expected
        return
    assert isinstance(found, ClickBatch)
    assert isinstance(expected, ClickBatch)
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.labels.tolist() == expected.labels.tolist()
    np.testing.assert_allclose(found.dense, expected.dense, rtol=3e-7)
    assert (found.ids.dtype, found.dense.dtype) == (np.int64, np.float32)


label = st.sampled_from(["0", "1", "0", "1", "0", "1", "2", "-1", "", "1.0", "01"])
integer = st.one_of(
    st.just(""), st.integers(-3, 100_000).map(str), st.integers(-(2**64), 2**64).map(str)
)
category = st.one_of(st.just(""), st.integers(0, 2**32 - 1).map("{:08x}".format))
near_digits = st.text("0123456789-+.:/agfxGF@`\x00\x10\xff \r\ufeff", max_size=22)
odd = st.one_of(
    near_digits,
    st.integers(-(2**64), 2**64).map(str),
    st.text("0123456789abcdefABCDEF", max_size=10),
    st.sampled_from(["xyz", "1.5", " 1", "+1", "123456789", "0x1", "\u00e9", "nan", "A", "\r"]),
)
row = st.tuples(st.tuples(label), st.tuples(*[integer] * 13), st.tuples(*[category] * 26)).map(
    lambda parts: [field for part in parts for field in part]
)


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    rows = draw(st.lists(row, min_size=1, max_size=8))
    if draw(st.booleans()):
        at, column = draw(st.integers(0, len(rows) - 1)), draw(st.integers(0, 39))
        rows[at][column] = draw(odd)
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(rows) - 1))
        rows[at] = rows[at][: draw(st.integers(0, 39))] if draw(st.booleans()) else [*rows[at], ""]
    end = draw(st.sampled_from(["\n", "\r\n"]))
    text = end.join("\t".join(fields) for fields in rows) + draw(st.sampled_from(["", end]))
    return text.encode() or b"\n"


@settings(max_examples=300, deadline=None)
@given(text=logs())
def test_text_is_read_as_a_slow_reader_reads_it(
    text: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.tsv"
    path.write_bytes(text)
    assert_same(read(path), parse_slowly(text))


@pytest.mark.parametrize("byte", sorted({*range(256)} - {*b"\t\n\r"}))
def test_an_id_takes_no_byte_but_hex_digits(tmp_path: Path, byte: int) -> None:
    path = tmp_path / "log.tsv"
    for before, after in ((b"", b""), (b"1", b"1")):
        text = line(cat_7="ID").encode().replace(b"ID", before + bytes([byte]) + after) + b"\n"
        path.write_bytes(text)
        assert_same(read(path), parse_slowly(text))


def random_line(random: np.random.Generator) -> str:
    integers = ["" if random.random() < 0.2 else str(n) for n in random.integers(-3, 10**6, 13)]
    ids = ["" if random.random() < 0.2 else f"{n:08x}" for n in random.integers(0, 2**32, 26)]
    return "\t".join([str(random.integers(2)), *integers, *ids])


@pytest.mark.parametrize("block_bytes", [600, 1000, 4096, 1 << 20])
def test_the_size_of_a_block_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    random = np.random.default_rng(5)
    path = write_lines(tmp_path / "log.tsv", *(random_line(random) for _ in range(200)))
    read_blocks = delimited_text.read_blocks
    monkeypatch.setattr(
        "sparring_train.data.criteo_text.read_blocks",
        lambda *arguments: read_blocks(*arguments, block_bytes=block_bytes),
    )
    assert_same(read(path), parse_slowly(path.read_bytes()))


def test_values_are_transformed_as_documented(tmp_path: Path) -> None:
    text = line(1, 3, "000000ff", int_1="", int_2="0", int_3="-2", cat_1="", cat_26="")
    (batch,) = read_clicks(write_lines(tmp_path / "log.tsv", text), 10)
    assert batch.dense[0, :4].tolist() == [0, 0, 0, np.float32(math.log1p(3))]
    assert (batch.ids[0, 0], batch.ids[0, 1], batch.ids[0, 25]) == (-1, 255, -26)
    assert batch.labels.tolist() == [1]


def test_missing_ids_meet_no_other_id() -> None:
    assert len(set(MISSING_IDS.tolist())) == 26
    assert (MISSING_IDS < 0).all()


@pytest.mark.parametrize(
    ("column", "text", "expected"),
    [
        ("label", "2", "0 or 1"),
        ("label", "", "0 or 1"),
        ("int_1", "1.5", "whole number"),
        ("int_13", "x", "whole number"),
        ("cat_1", "0000000g", "hex digits"),
        ("cat_26", "123456789", "hex digits"),
    ],
)
def test_a_malformed_field_is_named(tmp_path: Path, column: str, text: str, expected: str) -> None:
    path = write_lines(tmp_path / "log.tsv", line(), line(**{column: text}), line(label="no"))
    with pytest.raises(DataError) as caught:
        list(read_clicks(path, 10))
    error = caught.value
    assert (error.path, error.row, error.column) == (str(path), 2, column)
    assert error.found == text.encode()
    assert expected in str(error)
    assert f"{path}, row 2, column '{column}'" in str(error)


def test_good_batches_come_before_the_error(tmp_path: Path) -> None:
    path = tmp_path / "log.tsv"
    write_lines(path, *[line()] * 20_000, "broken")
    batches = read_clicks(path, 100)
    assert len(next(batches)) == 100
    with pytest.raises(DataError, match="row 20001, column 'int_1': found 1 field in 'broken'"):
        list(batches)


def test_a_file_that_is_one_endless_line_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.tsv"
    with path.open("wb") as file:
        file.truncate(200 << 20)  # Zeros that take no room on disk.
    tracemalloc.start()
    with pytest.raises(DataError, match="a line of at most"):
        list(read_clicks(path, 10))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 << 20


def test_reading_takes_bounded_memory(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.tsv", *[line()] * 150_000)
    assert path.stat().st_size > 38e6
    tracemalloc.start()
    num_rows = sum(len(batch) for batch in read_clicks(path, 1000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_rows == 150_000
    assert peak < 25e6


def test_batches_run_over_the_borders_of_files(tmp_path: Path) -> None:
    numbers = iter(range(100))
    for name, count in [("b.tsv", 5), ("a.txt", 3), ("c.tsv.gz", 4), ("d.csv", 1)]:
        rows = [line(ids=f"{next(numbers):x}") for _ in range(count)]
        write_lines(tmp_path / name, *rows)
        if name.endswith(".gz"):
            (tmp_path / name).write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    for name in ("_SUCCESS", ".hidden.tsv", "notes.md", "synthetic.json"):
        (tmp_path / name).write_text("not a log")
    assert [path.name for path in criteo_files(tmp_path)] == ["a.txt", "b.tsv", "c.tsv.gz", "d.csv"]
    batches = list(read_clicks(tmp_path, 4))
    assert [len(batch) for batch in batches] == [4, 4, 4, 1]
    order = concatenate(batches).ids[:, 0].tolist()
    assert order == [5, 6, 7, 0, 1, 2, 3, 4, 8, 9, 10, 11, 12]


def test_the_row_of_an_error_counts_within_its_file(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.tsv", *[line()] * 9)
    write_lines(tmp_path / "b.tsv", line(), line(cat_3="?"))
    with pytest.raises(DataError) as caught:
        list(read_clicks(tmp_path, 100))
    assert (Path(caught.value.path).name, caught.value.row) == ("b.tsv", 2)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        list(read_clicks(tmp_path / "absent", 1))
    with pytest.raises(DataError, match="found no file in this folder"):
        list(read_clicks(tmp_path, 1))
    empty = write_lines(tmp_path / "empty.tsv")
    with pytest.raises(DataError, match="is empty"):
        list(read_clicks(empty, 1))
    (tmp_path / "torn.gz").write_bytes(gzip.compress(b"0\t" * 10_000)[:-9])
    with pytest.raises(DataError, match="cannot be read"):
        list(read_clicks(tmp_path / "torn.gz", 1))
    (tmp_path / "not.gz").write_bytes(b"0\t1")
    with pytest.raises(DataError, match="cannot be read"):
        list(read_clicks(tmp_path / "not.gz", 1))


def test_arguments_are_refused_before_any_file_is_opened(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="batch_size"):
        read_clicks(tmp_path / "absent", 0)
    with pytest.raises(InvalidArgumentError, match="part"):
        read_clicks(tmp_path / "absent", 1, part="some")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="test_fraction"):
        read_clicks(tmp_path / "absent", 1, test_fraction=1)


def test_train_and_test_are_all_rows_whatever_the_batch_size(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.tsv", *(line(ids=f"{n:x}") for n in range(1000)))

    def ids(part: str, batch_size: int, seed: int = 1) -> list[int]:
        batches = read_clicks(path, batch_size, part=part, test_fraction=0.2, seed=seed)  # type: ignore[arg-type]
        return concatenate(list(batches)).ids[:, 0].tolist()

    assert sorted(ids("train", 64) + ids("test", 64)) == list(range(1000))
    assert ids("test", 64) == ids("test", 7)
    assert ids("test", 64) != ids("test", 64, seed=2)
    assert 140 < len(ids("test", 64)) < 260


def test_the_last_line_counts_with_and_without_a_newline(tmp_path: Path) -> None:
    path = tmp_path / "log.tsv"
    for end in ("", "\n"):
        path.write_text(line() + "\n" + line() + end)
        assert sum(map(len, read_clicks(path, 10))) == 2


def test_columns_are_forty_names() -> None:
    assert len(COLUMNS) == len(set(COLUMNS)) == 40
