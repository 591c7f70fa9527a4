"""The storage ``packed`` supports find and scan like any other, and rejects writes."""

from __future__ import annotations

from typing import Any

import fsspec
import numpy as np
import pytest

from sparring import (
    Columns,
    StepContainer,
    StorageChoice,
    TableConfig,
    make_plugin_manager,
    open_storage,
)
from sparring.adapter import found_table
from sparring.errors import (
    ClosedError,
    InvalidArgumentError,
    SnapshotIOError,
    UnknownTableError,
    UnsupportedError,
)
from sparring_packed import plugin


@pytest.fixture
def manager() -> Any:
    """Plugins, including ours if the package is not installed."""
    made = make_plugin_manager()
    if not any(each.descriptor.name == "packed" for each in made.descriptors()):
        made.register(plugin)
    return made


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_find_and_scan_return_rows_of_the_tables_dtype(
    new_training: Any, manager: Any, dtype: str
) -> None:
    training = new_training(TableConfig("item", dim=6, dtype=dtype))
    keys = np.array([5, -1, 2**63 - 1])
    training.save(training.draw(keys, 0))
    training.publish()
    with open_storage(
        "packed", training.config, plugin_manager=manager, path=training.served
    ) as storage:
        found = storage.find([2**63 - 1, 9, 5])
        assert found.rows.dtype == training.config.numpy_dtype
        assert found.found.tolist() == [True, False, True]
        assert (found.rows[0] == training.rows[2**63 - 1]).all()
        assert not found.rows[1].any()
        part = storage.find([5], Columns(2, 4))
        assert (part.rows[0] == training.rows[5][2:4]).all()
        assert storage.size == 3
        assert storage.memory_bytes > 0
        (chunk,) = storage.scan()
        assert sorted(chunk.keys.tolist()) == sorted(keys.tolist())
        for key, row in zip(chunk.keys.tolist(), chunk.rows, strict=True):
            assert (row == training.rows[key]).all()


def test_writes_are_rejected_with_the_fix(trained: Any, manager: Any) -> None:
    storage = open_storage("packed", trained.config, plugin_manager=manager, path=trained.served)
    row = np.zeros((1, 24), np.float32)
    for write in (lambda: storage.upsert([1], row), lambda: storage.erase([1]), storage.clear):
        with pytest.raises(UnsupportedError, match="save, and publish a newer one"):
            write()
    for absent in (lambda: storage.touch([1]), lambda: storage.evict(1)):
        with pytest.raises(UnsupportedError, match="does not support"):
            absent()
    storage.flush()
    storage.close()
    with pytest.raises(ClosedError):
        storage.find([1])


def test_a_url_is_read_through_copies(trained: Any, manager: Any, tmp_path: Any) -> None:
    remote = f"memory://{tmp_path.name}/served"
    fsspec.filesystem("memory").put(str(trained.served), remote, recursive=True)
    options = {"path": remote, "cache": tmp_path / "copies"}
    with open_storage("packed", trained.config, plugin_manager=manager, **options) as storage:
        assert storage.size == len(trained.rows)
    found = found_table("packed", trained.config, manager, options)
    assert found == trained.config
    with pytest.raises(InvalidArgumentError, match="a folder for copies: cache"):
        open_storage("packed", trained.config, plugin_manager=manager, path=remote)


def set_state(container: StepContainer) -> None:
    container.set_state("item", np.zeros(24, np.float32), "adagrad")
    container.storage("item")


@pytest.mark.parametrize("is_looked_up_before", [False, True])
def test_an_optimizer_is_rejected(trained: Any, manager: Any, is_looked_up_before: bool) -> None:
    with StepContainer(plugin_manager=manager) as container:
        container.declare(trained.config, StorageChoice("packed", {"path": trained.served}))
        if is_looked_up_before:
            container.lookup("item", np.array([5]), is_registered=False)
        with pytest.raises(
            InvalidArgumentError, match="pass only the other modules to the optimizer"
        ):
            set_state(container)


def test_an_optimizer_without_state_is_rejected_before_its_first_step(
    trained: Any, manager: Any
) -> None:
    with StepContainer(plugin_manager=manager) as container:
        container.declare(trained.config, StorageChoice("packed", {"path": trained.served}))
        container.set_state("item", np.zeros(0, np.float32), "sgd")
        with pytest.raises(InvalidArgumentError, match=r"\+ 0 sgd.* Freeze its module"):
            container.storage("item")


def test_refresh_loads_a_newer_version(trained: Any, manager: Any) -> None:
    storage = open_storage("packed", trained.config, plugin_manager=manager, path=trained.served)
    base, size = trained.served_url(), storage.size
    trained.save(trained.draw([123, 124], 9), [-1])
    trained.publish(base=base)
    assert storage.size == size
    assert storage.refresh()  # type: ignore[attr-defined]
    assert storage.size == size + 1
    assert storage.find([-1, 123]).found.tolist() == [False, True]


def test_another_table_is_rejected(trained: Any, manager: Any) -> None:
    def opened(table: TableConfig, **options: Any) -> object:
        given = {"path": trained.served} | options
        return open_storage("packed", table, plugin_manager=manager, **given)

    with pytest.raises(InvalidArgumentError, match=r"declared as float32 x 8, .* float32 x 24"):
        opened(TableConfig("item", dim=8))
    with pytest.raises(InvalidArgumentError, match="is read-only"):
        opened(TableConfig("item", dim=24).with_state(1, "adagrad"))
    with pytest.raises(UnknownTableError, match="has no table 'film'"):
        opened(TableConfig("film", dim=24))
    with pytest.raises(SnapshotIOError, match="there is no serving snapshot"):
        opened(TableConfig("item", dim=24), path=trained.folder / "nowhere")


def test_existing_tables_are_found_without_an_optimizer(trained: Any, manager: Any) -> None:
    table = TableConfig("item", dim=24).with_state(1, "adagrad")
    assert found_table("packed", table, manager, {"path": trained.served}) == table.with_state(0)
    nowhere = trained.folder / "nowhere"
    assert found_table("packed", table, manager, {"path": nowhere}) is None
