"""Tests that stored rows are rejected if they do not match the declared table."""

from __future__ import annotations

import shlex
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from sparring import StepContainer, StorageChoice, open_storage
from sparring.contracts import TableConfig
from sparring.errors import InvalidArgumentError
from sparring_cli.application import main

TABLE = TableConfig("item", 4)
ADAGRAD = TABLE.with_state(4, "adagrad")


def filled(folder: Path) -> np.ndarray:
    rows = np.arange(24, dtype=np.float32).reshape(3, 8)
    with open_storage("sqlite", ADAGRAD, folder=folder) as storage:
        storage.upsert([5, -1, 7], rows)
    return rows


@pytest.mark.parametrize(
    "other",
    [
        TABLE,
        TABLE.with_state(4, "momentum"),
        TABLE.with_state(1, "rowwise_adagrad"),
    ],
    ids=lambda table: table.row_label,
)
def test_rows_written_by_other_code_are_rejected_with_the_command(
    tmp_path: Path, other: TableConfig
) -> None:
    filled(tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"float32 x 4 \+ 4 adagrad.*sparring convert"):
        open_storage("sqlite", other, folder=tmp_path)
    for same in (ADAGRAD, TABLE.with_state(4, "Adagrad"), TABLE.with_state(4)):
        with open_storage("sqlite", same, folder=tmp_path) as storage:
            assert storage.size == 3


@pytest.mark.parametrize(
    ("dtype", "asked"),
    [("float32", "momentum"), ("bfloat16", "rowwise_adagrad"), ("float64", "sgd")],
)
def test_the_command_in_an_error_message_works_as_printed(
    tmp_path: Path, dtype: str, asked: str
) -> None:
    table = TableConfig("item", 4, dtype)
    wanted = table.with_state({"momentum": 4, "rowwise_adagrad": 1, "sgd": 0}[asked], asked)
    old = table.with_state(4, "adagrad")
    folder = str(tmp_path / "a folder")
    with open_storage("sqlite", old, folder=folder) as storage:
        storage.upsert([5, -1], np.ones((2, old.width), old.numpy_dtype))
    with pytest.raises(InvalidArgumentError) as refused:
        open_storage("sqlite", wanted, folder=folder)
    program, *arguments = shlex.split(str(refused.value).partition("to another location: ")[2])
    assert program == "sparring"
    assert main(arguments) == 0
    with open_storage("sqlite", wanted, folder=f"{folder}-converted") as storage:
        found = storage.find([5, -1])
    assert found.found.all()
    assert (wanted.embeddings(found.rows) == 1).all()
    assert not wanted.state(found.rows).any()


def test_an_unknown_optimizer_label_is_rejected(tmp_path: Path) -> None:
    filled(tmp_path)
    with sqlite3.connect(tmp_path / "item.sqlite") as database:
        database.execute("UPDATE about SET label = 'float32 x 4 + many'")
    with pytest.raises(InvalidArgumentError, match=r"layout 'float32 x 4 . many'.*name another"):
        open_storage("sqlite", ADAGRAD, folder=tmp_path)


def test_a_second_optimizer_is_rejected_with_the_command(tmp_path: Path) -> None:
    made = StepContainer()
    made.declare(TABLE, StorageChoice("sqlite", {"folder": str(tmp_path)}))
    made.set_state("item", np.zeros(4, np.float32), "adagrad")
    made.storage("item").upsert([1], np.ones((1, 8), np.float32))
    with pytest.raises(InvalidArgumentError, match=r"4 elements.*adagrad.*sparring convert sqlite"):
        made.set_state("item", np.zeros(4, np.float32), "momentum")
    with pytest.raises(InvalidArgumentError, match=r"sparring convert sqlite item .*--to none"):
        made.drop_state("item")
    assert made.tables["item"].state_method == "adagrad"
    made.close()


def test_convert_keeps_embeddings_and_resets_the_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = filled(tmp_path / "old")
    command = ["convert", "sqlite", "item", "--dim", "4", "--from", "adagrad"]
    command += ["--to", "rowwise_adagrad", "--hyper", "initial_accumulator_value=0.5"]
    command += ["--from-option", f"folder={tmp_path / 'old'}"]
    assert main([*command, "--to-option", f"folder={tmp_path / 'new'}"]) == 0
    assert "3 rows of table 'item'" in capsys.readouterr().out
    with open_storage(
        "sqlite", TABLE.with_state(1, "rowwise_adagrad"), folder=tmp_path / "new"
    ) as storage:
        found = storage.find([5, -1, 7]).rows
    np.testing.assert_array_equal(found[:, :4], rows[:, :4])
    np.testing.assert_array_equal(found[:, 4], 0.5)
    assert main([*command, "--to-option", f"folder={tmp_path / 'new'}"]) == 2
    assert "contains 3 rows" in capsys.readouterr().err
    assert main([*command, "--to-option", f"folder={tmp_path / 'old'}"]) == 2
    assert "specify the same storage" in capsys.readouterr().err
