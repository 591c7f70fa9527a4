"""Following the fix of an error message solves the problem."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.contracts.checkpoint import SaveOptions
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import (
    CapacityError,
    InterruptedLoadError,
    InvalidArgumentError,
    NonFiniteGradientError,
    SnapshotDamagedError,
    SnapshotError,
    SparringError,
)
from sparring.storage.open import open_storage
from sparring_cli.application import main
from sparring_testing.processes.table_steps import declare_tables, open_tables, train_ids

TABLE = TableConfig("item", 2)
KEYS = np.arange(20)
ROWS = np.ones((20, 2), np.float32)


def test_non_finite_gradients_are_skipped_as_the_message_advises() -> None:
    with open_tables(TABLE) as made, pytest.raises(NonFiniteGradientError) as caught:
        train_ids(made, {"item": KEYS}, np.nan)
    (given,) = re.findall(r"choose (\w+)='(\w+)'", str(caught.value))
    with open_tables(TABLE, **dict([given])) as made:
        train_ids(made, {"item": KEYS}, np.nan)
        assert made.counters.rows_skipped_non_finite == len(KEYS)


@pytest.mark.parametrize("policy", ["lru", "lfu", "custom", "larger", "erase"])
def test_a_full_storage_takes_rows_once_the_advice_is_followed(policy: str) -> None:
    with open_storage("memory", TABLE, capacity=20) as storage:
        storage.upsert(KEYS, ROWS)
        with pytest.raises(CapacityError) as caught:
            storage.upsert(KEYS + 20, ROWS)
        advice = "raise the capacity, erase rows, or choose policy lru, lfu or custom"
        assert advice in str(caught.value)
        if policy == "erase":
            storage.erase(KEYS)
            storage.upsert(KEYS + 20, ROWS)
            return
    options = {"capacity": 40} if policy == "larger" else {"capacity": 20, "policy": policy}
    with open_storage("memory", TABLE, **options) as storage:
        storage.upsert(KEYS, ROWS)
        storage.upsert(KEYS + 20, ROWS)
        assert storage.find(KEYS + 20).found.sum() == (40 if policy == "larger" else 20) - (
            20 if policy == "larger" else 0
        )


@pytest.mark.parametrize("options", [{"capacity": 40}, {"capacity": 20, "policy": "lru"}])
def test_a_step_fits_once_the_advice_is_followed(options: Any) -> None:
    with open_tables(TABLE, storage=StorageChoice("memory", {"capacity": 20})) as made:
        train_ids(made, {"item": KEYS})
        with pytest.raises(CapacityError, match="Raise its capacity, or choose a policy that evic"):
            train_ids(made, {"item": KEYS + 20})
    with open_tables(TABLE, storage=StorageChoice("memory", options)) as made:
        train_ids(made, {"item": KEYS})
        train_ids(made, {"item": KEYS + 20})
        assert made.num_rows("item") == options["capacity"]


def test_a_step_finds_memory_once_the_budget_is_raised() -> None:
    with open_tables(TABLE, memory_bytes=1) as made, pytest.raises(CapacityError) as caught:
        train_ids(made, {"item": KEYS})
    (name,) = re.findall(r"StepContainer\((\w+)=…\)", str(caught.value))
    with open_tables(TABLE, **{name: 1 << 30}) as made:
        train_ids(made, {"item": KEYS})


def test_ids_of_another_dtype_are_accepted_as_the_message_converts_them() -> None:
    with open_tables(TABLE) as made:
        ids = KEYS.astype(np.int32)
        with pytest.raises(InvalidArgumentError) as caught:
            made.lookup("item", ids)
        (advice,) = re.findall(r"; pass (numpy\.asarray\(.*\))", str(caught.value))
        assert len(made.lookup("item", eval(advice, {"numpy": np, "ids": ids})).keys) == 20


def test_repeated_keys_are_deduplicated_by_the_function_that_is_named() -> None:
    with open_storage("memory", TABLE) as storage:
        repeated = np.array([7, 8, 7])
        with pytest.raises(InvalidArgumentError) as caught:
            storage.upsert(repeated, ROWS[:3])
        (name,) = re.findall(r"\((sparring\.[\w.]+)\)", str(caught.value))
        module, _, function = name.rpartition(".")
        keys = getattr(importlib.import_module(module), function)(repeated).keys
        storage.upsert(keys, ROWS[: len(keys)])
        assert storage.size == 2


def test_another_method_starts_after_the_call_that_is_named() -> None:
    with StepContainer() as made:
        declare_tables(made, [TABLE], "memory", "adagrad")
        train_ids(made, {"item": KEYS}, method="adagrad")
        with pytest.raises(InvalidArgumentError) as caught:
            declare_tables(made, [TABLE], "memory", "adam")
        ((method, table),) = re.findall(r"call StepContainer\.(\w+)\('(\w+)'\)", str(caught.value))
        getattr(made, method)(table)
        declare_tables(made, [TABLE], "memory", "adam")
        train_ids(made, {"item": KEYS}, method="adam")
        assert made.num_rows("item") == 20


def test_a_delta_is_saved_after_the_save_that_the_message_requires(tmp_path: Path) -> None:
    full, delta = str(tmp_path / "full"), str(tmp_path / "delta")
    with open_tables(TABLE) as made:
        train_ids(made, {"item": KEYS})
        with pytest.raises(InvalidArgumentError) as caught:
            made.save(delta, base=full)
        (advice,) = re.findall(r"options=(\w+\(\w+=\w+\))", str(caught.value))
        made.save(full, options=eval(advice, {"SaveOptions": SaveOptions}))
        train_ids(made, {"item": KEYS})
        assert made.save(delta, base=full).base == full


def test_an_older_snapshot_is_loaded_after_a_damaged_one(tmp_path: Path) -> None:
    old, new = tmp_path / "step-1", tmp_path / "step-2"
    with open_tables(TABLE) as made:
        for url in old, new:
            train_ids(made, {"item": KEYS})
            made.save(str(url))
        for file in new.glob("rows*"):
            file.write_bytes(file.read_bytes()[:-1] + b"?")
        with pytest.raises(SnapshotDamagedError, match="load an older snapshot"):
            made.load(str(new))
        with pytest.raises(InterruptedLoadError, match=r"Load a snapshot again .*container\.load"):
            train_ids(made, {"item": KEYS})
        made.load(str(old))
        train_ids(made, {"item": KEYS})
        assert made.counters.steps == 2


@pytest.mark.parametrize("name", ["step-9", ""])
def test_a_missing_snapshot_is_found_by_the_command_that_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_tables(TABLE) as made:
        train_ids(made, {"item": KEYS})
        made.save(str(tmp_path / "runs" / "step-1"))
        with pytest.raises(SnapshotError) as caught:
            made.load(str(tmp_path / "runs" / name))
    (arguments,) = re.findall(r"`sparring (\w+ [^`]*)`", str(caught.value))
    assert main(arguments.split()) == 0
    assert "step-1" in capsys.readouterr().out


def test_tables_of_a_snapshot_are_listed_as_the_message_advises(tmp_path: Path) -> None:
    url = str(tmp_path / "both")
    with open_tables(TABLE) as made:
        train_ids(made, {"item": KEYS})
        made.declare(TableConfig("other", 2), StorageChoice("memory"))
        made.storage("other").upsert(KEYS, ROWS)
        made.save(url)
    with open_tables(TABLE) as made:
        with pytest.raises(
            SparringError, match=r"declare them, or specify the tables to load: load\("
        ):
            made.load(url)
        made.load(url, tables=["item"])
        assert made.num_rows("item") == 20


def test_a_storage_of_unknown_name_is_listed_by_the_command_that_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SparringError) as caught:
        open_storage("memori", TABLE)
    (command,) = re.findall(r"`sparring (\w+)` lists all", str(caught.value))
    assert main([command]) == 0
    assert "memory" in capsys.readouterr().out
