"""After the command in the error message of a rejected table, the run continues."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import StepContainer, StorageChoice, open_storage
from sparring.contracts import TableConfig
from sparring.errors import InvalidArgumentError
from sparring_cli.application import main

TABLE = TableConfig("item", 4, "float64").with_state(4, "adagrad")
ADAM = TABLE.with_state(8, "adam")
KEYS = np.arange(5)
ROWS = np.arange(40.0).reshape(5, 8)


def open_adam(options: dict[str, Any]) -> None:
    open_storage("rocksdb", ADAM, **options)


def ask_container(options: dict[str, Any]) -> None:
    with StepContainer() as container:
        container.declare(TABLE.with_state(0), StorageChoice("rocksdb", options))
        container.state.tables.probe_existing_rows(container.entry("item"))
        container.check_state("item", 8, "adam")


@pytest.mark.parametrize("place", ["a folder/rows", "rows"])
@pytest.mark.parametrize("others", [{}, {"block_cache_bytes": 1 << 20, "bloom_bits_per_key": 8.0}])
@pytest.mark.parametrize("is_asked_later", [False, True])
def test_rows_of_another_optimizer_are_usable_after_the_suggested_command(
    place: str,
    others: dict[str, Any],
    is_asked_later: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"path": place, **others}
    with open_storage("rocksdb", TABLE, **options) as storage:
        storage.upsert(KEYS, ROWS)
    with pytest.raises(InvalidArgumentError) as caught:
        (ask_container if is_asked_later else open_adam)(options)
    (command,) = re.findall(r"sparring (convert .*)$", str(caught.value))
    words = shlex.split(command)
    if "PLACE=ELSEWHERE" in words:  # for the reader to fill in
        words[words.index("PLACE=ELSEWHERE")] = "path=elsewhere"
    assert main(words) == 0
    converted = [each[5:] for each in words if each.startswith("path=")][-1]
    assert converted != place
    with open_storage("rocksdb", ADAM, **{**options, "path": converted}) as storage:
        found = storage.find(KEYS).rows
        assert found[:, :4].tolist() == ROWS[:, :4].tolist()
        assert not found[:, 4:].any()
