"""Rows are drawn for the test and for validation by their file and their number in it, or by a key."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
import pytest
from pyarrow import csv, parquet
from pydantic import ValidationError

from sparring_train.data.split import uniform_of_rows

from ..lake.lake_tables import FORMATS, make_lake
from .table_files import batches, opened, section

ENDINGS = ("csv", "parquet")
FRACTIONS: dict[str, Any] = {"split": {"fraction": 0.2}, "validation": {"fraction": 0.25}}
EXACT: dict[str, Any] = {"split": {"exact_fraction": 0.2}, "validation": {"exact_fraction": 0.25}}
PARTS = ("train", "test", "validation")


def write(path: Path, begin: int, count: int = 500, users: int = 60) -> None:
    """Writes a file whose column `at` numbers the rows from `begin`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        csv.write_csv(rows(begin, count, users), path)
    else:
        parquet.write_table(rows(begin, count, users), path, row_group_size=max(70, count // 7))


def rows(begin: int, count: int = 500, users: int = 60) -> Any:
    at = np.arange(begin, begin + count)
    user = pyarrow.array([f"u{n % users}" if n % 7 else None for n in at], pyarrow.string())
    return pyarrow.table({"user": user, "clicked": at % 2, "at": at, "shop": at % 50})


def parts(path: Path | str, world_size: int = 1, **keys: Any) -> dict[str, npt.NDArray[np.int64]]:
    """Returns the sorted numbers of the rows of each part, after a check that each is in one."""
    data = section(path, categorical=["user"], lists=[], **{**FRACTIONS, **keys})
    sets = opened(data, world_size)
    read = {
        "train": [each.batches(1) for each in sets],
        "test": [each.test_batches() for each in sets],
    }
    if data.has_validation:
        read["validation"] = [each.validation_batches() for each in sets]
    found = {}
    for name, of_ranks in read.items():
        numbers = [batch.numbers[:, 0] for batch in batches(of_ranks)]
        found[name] = np.sort(np.concatenate(numbers).astype(np.int64))
    whole = np.concatenate(list(found.values()))
    assert len(np.unique(whole)) == len(whole)
    return found


def part_of(found: dict[str, npt.NDArray[np.int64]]) -> dict[int, str]:
    return {at: name for name, numbers in found.items() for at in numbers.tolist()}


@pytest.mark.parametrize("ending", ENDINGS)
def test_other_files_and_another_folder_move_no_row(ending: str, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    write(logs / f"b.{ending}", 0)
    write(logs / f"d.{ending}", 500)
    before = part_of(parts(logs))
    assert len(before) == 1000
    for at, name in ((1000, "a"), (1500, "c"), (2000, "e")):
        write(logs / f"{name}.{ending}", at)
    after = part_of(parts(logs))
    assert len(after) == 2500
    assert before.items() <= after.items()
    moved = tmp_path / "elsewhere" / "other"
    moved.parent.mkdir()
    shutil.move(logs, moved)
    for path in (moved, f"{moved}/", moved / "*", moved / f"*.{ending}", f"file://{moved}"):
        assert part_of(parts(path)) == after
    alone = part_of(parts(moved / f"d.{ending}"))
    assert alone.items() <= after.items()
    # Files of one name in different folders are drawn separately.
    for name in ("x", "y"):
        write(tmp_path / "days" / name / f"part.{ending}", {"x": 0, "y": 500}[name])
    days = part_of(parts(tmp_path / "days" / "*" / f"part.{ending}"))
    assert {days[at] == days[at + 500] for at in range(500)} == {True, False}


@pytest.mark.parametrize("ending", ENDINGS)
def test_fractions_are_right_within_noise(ending: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.{ending}", {"a": 0, "b": 10_000}[name], 10_000)
    found = parts(tmp_path)
    for name, share in zip(PARTS, (0.6, 0.2, 0.2), strict=True):
        # Five standard deviations of a binomial distribution.
        noise = 5 * np.sqrt(20_000 * share * (1 - share))
        assert len(found[name]) == pytest.approx(20_000 * share, abs=noise)
    exact = parts(tmp_path, **EXACT)
    assert [len(exact[name]) for name in PARTS] == [12_000, 4_000, 4_000]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    "keys", [FRACTIONS, EXACT, {"split": {"fraction": 0.2, "key": "user"}}], ids=str
)
def test_all_numbers_of_ranks_draw_the_same_rows(
    ending: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.{ending}", {"a": 0, "b": 500}[name])
    expected = part_of(parts(tmp_path, **keys))
    for world_size in (2, 3):
        assert part_of(parts(tmp_path, world_size, **keys)) == expected


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_key_keeps_its_rows_in_one_part(ending: str, tmp_path: Path) -> None:
    keys = {
        "split": {"fraction": 0.3, "key": "user"},
        "validation": {"fraction": 0.3, "key": "user"},
    }
    write(tmp_path / f"a.{ending}", 0, 3000, users=500)
    before = part_of(parts(tmp_path, **keys))
    write(tmp_path / f"0.{ending}", 3000, 3000, users=500)
    after = part_of(parts(tmp_path, **keys))
    assert before.items() <= after.items()
    users: dict[str, set[str]] = {}
    for at, name in after.items():
        if at % 7:
            users.setdefault(f"u{at % 500}", set()).add(name)
    assert {len(each) for each in users.values()} == {1}
    shares = [sum(each == {name} for each in users.values()) / len(users) for name in PARTS]
    assert shares == pytest.approx([0.49, 0.3, 0.21], abs=0.1)
    # Rows without a user are not one user.
    assert {after[at] for at in range(0, 6000, 7)} == set(PARTS)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_key_need_not_be_a_column_of_the_model(ending: str, tmp_path: Path) -> None:
    write(tmp_path / f"a.{ending}", 0)
    found = part_of(parts(tmp_path, split={"fraction": 0.3, "key": "shop"}, validation=None))
    of_shops = [{found[at] for at in range(shop, 500, 50)} for shop in range(50)]
    assert {frozenset(each) for each in of_shops} == {frozenset(["train"]), frozenset(["test"])}
    # Test rows are drawn one by one, validation rows by their shop.
    found = part_of(parts(tmp_path, validation={"fraction": 0.5, "key": "shop"}))
    of_shops = [{found[at] for at in range(shop, 500, 50)} - {"test"} for shop in range(50)]
    assert {frozenset(each) for each in of_shops} == {
        frozenset(["train"]),
        frozenset(["validation"]),
    }


def test_keys_of_csv_files_are_texts_whatever_the_first_ones_look_like(tmp_path: Path) -> None:
    def written(name: str, begin: int, shop: str) -> None:
        rows = [f"u{at % 9},{at % 2},{at},{shop}{at % 50}" for at in range(begin, begin + 400)]
        (tmp_path / name).write_text("\n".join(["user,clicked,at,shop", *rows]))

    keys = {"split": {"fraction": 0.3, "key": "shop"}, "validation": None}
    written("b.csv", 0, "1")
    before = part_of(parts(tmp_path, **keys))
    written("a.csv", 1000, "x")
    assert before.items() <= part_of(parts(tmp_path, **keys)).items()


@pytest.mark.parametrize(
    "rule", [{"time": 0.1, "key": "user"}, {"leave_one_out": "user", "key": "user"}]
)
def test_only_a_fraction_has_a_key(rule: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="has a key, which only fraction uses"):
        section("log.csv", time="at", split=rule)
    with pytest.raises(ValidationError, match="requires a key with one id per row"):
        section("log.csv", split={"fraction": 0.1, "key": "tags"})


@pytest.mark.parametrize("ending", ENDINGS)
def test_earlier_runs_draw_by_the_position_in_all_files(ending: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.{ending}", {"a": 0, "b": 500}[name])
    found = parts(tmp_path, draw="position")
    uniform = uniform_of_rows(0, 1000, seed=3)
    assert found["test"].tolist() == np.flatnonzero(uniform < 0.2).tolist()
    is_validation = (uniform >= 0.2) & (uniform < 0.4)
    assert found["validation"].tolist() == np.flatnonzero(is_validation).tolist()
    exact = parts(tmp_path, draw="position", **EXACT)
    order = np.random.Generator(np.random.PCG64(3)).permutation(1000)
    assert exact["test"].tolist() == np.sort(order[:200]).tolist()
    assert exact["validation"].tolist() == np.sort(order[200:400]).tolist()


@pytest.mark.parametrize("kind", FORMATS)
def test_an_addition_to_a_table_of_a_lakehouse_moves_no_row(kind: str, tmp_path: Path) -> None:
    lake = make_lake(kind, tmp_path)
    lake.add(rows(0))
    before = part_of(parts(lake.url))
    for begin in (500, 1000):
        lake.add(rows(begin))
    after = part_of(parts(lake.url))
    assert len(after) == 1500
    assert before.items() <= after.items()
