"""Rows on disk say what they are, and are not taken for anything else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparring import TableConfig, open_storage
from sparring.cli import main
from sparring.errors import InvalidArgumentError

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
def test_rows_of_another_making_are_refused_with_the_command(
    tmp_path: Path, other: TableConfig
) -> None:
    filled(tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"float32 x 4 \+ 4 adagrad.*sparring convert"):
        open_storage("sqlite", other, folder=tmp_path)
    for same in (ADAGRAD, TABLE.with_state(4, "Adagrad"), TABLE.with_state(4)):
        with open_storage("sqlite", same, folder=tmp_path) as storage:
            assert storage.size == 3


def test_convert_keeps_embeddings_and_starts_state_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = filled(tmp_path / "old")
    command = ["convert", "sqlite", "item", "--dim", "4", "--from", "adagrad"]
    command += ["--to", "rowwise_adagrad", "--hyper", "initial_accumulator_value=0.5"]
    command += ["--option", f"folder={tmp_path / 'old'}"]
    assert main([*command, "--into", f"folder={tmp_path / 'new'}"]) == 0
    assert "3 rows of table 'item'" in capsys.readouterr().out
    with open_storage(
        "sqlite", TABLE.with_state(1, "rowwise_adagrad"), folder=tmp_path / "new"
    ) as storage:
        found = storage.find([5, -1, 7]).rows
    np.testing.assert_array_equal(found[:, :4], rows[:, :4])
    np.testing.assert_array_equal(found[:, 4], 0.5)
    assert main([*command, "--into", f"folder={tmp_path / 'new'}"]) == 2
    assert "holds 3 rows already" in capsys.readouterr().err
    assert main([*command, "--into", f"folder={tmp_path / 'old'}"]) == 2
    assert "name one storage" in capsys.readouterr().err
