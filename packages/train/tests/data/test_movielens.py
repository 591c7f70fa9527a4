"""MovieLens ratings: read exactly, refused exactly."""

from __future__ import annotations

import gzip
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparring.errors import DataError, InvalidArgumentError
from sparring_train.data.movielens import read_ratings
from sparring_train.data.split import split_ratings

HEADER = "userId,movieId,rating,timestamp\n"


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "ratings.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(path: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        read_ratings(path)
    assert str(path) in str(caught.value)
    return caught.value


def test_ratings_are_read_as_they_stand(tmp_path: Path) -> None:
    largest, smallest = 2**63 - 1, -(2**63)
    text = f"{HEADER}1,193609,4.0,964982703\n{largest},{smallest},0.5,0\n-3,007,5,-1\n"
    ratings = read_ratings(written(tmp_path, text))
    assert ratings.users.tolist() == [1, largest, -3]
    assert ratings.items.tolist() == [193609, smallest, 7]
    assert ratings.ratings.tolist() == [4.0, 0.5, 5.0]
    assert (ratings.users.dtype, ratings.ratings.dtype) == (np.int64, np.float32)


@pytest.mark.parametrize(
    "text",
    [
        HEADER + "1,2,3.5,4",
        HEADER.replace("\n", "\r\n") + "1,2,3.5,4\r\n",
        "\ufeff" + HEADER + "1,2,3.5,4\n",
        "rating,userId,movieId\n3.5,1,2\n",
    ],
    ids=["no last newline", "carriage returns", "byte order mark", "other order, no timestamp"],
)
def test_harmless_variants_are_read(tmp_path: Path, text: str) -> None:
    ratings = read_ratings(written(tmp_path, text))
    assert (ratings.users, ratings.items, ratings.ratings) == ([1], [2], [3.5])


def test_a_gzip_file_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv.gz"
    path.write_bytes(gzip.compress((HEADER + "1,2,3.5,4\n").encode()))
    assert read_ratings(path).items.tolist() == [2]


@pytest.mark.parametrize(
    ("line", "column", "found"),
    [
        ("x,2,3,4", "userId", "'x'"),
        ("1.5,2,3,4", "userId", "'1.5'"),
        (",2,3,4", "userId", "nothing"),
        ("1,2.0,3,4", "movieId", "'2.0'"),
        ("1, 2,3,4", "movieId", "' 2'"),
        ("1,9223372036854775808,3,4", "movieId", "'9223372036854775808'"),
        ("1,2,nan,4", "rating", "'nan'"),
        ("1,2,inf,4", "rating", "'inf'"),
        ("1,2,1e30,4", "rating", "'1e30'"),
        ("1,2,-1,4", "rating", "'-1'"),
        ("1,2,,4", "rating", "nothing"),
        ("1,2,3,soon", "timestamp", "'soon'"),
        ("1,2,3", "timestamp", "3 fields"),
        ("1", "movieId", "1 field"),
        ("", "userId", "an empty line"),
        ("1,2,3,4,5", None, "5 fields"),
    ],
)
def test_a_malformed_line_is_named(
    tmp_path: Path, line: str, column: str | None, found: str
) -> None:
    text = f"{HEADER}1,2,3,4\n{line}\n9,9,bad,9\n"
    error = refusal(written(tmp_path, text))
    assert (error.row, error.column) == (3, column)
    assert "row 3" in str(error)
    assert found in str(error)
    assert "expected" in str(error)


def whole_number(text: str) -> int | None:
    is_whole = re.fullmatch(r"-?[0-9]+", text)
    return int(text) if is_whole and -(2**63) <= int(text) < 2**63 else None


def rating(text: str) -> float | None:
    is_decimal = re.fullmatch(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", text)
    return float(text) if is_decimal and 0 <= float(text) <= 5 else None


near_digits = st.text("0123456789-+.:/aegfxGF@`\x00\x10\xff ", max_size=22)
numbers = st.one_of(st.integers(-(2**64), 2**64).map(str), st.floats(-1, 6).map(repr), near_digits)


@given(numbers, numbers, numbers)
@example("9223372036854775807", "-9223372036854775808", "+4.5")
@example("00000000000000000001", "-0", "05.")
@example("1", "-9223372036854775809", "1")
@example("1", "--1", "1")
@example("1", "1", "1_0")
@example("1", "1", "1e400")
@example("1", "1", "1e-1")
@example("1", "1", "nan")
@example("1", "1" * 4000, "1")
def test_fields_are_what_python_reads(
    tmp_path_factory: pytest.TempPathFactory, user: str, item: str, stars: str
) -> None:
    path = written(tmp_path_factory.getbasetemp(), f"{HEADER}1,2,3,4\n{user},{item},{stars},5\n")
    expected = {
        "userId": whole_number(user),
        "movieId": whole_number(item),
        "rating": rating(stars),
    }
    wrong = next((name for name, value in expected.items() if value is None), None)
    if wrong is not None:
        error = refusal(path)
        assert (error.row, error.column) == (3, wrong)
        return
    found = read_ratings(path)
    assert (found.users[1], found.items[1]) == (expected["userId"], expected["movieId"])
    assert found.ratings[1] == np.float32(expected["rating"])


@pytest.mark.parametrize("row", [2, 30_000, 60_001])
def test_the_first_malformed_row_of_many_blocks_is_named(tmp_path: Path, row: int) -> None:
    lines = [f"{number},{number * 7},2.5,1500000000" for number in range(60_000)]
    lines[row - 2] = "1,2,no,4"
    lines[min(row + 5, 60_001) - 2 :] = (
        ["1,2", *lines[row + 5 :]] if row < 60_000 else lines[row - 2 :]
    )
    error = refusal(written(tmp_path, HEADER + "\n".join(lines) + "\n"))
    assert (error.row, error.column) == (row, "rating")


@pytest.mark.parametrize("column", ["userId", "movieId", "rating"])
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    error = refusal(written(tmp_path, HEADER.replace(column, "other") + "1,2,3,4\n"))
    assert (error.row, error.column) == (1, column)


@pytest.mark.parametrize(
    "text",
    [
        "userId,movieId,rating,rating\n1,2,3,3\n",
        "userId,movieId,rating,mood\n1,2,3,4\n",
        "1,2,3.5,4\n",
        HEADER.encode("utf-16"),
        b"\xff\xfe\n",
    ],
    ids=["twice", "unknown", "no header", "UTF-16", "no text"],
)
def test_another_header_is_refused(tmp_path: Path, text: str | bytes) -> None:
    assert refusal(written(tmp_path, text)).row == 1


def test_bytes_that_are_no_text_are_refused_where_they_stand(tmp_path: Path) -> None:
    error = refusal(written(tmp_path, HEADER.encode() + b"1,2,3,4\n1,\xff\xfe,3,4\n"))
    assert (error.row, error.column, error.found) == (3, "movieId", b"\xff\xfe")


def test_a_file_without_ratings_is_refused(tmp_path: Path) -> None:
    assert "is empty" in str(refusal(written(tmp_path, "")))
    assert "no ratings" in str(refusal(written(tmp_path, HEADER)))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert "no such file" in str(refusal(tmp_path / "absent.csv"))
    assert "is a directory" in str(refusal(tmp_path))
    torn = tmp_path / "torn.csv.gz"
    torn.write_bytes(gzip.compress(HEADER.encode() * 1000)[:-20])
    assert "cannot be read" in str(refusal(torn))


def test_other_scales_are_taken_when_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + "1,2,87,4\n")
    assert read_ratings(path, highest_rating=100).ratings == [87]
    with pytest.raises(InvalidArgumentError, match="lowest_rating"):
        read_ratings(path, lowest_rating=5, highest_rating=1)


@pytest.fixture(scope="module")
def real_path() -> Path:
    folder = os.environ.get("SPARRING_TEST_DATA")
    checkout = Path(__file__).parents[4]
    root = Path(folder) if folder else checkout.parent / "shared" / "data"
    path = root / "ml-latest-small" / "ratings.csv"
    if not path.exists():
        pytest.skip(f"needs {path}; SPARRING_TEST_DATA names the folder above ml-latest-small")
    return path


def test_the_real_file_is_read_whole_and_fast(real_path: Path) -> None:
    start = time.perf_counter()
    ratings = read_ratings(real_path)
    seconds = time.perf_counter() - start
    assert len(ratings) == 100_836
    assert (len(np.unique(ratings.users)), len(np.unique(ratings.items))) == (610, 9_724)
    assert ratings.items.max() == 193_609
    assert set(ratings.ratings.tolist()) == {half / 2 for half in range(1, 11)}
    assert seconds < 5, "a hundred times what it takes on an idle core"
    split = split_ratings(ratings, seed=7)
    assert (len(split.train), len(split.test)) == (90_752, 10_084)
