"""Data of kind `table`: delimiters, decimal signs, missing values and labels of CSV files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as some
from pyarrow import parquet
from pydantic import ValidationError

from sparring import hash_strings
from sparring.errors import DataError
from sparring_train.data.table.decode import BadValue
from sparring_train.data.table.text.values import TextStyle, convert_texts

from .table_files import batches, opened, rows_of, section

KEYS = {"categorical": ["item"], "lists": [], "numeric": ["price"], "shuffle": False}


def all_rows(path: Path | str, **keys: Any) -> list[Any]:
    (data,) = opened(section(path, **{**KEYS, **keys}))
    found = batches([data.batches(0)]) + batches([data.test_batches()])
    return sorted((row for each in found for row in rows_of(each)), key=repr)


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join([*lines, ""]))
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_values_may_be_separated_by_any_character(name: str, tmp_path: Path) -> None:
    lines = [f"i{n},{n % 9}.5,{n % 2}" for n in range(40)]
    want = all_rows(write(tmp_path / "want.csv", ["item,price,clicked", *lines]))
    others = [each.replace(",", ";") for each in ["item,price,clicked", *lines]]
    assert all_rows(write(tmp_path / name, others), delimiter=";") == want


@given(some.decimals(-(10**12), 10**12, places=4), some.booleans())
def test_a_decimal_comma_reads_as_a_point_does(value: Any, groups: bool) -> None:
    english = f"{value:,}" if groups else f"{value}"
    german = english.replace(",", "'").replace(".", ",").replace("'", ".")
    bad: list[BadValue] = []
    found = convert_texts(pyarrow.array([german, None]), "number", "price", TextStyle(","), bad)
    assert found.to_pylist() == [float(value), None]
    assert not bad


@pytest.mark.parametrize("text", ["1.5", "1.23,4", "12.3456", "1,2,3", "1.234.5"])
def test_a_point_that_may_be_a_decimal_sign_is_a_bad_value(text: str) -> None:
    bad: list[BadValue] = []
    assert convert_texts(
        pyarrow.array([text]), "number", "price", TextStyle(","), bad
    ).to_pylist() == [None]
    assert [each.found for each in bad] == [repr(text)]
    assert "decimal comma, because of data.decimal" in bad[0].expected


def test_ids_written_with_a_decimal_comma_are_integers(tmp_path: Path) -> None:
    lines = ["item;price;clicked", *(f"{n},0;1.000,5;{n % 2}" for n in range(40))]
    found = all_rows(write(tmp_path / "a.csv", lines), delimiter=";", decimal=",")
    assert {row[:2] for row in found} == {((n,), 1000.5) for n in range(40)}
    # A fraction of zero has one meaning, whatever the decimal sign of other columns.
    lines = [each.replace("1.000,5", "1") for each in lines]
    found = all_rows(write(tmp_path / "a.csv", lines), delimiter=";")
    assert {row[0] for row in found} == {(n,) for n in range(40)}


def test_missing_values_have_no_id_and_are_not_numbers(tmp_path: Path) -> None:
    lines = [f"i{n},t{n}|t2,{n},{n % 2}" for n in range(38)]
    lines += ["?,?,1,1", "i1,t1|?|NA,-,0"]
    path = write(tmp_path / "a.csv", ["item,tags,price,clicked", *lines])
    keys = {"categorical": ["item", "tags"], "lists": ["tags"]}
    found = all_rows(path, **keys, missing_values=["?", "-"])
    assert len(found) == 40
    assert ((), (), 1.0, 1.0) in found
    assert ((hash_strings(["i1"])[0],), (*hash_strings(["t1", "NA"]),), 0.0, 0.0) in found
    with pytest.raises(DataError, match=r"row 41, column 'price': found '-'.*data\.missing_values"):
        all_rows(path, **keys, missing_values=["?"])
    with pytest.raises(DataError, match=r"column 'clicked': found None"):
        all_rows(path, **keys, missing_values=["0", "-"])


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["no", "yes"], {"yes": 1, "no": 0}),
        (["1", "2"], {"2": 1, "1": 0}),
    ],
)
def test_labels_may_be_texts(
    name: str, texts: list[str], values: dict[str, float], tmp_path: Path
) -> None:
    labels = [texts[n % 2] for n in range(40)]
    columns = {"item": ["i"] * 40, "price": np.arange(40.0), "clicked": labels}
    if name == "a.csv":
        lines = [f"i,{n}.0,{label}" for n, label in enumerate(labels)]
        write(tmp_path / name, ["item,price,clicked", *lines])
    else:
        parquet.write_table(pyarrow.table(columns), tmp_path / name)
    found = all_rows(tmp_path / name, label_values=values)
    assert sorted(row[1:] for row in found) == [(n, n % 2) for n in range(40)]
    expected = f"found '?{texts[0]}'?.*expected one of '{texts[1]}', because of data.label_values"
    with pytest.raises(DataError, match=expected):
        all_rows(tmp_path / name, label_values={texts[1]: 1})
    (data,) = opened(section(tmp_path / name, **KEYS, label_values={texts[1]: 1}, bad_rows="skip"))
    assert sum(map(len, [*data.batches(0), *data.test_batches()])) == 20
    if texts[0] == "no":
        with pytest.raises(DataError, match="label_values"):
            all_rows(tmp_path / name)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"delimiter": ";;;"}, "at most 2 characters"),
        ({"delimiter": '"'}, "has a special meaning in CSV"),
        ({"decimal": "'"}, "should be '.' or ','"),
        (
            {"categorical": ["Größe"], "lists": []},
            "not a valid table name; set its table in data.share",
        ),
        ({"share_tables": {"item": "an item"}}, "not a valid table name"),
        ({"label": None, "label_values": {"yes": 1}}, "requires a label column"),
    ],
)
def test_wrong_keys_of_csv_are_rejected(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        section("a.csv", **keys)


def test_a_long_field_with_line_breaks_is_not_an_open_quote(tmp_path: Path) -> None:
    long = "a word\n" * 40_000
    lines = [f'i{n},{n},{n % 2},"{long if n == 9 else "b"}"' for n in range(40)]
    found = all_rows(write(tmp_path / "a.csv", ["item,price,clicked,unread", *lines]))
    assert sorted(row[1] for row in found) == list(range(40))


@pytest.mark.parametrize(
    ("empty", "full", "want"),
    [
        (pyarrow.nulls(40), ["x"] * 40, "string"),
        (pyarrow.nulls(40), [7] * 40, "integer"),
        (pyarrow.array([[]] * 40), [["x"]] * 40, "string"),
    ],
)
def test_a_parquet_column_without_a_value_has_the_type_of_other_files(
    empty: Any, full: list[Any], want: str, tmp_path: Path
) -> None:
    rest = {"price": np.arange(40.0), "clicked": np.arange(40) % 2}
    lists = {"lists": ["item"]} if isinstance(full[0], list) else {}
    parquet.write_table(pyarrow.table({"item": empty, **rest}), tmp_path / "b.parquet")
    (data,) = opened(section(tmp_path / "b.parquet", **{**KEYS, **lists}))
    assert data.schema.origins == {}
    for name in ("a", "c"):
        parquet.write_table(pyarrow.table({"item": full, **rest}), tmp_path / f"{name}.parquet")
        (data,) = opened(section(tmp_path, **{**KEYS, **lists}))
        assert data.schema.origins == {"item": want}
        assert {row[0] for row in all_rows(tmp_path, **lists)} == {
            (),
            (hash_strings(["x"])[0] if want == "string" else 7,),
        }
        (tmp_path / f"{name}.parquet").unlink()
