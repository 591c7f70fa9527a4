"""Following the fix of an error message solves the problem."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.contracts.checkpoint import SaveOptions
from sparring.contracts.storage.updates import MethodChoice
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
from sparring.updates.resolve import parse_hyper, resolve_method
from sparring_cli.application import main

TABLE = TableConfig("item", 2)
KEYS = np.arange(20)
ROWS = np.ones((20, 2), np.float32)


def container(method: str = "sgd", options: Any = None, **settings: Any) -> StepContainer:
    made = StepContainer(**settings)
    made.declare(TABLE, StorageChoice("memory", options or {}))
    choose(made, method)
    return made


def choose(made: StepContainer, method: str) -> None:
    known = resolve_method(method)
    hyper = parse_hyper(known, {"lr": 0.1})
    state = known.initial_state(TABLE.dim, hyper, TABLE.computing_dtype)
    made.set_state("item", state, method)


def step(made: StepContainer, ids: Any = KEYS, gradient: float = 1.0, method: str = "sgd") -> None:
    found = made.lookup("item", ids)
    assert found.shadow_id is not None
    made.resources.accumulate(found.shadow_id, np.full_like(found.rows, gradient))
    known = resolve_method(method)
    choice = MethodChoice(known, parse_hyper(known, {"lr": 0.1}), made.counters.steps + 1)
    made.apply_methods({"item": choice})


def test_non_finite_gradients_are_skipped_as_the_message_advises() -> None:
    with container() as made, pytest.raises(NonFiniteGradientError) as caught:
        step(made, gradient=np.nan)
    (given,) = re.findall(r"choose (\w+)='(\w+)'", str(caught.value))
    with container(**dict([given])) as made:
        step(made, gradient=np.nan)
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
    with container(options={"capacity": 20}) as made:
        step(made)
        with pytest.raises(CapacityError, match="Raise its capacity, or choose a policy that evic"):
            step(made, KEYS + 20)
    with container(options=options) as made:
        step(made)
        step(made, KEYS + 20)
        assert made.num_rows("item") == options["capacity"]


def test_a_step_finds_memory_once_the_budget_is_raised() -> None:
    with container(memory_bytes=1) as made, pytest.raises(CapacityError) as caught:
        step(made)
    (name,) = re.findall(r"StepContainer\((\w+)=…\)", str(caught.value))
    with container(**{name: 1 << 30}) as made:
        step(made)


def test_ids_of_another_dtype_are_accepted_as_the_message_converts_them() -> None:
    with container() as made:
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
    with container("adagrad") as made:
        step(made, method="adagrad")
        with pytest.raises(InvalidArgumentError) as caught:
            choose(made, "adam")
        ((method, table),) = re.findall(r"call StepContainer\.(\w+)\('(\w+)'\)", str(caught.value))
        getattr(made, method)(table)
        choose(made, "adam")
        step(made, method="adam")
        assert made.num_rows("item") == 20


def test_a_delta_is_saved_after_the_save_that_the_message_requires(tmp_path: Path) -> None:
    full, delta = str(tmp_path / "full"), str(tmp_path / "delta")
    with container() as made:
        step(made)
        with pytest.raises(InvalidArgumentError) as caught:
            made.save(delta, base=full)
        (advice,) = re.findall(r"options=(\w+\(\w+=\w+\))", str(caught.value))
        made.save(full, options=eval(advice, {"SaveOptions": SaveOptions}))
        step(made)
        assert made.save(delta, base=full).base == full


def test_an_older_snapshot_is_loaded_after_a_damaged_one(tmp_path: Path) -> None:
    old, new = tmp_path / "step-1", tmp_path / "step-2"
    with container() as made:
        for url in old, new:
            step(made)
            made.save(str(url))
        for file in new.glob("rows*"):
            file.write_bytes(file.read_bytes()[:-1] + b"?")
        with pytest.raises(SnapshotDamagedError, match="load an older snapshot"):
            made.load(str(new))
        with pytest.raises(InterruptedLoadError, match=r"Load a snapshot again .*container\.load"):
            step(made)
        made.load(str(old))
        step(made)
        assert made.counters.steps == 2


@pytest.mark.parametrize("name", ["step-9", ""])
def test_a_missing_snapshot_is_found_by_the_command_that_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with container() as made:
        step(made)
        made.save(str(tmp_path / "runs" / "step-1"))
        with pytest.raises(SnapshotError) as caught:
            made.load(str(tmp_path / "runs" / name))
    (arguments,) = re.findall(r"`sparring (\w+ [^`]*)`", str(caught.value))
    assert main(arguments.split()) == 0
    assert "step-1" in capsys.readouterr().out


def test_tables_of_a_snapshot_are_listed_as_the_message_advises(tmp_path: Path) -> None:
    url = str(tmp_path / "both")
    with container() as made:
        step(made)
        made.declare(TableConfig("other", 2), StorageChoice("memory"))
        made.storage("other").upsert(KEYS, ROWS)
        made.save(url)
    with container() as made:
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
