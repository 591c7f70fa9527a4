"""A folder stores which part of a table it contains: another part is rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import (
    StepContainer,
    StorageChoice,
    count_rows,
    open_snapshot,
    open_storage,
)
from sparring.adapter import begin_load, parse_hyper, resolve_method
from sparring.contracts import MethodChoice, TableConfig, TableSharding
from sparring.errors import InterruptedLoadError, InvalidArgumentError
from sparring_testing.processes.rank_threads import run_containers
from sparring_testing.processes.table_steps import declare_tables, train_ids

TABLE = TableConfig("item", 4)
KEYS = np.arange(1_000)
_METHOD = resolve_method("sgd")
_HYPER = parse_hyper(_METHOD, {"lr": 0.1})

ROCKSDB = {"backend": "rocksdb", "options": {"path": "PATH"}}
STACK = {
    "backend": "tiered",
    "options": {"tiers": [{"backend": "hkv"}, {"backend": "rocksdb", "options": {"path": "PATH"}}]},
}


def choice_of(storage: dict[str, Any], path: str) -> StorageChoice:
    return StorageChoice(**json.loads(json.dumps(storage).replace("PATH", path)))


def train(
    storage: dict[str, Any], path: str, world_size: int, load: str = "", plan: Any = "row_wise"
) -> list[int]:
    """Runs one step over all keys on each rank. Returns the number of rows of each rank."""

    def rank(container: StepContainer) -> int:
        declare_tables(container, [TABLE], choice_of(storage, path), "sgd", lr=0.1)
        if load:
            container.load(load)
        train_ids(container, {TABLE.name: KEYS}, lr=0.1)
        container.save(f"{Path(path).parent}/saved-by-{world_size}")
        return container.num_rows(TABLE.name)

    return run_containers(world_size, rank, plan={TABLE.name: plan})


@pytest.mark.parametrize("storage", [ROCKSDB, STACK], ids=["rocksdb", "stack"])
def test_another_number_of_ranks_is_rejected_until_it_loads(
    storage: dict[str, Any], tmp_path: Path
) -> None:
    path = f"{tmp_path}/rows-{{rank}}"
    parts = train(storage, path, 2)
    assert sum(parts) == len(KEYS)
    refusal = (
        r"'item': its storage contains \d+ rows of rank 0 of 2 .* this rank needs all partitions"
    )
    with pytest.raises(InvalidArgumentError, match=refusal):
        train(storage, path, 1)
    assert train(storage, path, 1, load=f"{tmp_path}/saved-by-2") == [len(KEYS)]
    assert train(storage, f"{tmp_path}/again/rows-{{rank}}", 1) == [len(KEYS)]


def test_rows_of_one_rank_are_not_a_replica(tmp_path: Path) -> None:
    path = f"{tmp_path}/rows-{{rank}}"
    assert train(ROCKSDB, path, 2, plan=TableSharding("table_wise", (0,))) == [len(KEYS), 0]
    refusal = "rows of rank 0 of 2 .* needs all partitions .*2 replicas"
    with pytest.raises(InvalidArgumentError, match=refusal):
        train(ROCKSDB, path, 2, plan="data_parallel")


def test_a_replica_works_with_its_number_of_ranks_or_with_one(tmp_path: Path) -> None:
    one, path = f"{tmp_path}/one/rows-{{rank}}", f"{tmp_path}/two/rows-{{rank}}"
    assert train(ROCKSDB, one, 1) == [len(KEYS)]
    with pytest.raises(InvalidArgumentError, match=r"of all partitions, but .* 2 replicas\)"):
        train(ROCKSDB, one, 2, plan="data_parallel")
    assert train(ROCKSDB, path, 2, plan="data_parallel") == [len(KEYS)] * 2
    with pytest.raises(InvalidArgumentError, match=r"one of 2 replicas\), but .* 3 replicas\)"):
        train(ROCKSDB, path, 3, plan="data_parallel")
    assert train(ROCKSDB, path, 1) == [len(KEYS)]


@pytest.mark.parametrize("storage", [ROCKSDB, STACK], ids=["rocksdb", "stack"])
def test_existing_rows_are_read_before_an_optimizer_is_known(
    storage: dict[str, Any], tmp_path: Path
) -> None:
    path = f"{tmp_path}/rows"
    choice = choice_of(storage, path)
    adagrad = resolve_method("rowwise_adagrad")
    hyper = parse_hyper(adagrad, {"lr": 0.1})
    with StepContainer() as container:
        container.declare(TABLE, choice)
        initial = container.lookup(TABLE.name, KEYS, is_registered=False).rows.copy()
        assert not Path(path).exists()
        state = adagrad.initial_state(TABLE.dim, hyper, np.dtype(np.float32))
        container.set_state(TABLE.name, state, adagrad.name)
        found = container.lookup(TABLE.name, KEYS)
        assert found.shadow_id is not None
        container.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
        container.apply_methods({TABLE.name: MethodChoice(adagrad, hyper, 1)})
        trained = container.lookup(TABLE.name, KEYS, is_registered=False).rows.copy()
    assert not (trained == initial).any()
    with StepContainer() as container:
        container.declare(TABLE, choice)
        found = container.lookup(TABLE.name, KEYS)
        assert found.rows.tobytes() == trained.tobytes()
        # The optimizer that created them can continue.
        container.set_state(TABLE.name, state, adagrad.name)
        assert found.shadow_id is not None
        container.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
        container.apply_methods({TABLE.name: MethodChoice(adagrad, hyper, 2)})
        assert not np.array_equal(container.lookup(TABLE.name, KEYS).rows, trained)
        container.discard()
        with pytest.raises(InvalidArgumentError, match="sparring convert"):
            container.check_state(TABLE.name, 2 * TABLE.dim, "adam")


def test_a_table_that_was_never_looked_up_is_saved_with_its_rows(tmp_path: Path) -> None:
    options = {"path": str(tmp_path / "rows")}
    with open_storage("rocksdb", TABLE, **options) as storage:
        storage.upsert(KEYS, np.ones((len(KEYS), TABLE.dim), np.float32))
    with StepContainer() as container:
        container.declare(TABLE, StorageChoice("rocksdb", options))
        container.save(str(tmp_path / "saved"))
    assert count_rows(open_snapshot(str(tmp_path / "saved")), TABLE.name) == len(KEYS)


def test_an_incomplete_load_is_not_saved(tmp_path: Path) -> None:
    options = {"path": str(tmp_path / "rows")}
    with open_storage("rocksdb", TABLE, **options) as storage:
        begin_load(storage, "elsewhere")
        storage.upsert(KEYS[:10], np.ones((10, TABLE.dim), np.float32))
    with StepContainer() as container:
        container.declare(TABLE, StorageChoice("rocksdb", options))
        with pytest.raises(InterruptedLoadError, match="a load of elsewhere was cut short"):
            container.save(str(tmp_path / "saved"))
    assert not (tmp_path / "saved").exists()


def test_a_failed_search_for_rows_is_repeated(tmp_path: Path) -> None:
    options = {"path": str(tmp_path / "rows")}
    with open_storage("rocksdb", TABLE, **options) as storage:
        storage.upsert(KEYS, np.ones((len(KEYS), TABLE.dim), np.float32))
    with StepContainer() as container:
        container.declare(TABLE, StorageChoice("rocksdb", {**options, "block_bytes": 8192}))
        # Another storage has the folder open, with other options.
        with open_storage("rocksdb", TABLE, **options):
            for _ in range(2):
                with pytest.raises(InvalidArgumentError):
                    container.lookup(TABLE.name, KEYS, is_registered=False)
        assert (container.lookup(TABLE.name, KEYS, is_registered=False).rows == 1).all()
