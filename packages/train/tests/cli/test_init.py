"""`sparring init`: the written configuration trains, and uncertain guesses are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import csv, parquet

from sparring import hash_strings
from sparring_cli.application import main
from sparring_train.config.reading.loader import parse_config
from sparring_train.data.table.strings import find_strings


@pytest.fixture(autouse=True)
def _in_a_separate_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes to the folder in which runs save."""
    monkeypatch.chdir(tmp_path)


def log(num_rows: int = 1200) -> dict[str, Any]:
    random = np.random.default_rng(3)
    return {
        "user": [f"u{n}" for n in random.integers(0, 90, num_rows)],
        "item_id": random.integers(0, 400, num_rows),
        "tags": ["|".join(f"t{n}" for n in random.integers(0, 9, 3)) for _ in range(num_rows)],
        "price": random.lognormal(3, 3, num_rows),
        "visits": random.integers(0, 9, num_rows),
        "row": np.arange(num_rows) * 7,
        "always": ["x"] * num_rows,
        "time": np.arange(num_rows) + 1_700_000_000,
        "clicked": random.integers(0, 2, num_rows),
    }


def write(path: Path, columns: dict[str, Any]) -> str:
    table = pyarrow.table(columns)
    csv.write_csv(table, path) if path.suffix == ".csv" else parquet.write_table(table, path)
    return str(path)


def written(
    capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0
) -> tuple[str, str]:
    assert main(["init", *arguments]) == status
    found = capsys.readouterr()
    return found.out, found.err


def remarks_of(shown: str) -> list[str]:
    """Returns the remarks below the table of columns."""
    return [line[2:] for line in shown.splitlines() if line.startswith("- ")]


def rows_of(shown: str, *roles: str) -> list[str]:
    """Returns the columns with some roles, in the order of the table."""
    return [line.split()[0] for line in shown.splitlines() if line.split()[1] in roles]


def test_it_guesses_the_roles_of_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, unsure = written(capsys, write(tmp_path / "log.csv", log()))
    config = parse_config(text)
    data: Any = config.data
    assert data.label == "clicked"
    assert data.categorical == ("user", "item_id", "tags")
    assert (data.lists, data.separator) == (("tags",), {"tags": "|"})
    assert (data.numeric, data.log1p) == (("price", "visits"), ("price",))
    assert (data.time, data.split.time) == ("time", 0.1)
    assert "90 distinct" in text
    assert "# left out: row, always" in text
    remarks = [
        "row: nearly all values are distinct, like row numbers",
        "always: all values are equal",
        "tags: 100% of the rows contain '|': read as lists",
    ]
    assert remarks_of(unsure) == remarks
    assert [each for each in text.splitlines() if "UNSURE" in each] == [
        f"# UNSURE: {each}" for each in remarks
    ]
    assert data.categorical == tuple(rows_of(unsure, "user", "item", "id", "list"))


def test_given_roles_are_not_guesses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "log.parquet", log())
    roles = ("label=clicked", "categorical=visits,row", "skip=time,tags", "weight=price")
    text, unsure = written(capsys, path, *roles)
    data: Any = parse_config(text).data
    assert data.categorical == ("user", "item_id", "visits", "row")
    assert (data.weight, data.numeric, data.time) == ("price", (), None)
    assert remarks_of(unsure) == ["always: all values are equal"]


@pytest.mark.parametrize("name", ["log.csv", "log.parquet"])
@pytest.mark.parametrize("label", ["clicked", "rating"])
def test_the_written_configuration_trains(
    name: str, label: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sparring_torch", reason="trains with torch")
    columns = log()
    columns["rating"] = columns.pop("clicked") * 2.5 + 0.5 if label == "rating" else None
    if label == "clicked":
        columns = {**log(), "on": log()["user"]}  # a word of YAML
    text, _ = written(capsys, write(tmp_path / name, columns), f"label={label}")
    (tmp_path / "my.yaml").write_text(text)
    assert main(["train", str(tmp_path / "my.yaml"), "training.steps=3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["steps"] == 3
    found = find_strings("run", "user", hash_strings(columns["user"]))
    assert any(found)
    assert set(found) <= {None, *columns["user"]}
    assert set(result["metrics"]) == ({"rmse"} if label == "rating" else {"auc", "log_loss"})


@pytest.mark.parametrize("name", ["log.csv", pytest.param("log.parquet", marks=pytest.mark.slow)])
def test_train_accepts_a_file_of_examples(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sparring_torch", reason="trains with torch")
    command = [
        "train",
        write(tmp_path / name, log()),
        "label=clicked",
        "training.steps=3",
        "--json",
    ]
    assert main([*command, "storage.backend=nowhere"]) == 2
    assert "storage 'nowhere' is unknown" in capsys.readouterr().err
    assert main(command) == 0
    ending = capsys.readouterr()
    assert json.loads(ending.out.splitlines()[-1])["steps"] == 3
    assert "always: all values are equal" in ending.err
    assert "wrote the configuration log.yaml" in ending.err
    assert "<svg" in Path("report.html").read_text()
    assert main(["config", "check", "log.yaml"]) == 0


def test_without_matplotlib_train_writes_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sparring_torch", reason="trains with torch")
    monkeypatch.setattr("sparring_train.cli.init.train_file.find_spec", lambda name: None)
    path = write(tmp_path / "log.csv", log())
    assert main(["train", path, "label=clicked", "training.steps=1"]) == 0
    assert "pip install 'sparring[report]'" in capsys.readouterr().err
    assert not Path("report.html").exists()


def test_without_numbers_it_also_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sparring_torch", reason="trains with torch")
    columns = {name: log()[name] for name in ("user", "item_id", "clicked")}
    text, unsure = written(capsys, write(tmp_path / "log.csv", columns), "label=clicked")
    assert remarks_of(unsure) == []
    (tmp_path / "my.yaml").write_text(text)
    assert main(["train", str(tmp_path / "my.yaml"), "training.steps=2", "--json"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lable=clicked"], "expected ROLE=COLUMN with one of label.*did you mean label?"),
        (["label=click"], "there is no column 'click'; did you mean clicked?"),
        (["label=user"], "the label user is string"),
        (["label=clicked", "skip=user,item_id,tags,visits,row"], "found no column of ids"),
        (["label=price", "skip=item_id,row"], "the label price is a number, for which"),
    ],
)
def test_an_impossible_configuration_is_reported(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    path = write(tmp_path / "log.csv", log())
    text, said = written(capsys, path, *arguments, status=2)
    assert text == ""
    assert re.search(message, " ".join(said.split()))


def test_a_log_without_a_label_is_supported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = log()
    columns = {"who": columns["user"], "page_key": columns["item_id"], "price": columns["price"]}
    path = write(tmp_path / "log.csv", columns)
    _, said = written(capsys, path, status=2)
    assert "give label=COLUMN, one of who, page_key, price; or --model two_towers" in " ".join(
        said.split()
    )
    _, said = written(capsys, path, "--model", "two_towers", status=2)
    assert "no column of ids has a usual name of users (one of who, page_key)" in said
    assert f"sparring init {path} --model two_towers user=who item=page_key" in said
    text, said = written(capsys, path, "--model", "two_towers", "--yes")
    config: Any = parse_config(text)
    assert (config.model.user, config.model.item) == (("who",), ("page_key",))
    assert "--yes: user=who, because no column of ids has a usual name of users" in said
    _, said = written(capsys, path, "--model", "sequence", "user=who", "item=page_key", status=2)
    assert "with a column of times; give time=COLUMN" in said
    _, said = written(capsys, path, "--model", "two_towers", "skip=who", status=2)
    assert "give user=COLUMN item=COLUMN" in said


def visits(of: str, num_rows: int = 780) -> dict[str, Any]:
    """Users, or sessions, with even and odd numbers, who visit items of their kind."""
    random = np.random.default_rng(3)
    users, items = random.integers(0, 30, num_rows), random.integers(0, 12, num_rows)
    items += (users + items) % 2
    return {
        of: [f"u{n}" for n in users],
        "item": [f"SKU_{n}" for n in items],
        "brand": [f"b{n % 4}" for n in items],
        "colour": [f"c{n}" for n in random.integers(0, 3, num_rows)],
        "age_group": [f"g{n % 5}" for n in users],
        "price": random.lognormal(3, 1, num_rows),
        "clicked": np.ones(num_rows, np.int64),
        "time": np.arange(num_rows) + 1_700_000_000,
    }


def trained(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    pytest.importorskip("sparring_torch", reason="trains with torch")
    pytest.importorskip("sparring_packed", reason="ranks all items with sparring-packed")
    (tmp_path / "my.yaml").write_text(text)
    assert (
        main(["train", str(tmp_path / "my.yaml"), "threads=1", "training.epochs=4", "--json"]) == 0
    )
    metrics: dict[str, float] = json.loads(capsys.readouterr().out.splitlines()[-1])["metrics"]
    return metrics


@pytest.mark.parametrize("name", ["log.csv", pytest.param("log.parquet", marks=pytest.mark.slow)])
def test_users_and_items_without_a_label_get_two_towers(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = visits("user_id")
    del columns["clicked"]
    text, unsure = written(capsys, write(tmp_path / name, columns))
    assert remarks_of(unsure) == []
    config: Any = parse_config(text)
    assert (config.model.user, config.model.item) == (("user_id", "age_group"), ("item", "brand"))
    assert config.data.required == ("user_id", "item")
    assert config.data.split.leave_one_out == "user_id"
    assert "# not used by this model: colour, price" in text
    assert "recall@10" in trained(text, tmp_path, capsys)
    asked = ["recommend", "run", "--user", "u4", "--with", "age_group=g4", "-k", "6", "--json"]
    assert main(asked) == 0
    items = {each["item"] for each in json.loads(capsys.readouterr().out)["items"]}
    assert len(items & {f"SKU_{n}" for n in range(0, 13, 2)}) == 6


@pytest.mark.slow
def test_sessions_with_times_get_a_model_of_sequences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = visits("session")
    del columns["clicked"]
    text, _ = written(capsys, write(tmp_path / "log.csv", columns))
    config: Any = parse_config(text)
    assert (config.model.kind, config.model.item, config.model.user) == (
        "sequence", "item", "session",
    )  # fmt: skip
    assert "recall@10" in trained(text, tmp_path, capsys)
    asked = ["recommend", "run", "--with", "history=SKU_3,SKU_5,SKU_9", "-k", "3", "--json"]
    assert main(asked) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert all(int(each["item"].removeprefix("SKU_")) % 2 for each in items)
    # The session has no row, and items that it already contains are left out.
    asked[-3:] = ["-k", "20", "--json", "--user", "u4"]
    found = []
    for more in ([], ["--new"]):
        assert main([*asked, *more]) == 0
        found.append({each["item"] for each in json.loads(capsys.readouterr().out)["items"]})
    last = {
        item for of, item in zip(columns["session"], columns["item"], strict=True) if of == "u4"
    }
    assert found[1] < found[0]
    assert found[0] - found[1] <= last
    assert main(["recommend", "run"]) == 2
    assert "give --with history=ITEM,ITEM" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("kind", ["two_towers", "sequence"])
@pytest.mark.parametrize(("label", "positive"), [("clicked", 1), ("rating", 2.5)])
def test_labels_determine_which_rows_are_ranked(
    kind: str, label: str, positive: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = visits("user")
    columns["rating"] = np.arange(len(columns["user"])) % 6 / 2 + 1
    if label == "clicked":
        del columns["rating"]
    columns["clicked"][::2] = 0
    given = (f"label={label}", "weight=price", "--model", kind)
    text, unsure = written(capsys, write(tmp_path / "log.csv", columns), *given)
    config: Any = parse_config(text)
    assert (config.model.kind, config.model.positive) == (kind, positive)
    assert (config.data.label, config.data.weight) == (label, "price")
    assert ("rows with at least 2.5 are positive" in unsure) == (label == "rating")


def test_texts_are_ids_lists_numbers_or_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(4)
    numbers = random.integers(0, 90, 1200)
    columns = {
        "title": [f"The book {n}" for n in numbers],
        "words": ["  ".join(f"w{n}" for n in random.integers(0, 9, 4)) for _ in range(1200)],
        "tags": ["|".join(f"t{n}" for n in random.integers(0, 9, 3)) for _ in range(1200)],
        "user": ["" if n % 9 == 0 else f"u{n}" for n in numbers],
        "user_id": [None if n % 9 == 0 else float(n) for n in numbers],
        "price": [f"{n},99" for n in numbers],
        "bought": [f"{n % 28 + 1}/{n % 12 + 1}/2024 10:05" for n in numbers],
        "clicked": numbers % 2,
    }
    text, unsure = written(capsys, write(tmp_path / "log.csv", columns), "label=clicked")
    data: Any = parse_config(text).data
    assert data.categorical == ("title", "words", "tags", "user", "user_id")
    assert (data.lists, data.separator) == (("words", "tags"), {"words": " ", "tags": "|"})
    assert "- title  # 90 distinct" in text
    missing = sum(not each for each in columns["user"])
    for name in ("user", "user_id"):
        (line,) = (each for each in text.splitlines() if f"- {name} " in each)
        assert "# 80 distinct" in line
        assert line.endswith(f", {missing} missing")
    assert (data.time, data.date_order) == ("bought", "dmy")
    assert (data.numeric, data.decimal) == (("price",), ",")
    assert "words: 100% of the rows contain ' ': read as lists" in unsure


def test_columns_of_one_name_are_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user,item,user,clicked\na,b,c,1\nb,c,d,0\n")
    _, said = written(capsys, str(path), status=2)
    assert "found several columns 'user'; rename" in " ".join(said.split())
