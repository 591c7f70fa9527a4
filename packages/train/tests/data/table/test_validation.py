"""Validation rows are selected like test rows, and never among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sparring.errors import DataError

from .table_files import click_log, opened, rows_of, section, write_files

LOG = click_log(300)
NAMES = ("log.csv", "log.parquet")


def parts(path: Path, **keys: Any) -> tuple[set[int], set[int], set[int]]:
    """Returns the places of the rows for training, for the test and for validation."""
    (data,) = opened(section(path, **keys))
    found = tuple(
        {int(row[3]) for batch in part for row in rows_of(batch)}
        for part in (data.batches(0), data.test_batches(), data.validation_batches())
    )
    assert sum(map(len, found)) == 300
    assert set().union(*found) == set(range(300))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_validation_uses_the_rows_before_those_of_the_test(name: str, tmp_path: Path) -> None:
    write_files(tmp_path, LOG)
    path = tmp_path / name
    by_time = parts(path, time="at", split={"time": 0.1}, validation={"time": 0.1})
    assert by_time == (set(range(243)), set(range(270, 300)), set(range(243, 270)))
    from_time = parts(path, time="at", split={"time_from": 250}, validation={"time_from": 200})
    assert from_time[1:] == (set(range(250, 300)), set(range(200, 250)))

    places: dict[str, list[int]] = {}
    for row in LOG.to_pylist():
        if row["user"]:
            places.setdefault(row["user"], []).append(row["at"])
    by_user = parts(path, split={"leave_one_out": "user"}, validation={"leave_one_out": "user"})
    assert by_user[1] == {each[-1] for each in places.values() if len(each) > 1}
    assert by_user[2] == {each[-2] for each in places.values() if len(each) > 2}


@pytest.mark.parametrize("name", NAMES)
def test_random_validation_does_not_change_the_test(name: str, tmp_path: Path) -> None:
    write_files(tmp_path, LOG)
    path = tmp_path / name
    _, alone = parts(path, split={"fraction": 0.3}, validation={"time": 0.01}, time="at")[:2]
    train, test, validation = parts(path, split={"fraction": 0.3}, validation={"fraction": 0.5})
    assert test == alone
    assert len(validation) == pytest.approx(105, abs=25)
    assert len(train) == pytest.approx(105, abs=25)
    # Also with another method for the test.
    _, test, validation = parts(path, time="at", split={"time": 0.5}, validation={"fraction": 0.2})
    assert test == set(range(150, 300))
    assert len(validation) == pytest.approx(30, abs=15)


@pytest.mark.parametrize("name", NAMES)
def test_validation_by_a_value_of_a_column(name: str, tmp_path: Path) -> None:
    write_files(tmp_path, LOG)
    found = parts(
        tmp_path / name, split={"fraction": 0.5}, validation={"column": "clicked", "value": 1}
    )
    clicked = {row["at"] for row in LOG.to_pylist() if row["clicked"]}
    assert found[2] == clicked - found[1]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"validation": {}}, "must contain a single rule"),
        ({"validation": {"fraction": 0.1, "column": "clicked"}}, "must contain a single rule"),
        ({"validation": {"time": 0.1}}, r"is required by data\.validation"),
        ({"validation": {"test": "x", "fraction": 0.1}}, "Extra inputs"),
    ],
)
def test_a_wrong_section_is_rejected(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        section("log.csv", **keys)


def test_validation_without_a_row_is_rejected(tmp_path: Path) -> None:
    write_files(tmp_path, LOG)
    with pytest.raises(DataError, match=r"and 0 for validation; choose .* data\.validation"):
        opened(section(tmp_path / "log.parquet", validation={"column": "clicked", "value": 7}))
