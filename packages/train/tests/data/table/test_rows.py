"""Data of kind `table`: values of columns, splits, and rows and files that are wrong."""

from __future__ import annotations

import gzip
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import csv, parquet
from pydantic import ValidationError

from sparring import hash_strings
from sparring.errors import DataError
from sparring_train.columns import Label
from sparring_train.data.table.files import find_files
from sparring_train.data.table.parquet_rows import ParquetRows, check_indices
from sparring_train.data.table.summary import summarize_table
from sparring_train.data.table.text import rows as csv_rows

from .table_files import batches, click_log, opened, rows_of, section, write_files

LOG = click_log(300)
ONE = {"categorical": ["item"], "lists": [], "numeric": ["price"], "shuffle": False}
"""Of files of one column of ids and one of numbers."""


def written(folder: Path, name: str, columns: dict[str, Any]) -> Path:
    table = pyarrow.table(columns)
    path = folder / name
    csv.write_csv(table, path) if path.suffix == ".csv" else parquet.write_table(table, path)
    return path


def all_rows(path: Path | str, label: Label | None = "binary", **keys: Any) -> list[Any]:
    (data,) = opened(section(path, **{**ONE, **keys}), label=label)
    found = batches([data.batches(0)]) + batches([data.test_batches()])
    return sorted((row for each in found for row in rows_of(each)), key=repr)


def log(**columns: Any) -> dict[str, Any]:
    """40 rows, with other columns than these."""
    return {
        "item": [f"i{n % 7}" for n in range(40)],
        "price": np.arange(40.0),
        "clicked": np.arange(40) % 2,
        **columns,
    }


def test_broken_rows_are_counted_per_reading(tmp_path: Path) -> None:
    """An evaluation reads the files again while a training is in the middle of them."""
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("item,price,clicked\ni,1,0\ni,1\ni,1,1\n")
    (data,) = opened(section(tmp_path / "*.csv", **ONE, bad_rows="skip"))
    files = data._files  # type: ignore[attr-defined]
    training = files.read(["item"])
    next(training)
    assert len(list(files.read(["item"]))) == 2
    assert len(list(training)) == 1
    assert files.num_broken == 2


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_labels_may_be_booleans_and_numbers_may_be_missing(name: str, tmp_path: Path) -> None:
    values: list[float | None] = [None, -1.0, 3.5, *range(37)]
    flags = [bool(n % 2) for n in range(40)]
    path = written(tmp_path, name, log(price=values, clicked=flags))
    numbers = sorted(row[1] for row in all_rows(path))
    assert numbers == sorted(0.0 if each is None else each for each in values)
    assert sum(row[2] for row in all_rows(path)) == 20
    logs = sorted(row[1] for row in all_rows(path, log1p=["price"]))
    want = [np.copysign(np.log1p(abs(each or 0)), each or 0) for each in values]
    assert np.allclose(logs, sorted(want))


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_integers_are_ids_without_conversion(name: str, tmp_path: Path) -> None:
    ids = [-(2**63), 2**63 - 1, None, *range(37)]
    path = written(tmp_path, name, log(item=pyarrow.array(ids, pyarrow.int64())))
    found = all_rows(path, types={"item": "integer"})
    assert {row[0] for row in found} == {() if each is None else (each,) for each in ids}


def test_ids_of_csv_are_strings_if_configured(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", log(item=[str(n) for n in range(40)]))
    assert {row[0] for row in all_rows(path)} == {(n,) for n in range(40)}
    texts = {row[0] for row in all_rows(path, types={"item": "string"})}
    assert texts == {(hash_strings([str(n)])[0],) for n in range(40)}


def test_a_lane_holds_only_some_pages_of_its_row_group(tmp_path: Path) -> None:
    ids = pyarrow.array(np.random.default_rng(0).integers(0, 1 << 60, 2 << 20))
    parquet.write_table(pyarrow.table({"id": ids}), tmp_path / "a.parquet", row_group_size=len(ids))
    num_bytes, before = 8 * len(ids), pyarrow.total_allocated_bytes()
    rows = ParquetRows(find_files(str(tmp_path)), ["id"])
    reading = rows.read(rows.groups, ["id"], 1000)
    assert len(next(reading)) == 1000
    assert pyarrow.total_allocated_bytes() - before < num_bytes / 2
    reading.close()
    keys = {"label": None, "categorical": ["id"], "lists": [], "numeric": [], "lanes": 1}
    (data,) = opened(section(tmp_path, **keys), label=None)
    steps = data.batches(0)
    next(steps)
    end = time.monotonic() + 60
    # The second half of the rows is read ahead. Then only their shuffled copies are in memory.
    while pyarrow.total_allocated_bytes() - before > num_bytes / 3:
        assert time.monotonic() < end
        time.sleep(0.05)
    steps.close()


def test_integral_floats_are_ids(tmp_path: Path) -> None:
    path = written(tmp_path, "a.parquet", log(item=[None, *map(float, range(39))]))
    assert {row[0] for row in all_rows(path)} == {(), *((n,) for n in range(39))}
    path = written(tmp_path, "b.parquet", log(item=[0.5] * 40))
    with pytest.raises(DataError, match=r"b\.parquet, row 1, column 'item': found 0\.5"):
        all_rows(path)


BAD = [
    ({"clicked": [0] * 39 + [2]}, "binary", "column 'clicked': found 2.*, expected a label of 0"),
    ({"clicked": [0.0] * 39 + [None]}, "number", "column 'clicked': found None, expected a label"),
    ({"price": [0.0] * 39 + [float("inf")]}, "binary", "column 'price': found inf, expected a fin"),
    ({"weight": [1.0] * 39 + [-1.0]}, "binary", "column 'weight': found -1.0, expected a finite w"),
    ({"time": [*range(39), None]}, "binary", "column 'time': found None, expected a time"),
]


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
@pytest.mark.parametrize(("columns", "label", "message"), BAD)
def test_a_bad_row_is_rejected_by_file_and_row_or_skipped_and_counted(
    name: str, columns: dict[str, Any], label: Label, message: str, tmp_path: Path
) -> None:
    path = written(tmp_path, name, log(**columns))
    keys = {each: each for each in ("weight", "time") if each in columns}
    if "time" in columns:
        keys["split"] = {"time": 0.2}  # type: ignore[assignment]
    row = 41 if name == "a.csv" else 40
    with pytest.raises(DataError, match=rf"{name}, row {row}, {message}") as caught:
        all_rows(path, label, **keys)
    assert (caught.value.path, caught.value.row) == (str(path), row)  # type: ignore[attr-defined]
    (data,) = opened(section(path, **ONE, **keys, bad_rows="skip"), label=label)
    for _ in range(2):
        found = batches([data.batches(0)]) + batches([data.test_batches()])
        assert sum(map(len, found)) == 39
        assert data.extra() == {"rows_skipped": 1}


def test_a_line_of_csv_with_another_number_of_fields_is_a_bad_row(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", log())
    lines = path.read_text().splitlines()
    lines[7] += ",1"
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"a\.csv, row 8: found 4 fields in .*, expected 3 fields"):
        all_rows(path)
    (data,) = opened(section(path, **ONE, bad_rows="skip"))
    assert sum(map(len, [*data.batches(0), *data.test_batches()])) == 39
    assert data.extra() == {"rows_skipped": 1}


@pytest.mark.parametrize("block_bytes", [1 << 8, 8 << 20])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_quoted_values_of_csv_may_have_line_breaks(
    block_bytes: int, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_rows, "_BLOCK_BYTES", block_bytes)
    items = [f"i{n % 7}{end}and, so on" for n in range(40)]
    rows = [f'"{item}",{n},{n % 2},"a{end}{end}b"' for n, item in enumerate(items)]
    path = tmp_path / "a.csv"
    path.write_bytes(end.join(["item,price,clicked,unread", *rows, ""]).encode())
    found = all_rows(path)
    ids = hash_strings(items).tolist()
    assert sorted((row[1], row[0]) for row in found) == [(n, (ids[n],)) for n in range(40)]


@pytest.mark.parametrize("bad_rows", ["refuse", "skip"])
@pytest.mark.parametrize("last", ["", ',39,1,"d"'])
@pytest.mark.parametrize("quoted", ['i3,1,0,"not closed', '"i3,1,0,not closed'])
def test_a_quote_of_csv_that_is_not_closed_swallows_no_rows(
    quoted: str, last: str, bad_rows: str, tmp_path: Path
) -> None:
    rows = [f"i{n % 7},{n},{n % 2}, b" for n in range(40)]
    rows[3] = quoted
    rows[39] = last or rows[39]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["item,price,clicked,unread", *rows, ""]))
    with pytest.raises(DataError, match=r"a\.csv, row 5: found a quote that is not closed"):
        all_rows(path, bad_rows=bad_rows)


def test_texts_of_csv_that_are_not_numbers_are_bad_values(tmp_path: Path) -> None:
    rows = [f"{n},{n},{n % 2}" for n in range(40)]
    rows[3], rows[5] = "NA,NULL,0", "5.0,nan,1"
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["item,price,clicked", *rows, ""]))
    want = sorted(
        (
            ((n,) if n != 3 else (), 0.0 if n in {3, 5} else float(n), float(n % 2 and n != 3))
            for n in range(40)
        ),
        key=repr,
    )
    assert all_rows(path) == want


@pytest.mark.parametrize("row", [0, 30_000])
def test_csv_that_is_not_utf_8_is_rejected(row: int, tmp_path: Path) -> None:
    rows = [f"i{n % 7},{n},{n % 2}" for n in range(30_001)]
    rows[row] = "größe,1,0"
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["item,price,clicked", *rows, ""]), encoding="latin-1")
    with pytest.raises(DataError, match=r"a\.csv as CSV failed: .*UTF8.*write the file as UTF-8"):
        all_rows(path)


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_damaged_compressed_csv_is_rejected(damage: str, tmp_path: Path) -> None:
    rows = "".join(f"i{n % 7},{n * 7919 % 10007},{n % 2}\n" for n in range(30_000))
    packed = gzip.compress(f"item,price,clicked\n{rows}".encode())
    middle = len(packed) // 2
    rest = b"" if damage == "cut" else b"\xff" * 64 + packed[middle + 64 :]
    path = tmp_path / "a.csv.gz"
    path.write_bytes(packed[:middle] + rest)
    for look in (all_rows, summarize_table):
        with pytest.raises(DataError, match=r"a\.csv\.gz as CSV failed"):
            look(str(path))


def test_integers_that_pandas_wrote_as_floats_are_ids(tmp_path: Path) -> None:
    whole = written(tmp_path, "a.csv", log(item=list(range(40))))
    path = tmp_path / "b.csv"
    rows = [f"{n}.0,{n},{n % 2}" for n in range(40)]
    path.write_text("\n".join(["item,price,clicked", *rows, ""]))
    assert all_rows(path) == all_rows(whole)


def test_a_value_of_another_type_in_a_later_file_of_csv(tmp_path: Path) -> None:
    written(tmp_path, "a.csv", log(item=list(range(40))))
    written(tmp_path, "b.csv", log(item=["x"] * 40))
    with pytest.raises(
        DataError, match=r"b\.csv, row 2, column 'item': found 'x', .*data\.types to string"
    ):
        all_rows(tmp_path)


@pytest.mark.parametrize(
    ("indices", "is_valid"),
    [([0, 1, None], True), ([None], True), ([0, 2], False), ([-1], False), ([], True)],
)
def test_an_index_without_an_entry_in_the_dictionary_of_parquet_is_rejected(
    indices: list[int | None], is_valid: bool
) -> None:
    array = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array(indices, pyarrow.int32()), pyarrow.array(["a", "b"]), safe=False
    )
    for each in (array, pyarrow.ListArray.from_arrays([0, len(array)], array)):
        if is_valid:
            assert check_indices(each, "a.parquet") is each
        else:
            with pytest.raises(DataError, match=r"a\.parquet.*dictionary of 2 entries"):
                check_indices(each, "a.parquet")


def test_a_missing_column_or_a_changed_type_is_rejected(tmp_path: Path) -> None:
    for name in ("a.csv", "a.parquet"):
        path = written(tmp_path, name, log())
        with pytest.raises(DataError, match=rf"{name}.*: column 'cost' is missing.*item, price"):
            all_rows(path, numeric=["cost"])
    written(tmp_path, "b.parquet", log(item=list(range(40))))
    expected = r"b\.parquet, column 'item': found whole numbers, but strings in .*a\.parquet"
    with pytest.raises(DataError, match=expected):
        all_rows(f"{tmp_path}/*.parquet")


def test_unsupported_column_types_are_rejected(tmp_path: Path) -> None:
    path = written(tmp_path, "a.parquet", log(day=pyarrow.array([None] * 40, pyarrow.date32())))
    with pytest.raises(DataError, match=r"column 'day': found the type date32.*, expected strings"):
        all_rows(path, categorical=["day"])
    with pytest.raises(DataError, match=r"column 'item': found the type .*, expected a finite"):
        all_rows(path, categorical=["price"], numeric=["item"])
    path = written(tmp_path, "b.parquet", log(tags=[[1, 2]] * 40))
    with pytest.raises(DataError, match=r"column 'tags': found list.*; add it to data\.lists"):
        all_rows(path, categorical=["tags"])
    with pytest.raises(DataError, match=r"expected lists; remove it from data\.lists"):
        all_rows(path, lists=["item"], separator=None)


def test_missing_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"found no file; set data\.path to a file, folder or pattern"
    ):
        all_rows(tmp_path / "no.csv")
    (tmp_path / "a.doc").write_text("x")
    with pytest.raises(DataError, match=r"a\.doc: names of files must all end in"):
        all_rows(tmp_path / "a.doc")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(
        DataError, match=r"found no file; set data\.path to a file, folder or pattern"
    ):
        all_rows(tmp_path)  # a text file next to data files is not read
    with pytest.raises(DataError, match=r"a\.txt, row 1: column 'item' is missing, found x"):
        all_rows(tmp_path / "a.txt")
    (tmp_path / "a.parquet").write_text("x")
    with pytest.raises(DataError, match=r"a\.parquet as Parquet failed"):
        all_rows(tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(DataError, match=r"a\.csv, row 1: found nothing, expected a header"):
        all_rows(tmp_path / "a.csv")


@pytest.mark.parametrize("name", ["log.csv", "log.parquet"])
def test_rows_are_split_by_time_column_and_last_row_of_each_user(name: str, tmp_path: Path) -> None:
    write_files(tmp_path, LOG)
    rows = LOG.to_pylist()

    def test_places(**keys: Any) -> set[int]:
        (data,) = opened(section(tmp_path / name, **keys))
        test = [row[3] for each in data.test_batches() for row in rows_of(each)]
        train = [row[3] for each in data.batches(0) for row in rows_of(each)]
        assert sorted(train + test) == list(range(300))
        return {int(each) for each in test}

    assert test_places(time="at", split={"time": 0.1}) == set(range(270, 300))
    assert test_places(time="at", split={"time_from": 250}) == set(range(250, 300))
    clicked = {row["at"] for row in rows if row["clicked"]}
    assert test_places(split={"column": "clicked", "test": 1}) == clicked
    places: dict[str, list[int]] = {}
    for row in rows:
        if row["user"]:
            places.setdefault(row["user"], []).append(row["at"])
    last = {each[-1] for each in places.values() if len(each) > 1}
    assert test_places(split={"leave_one_out": "user"}) == last


@pytest.mark.parametrize("name", ["log.csv", "log.parquet"])
def test_histories_contain_the_earlier_items_of_the_user(name: str, tmp_path: Path) -> None:
    backwards = LOG.set_column(4, "at", pyarrow.array(range(300, 0, -1)))
    write_files(tmp_path, backwards)
    for world_size in (1, 3):
        keys = {"time": "at", "history": {"length": 4}, "lists": [], "categorical": ["item"]}
        sets = opened(section(tmp_path / name, **keys), world_size)
        found = batches([each.batches(0) for each in sets])
        found += batches([each.test_batches() for each in sets])
        before: dict[str, list[int]] = {}
        want = {}
        for row in reversed(backwards.to_pylist()):
            known = before.setdefault(row["user"], []) if row["user"] else []
            ids = hash_strings([row["item"]]).tolist() if row["item"] else []
            want[float(row["at"])] = tuple(known[-4:]) if ids else ()
            known += ids
        histories = {row[2]: row[1] for each in found for row in rows_of(each)}
        assert histories == want


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_times_may_be_dates(name: str, tmp_path: Path) -> None:
    times = [f"2024-01-{1 + n % 20:02d} 10:00:00" for n in range(40)]
    at = pyarrow.array(times).cast(pyarrow.timestamp("s"))
    path = written(tmp_path, name, log(at=at))
    data = section(path, **ONE, time="at", split={"time_from": "2024-01-16"})
    (opened_data,) = opened(data)
    assert sum(map(len, opened_data.test_batches())) == 10


def test_a_number_to_learn_has_its_range(tmp_path: Path) -> None:
    for name in ("a.csv", "a.parquet"):
        path = written(tmp_path, name, log(clicked=np.arange(40) / 4))
        (data,) = opened(section(path, **ONE), label="number")
        labels = [row[2] for each in data.batches(0) for row in rows_of(each)]
        known = data.label_range
        assert known is not None
        assert np.isclose(known.mean, np.mean(labels))
        assert (known.minimum, known.maximum) == (min(labels), max(labels))


def test_a_loss_without_labels_gets_none(tmp_path: Path) -> None:
    path = written(tmp_path, "a.parquet", log())
    (data,) = opened(section(path, **ONE), label=None)
    assert data.schema.label is None
    assert next(iter(data.batches(0))).labels is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"lists": ["tag"]}, "contains a column that is not in data.categorical"),
        ({"log1p": ["cost"]}, "contains a column that is not in data.numeric"),
        ({"categorical": []}, "has no column"),
        ({"categorical": ["user", "user"], "lists": []}, "contains a column twice"),
        ({"label": "at"}, "is also an input column"),
        ({"split": {"time": 0.1}}, "is required by data.split"),
        ({"history": {}}, "is required by data.history"),
        ({"history": {"of": "tags"}, "time": "at"}, "contains an invalid column in `of`"),
        ({"history": {"name": "item"}, "time": "at"}, "has the name of another column"),
        ({"split": {"time": 0.1, "fraction": 0.1}}, "must contain a single rule"),
    ],
)
def test_contradictory_sections_are_rejected(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        section("a.csv", **keys)
