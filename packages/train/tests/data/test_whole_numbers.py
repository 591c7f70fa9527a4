"""Ids that are read as numbers are exact: a number that is no id is a bad row, for every reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

from sparring import hash_strings
from sparring.errors import DataError
from sparring_train.columns import ColumnBatch
from sparring_train.config.sections.stream import StreamData
from sparring_train.config.sections.table import TableData
from sparring_train.data.stream.events import MessageDecoder
from sparring_train.data.table.decode import Decoder, RawRows
from sparring_train.run.snapshot_rows import parse_candidate_keys
from sparring_train.streams import StreamMessage


def from_json(text: str, **keys: Any) -> ColumnBatch:
    columns = {"categorical": ("user", "tags"), "lists": ("tags",), **keys}
    data = StreamData(kind="stream", url="clicks", format="json", stop_at_end=True, **columns)
    decoder = MessageDecoder(data, None, 0)
    events = decoder.parse("0", StreamMessage(7, text.encode(), 0.0))
    assert events is not None
    batch = decoder.decode([events], {"0": None})
    assert batch is not None
    return batch


def from_array(array: Any) -> list[int]:
    data = TableData(kind="table", path="x.parquet", categorical=("user",), required=("user",))
    rows = RawRows("x.parquet", 1, 0, len(array), {"user": array})
    batch, _ = Decoder(data, None).decode(rows)
    found: list[int] = batch.ids["user"].ids.tolist()
    return found


@pytest.mark.parametrize("text", ["9007199254740993.0", "9007199254740993", "9.007199254740993e15"])
def test_a_whole_number_in_json_is_read_exactly(text: str) -> None:
    batch = from_json(f'{{"user": {text}, "tags": [{text}, null, 5.0]}}')
    assert batch.ids["user"].ids.tolist() == [2**53 + 1]
    assert batch.ids["tags"].ids.tolist() == [2**53 + 1, 5]


def test_unsigned_ids_in_json_are_read_exactly() -> None:
    text = f'{{"user": {2**64 - 1}.0, "tags": []}}'
    batch = from_json(text, types={"user": "unsigned"})
    assert batch.ids["user"].ids.tolist() == [-1]


@pytest.mark.parametrize(
    "text", ["1.5", "0.99999999999999999999", "4503599627370496.25", "9.3e18", "true", "NaN", '"7"']
)
@pytest.mark.parametrize("is_list", [False, True])
def test_another_value_in_json_is_a_bad_event(text: str, is_list: bool) -> None:
    user, tags = ("7", f"[5, {text}]") if is_list else (text, "[5]")
    with pytest.raises(DataError, match=r"offset 7: column '(user|tags)': found .*whole number"):
        from_json(f'[{{"user": 1, "tags": []}}, {{"user": {user}, "tags": {tags}}}]')


def test_bad_events_are_skipped_alone(tmp_path: Path) -> None:
    events = [{"user": 1, "tags": [2]}, {"user": 1.5, "tags": [2]}, {"user": 3, "tags": [4.5]}]
    batch = from_json(json.dumps(events), bad_rows="skip", dead_letters=str(tmp_path))
    assert batch.ids["user"].ids.tolist() == [1]
    [letters] = tmp_path.iterdir()
    reasons = [json.loads(each)["reason"] for each in letters.read_text().splitlines()]
    assert ["found 1.5" in reasons[0], "found 4.5" in reasons[1]] == [True, True]


def test_huge_exponents_in_json_are_numbers_and_no_ids() -> None:
    for text, expected in (
        ("1e-99999999999999999999", 0.0),
        ("0e999999999", 0.0),
        ("-2.50e1", -25.0),
    ):
        batch = from_json(f'{{"user": 1, "tags": [], "price": {text}}}', numeric=("price",))
        assert batch.numbers.tolist() == [[expected]]
    for text in ("1e-99999999999999999999", "1e-400", "1e999999999", "-1e99999999999999999999"):
        with pytest.raises(DataError, match=r"offset 7: column 'user': found .*whole number"):
            from_json(f'{{"user": {text}, "tags": []}}')


def test_large_numbers_in_json_remain_numbers() -> None:
    text = '{"user": 1, "tags": [], "price": 9007199254740993}'
    batch = from_json(text, numeric=("price",))
    assert batch.numbers.tolist() == [[2.0**53]]


@pytest.mark.parametrize(("kind", "digits"), [("float16", 11), ("float32", 24), ("float64", 53)])
def test_floats_are_ids_if_their_type_stores_them_exactly(kind: str, digits: int) -> None:
    exact = np.array([2**digits - 1, -5, 0], kind)
    assert from_array(pyarrow.array(exact)) == [2**digits - 1, -5, 0]
    for value in (2**digits, 1.5, np.inf):
        with pytest.raises(DataError, match="expected a whole number"):
            from_array(pyarrow.array(np.array([value], kind)))


@pytest.mark.parametrize("text", ["1_0", " 7", "7 ", "٣", "1.0", "1e3", "0x10", "", "9" * 5000])
def test_a_text_that_files_read_as_a_string_is_not_a_number_for_commands(text: str) -> None:
    assert parse_candidate_keys(text) == [int(hash_strings([text])[0])]


@pytest.mark.parametrize(("text", "key"), [("007", 7), ("-5", -5), ("+5", 5), (str(2**64 - 1), -1)])
def test_a_number_may_mean_its_key_or_its_hash(text: str, key: int) -> None:
    assert parse_candidate_keys(text) == [key, int(hash_strings([text])[0])]
