"""`StepContainer.assign` sends rows to their owners, with the state of new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.contracts.checkpoint import SaveOptions
from sparring.contracts.ranks.collective import Collective
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables import assign as assigning
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import CapacityError, InvalidArgumentError
from sparring.snapshot.chain import scan_rows
from sparring.snapshot.reader import open_snapshot
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous


def rows_of(keys: Any, offset: float = 0.0) -> Any:
    return np.asarray(keys, np.float32)[:, None] + np.array([offset, offset + 0.5], np.float32)


def stored(container: StepContainer) -> dict[int, list[float]]:
    return {
        int(key): row.tolist()
        for chunk in container.storage("item").scan()
        for key, row in zip(chunk.keys, chunk.rows, strict=True)
    }


@pytest.mark.parametrize("is_before", [False, True])
def test_rows_get_the_state_of_new_rows(is_before: bool) -> None:
    with StepContainer() as container:
        container.declare(TableConfig("item", 2), StorageChoice("memory"))
        if is_before:
            container.assign("item", [7, -1], rows_of([7, -1]))
            container.set_state("item", np.array([0.1], np.float32), "adagrad")
        else:
            container.set_state("item", np.array([0.1], np.float32), "adagrad")
            container.storage("item").upsert([7], np.ones((1, 3), np.float32))
            container.assign("item", [7, -1], rows_of([7, -1]))
        state = pytest.approx(0.1)
        assert stored(container) == {7: [7, 7.5, state], -1: [-1, -0.5, state]}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int8"])
def test_embeddings_are_converted_to_the_dtype_of_the_table(dtype: str) -> None:
    with StepContainer() as container:
        container.declare(TableConfig("item", 2, dtype), StorageChoice("memory"))
        container.assign("item", np.array([3], np.uint8), [[1, 2]])
        found = container.lookup("item", np.array([3]), is_registered=False)
        expected = [[1, 2]] if dtype != "int8" else [[51 * 0.01953125, 102 * 0.01953125]]
        assert found.rows.tolist() == expected


@pytest.mark.parametrize("placement", ["sharded", "replicated"])
def test_rows_are_sent_to_their_owners(
    placement: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assigning, "_CHUNK_ROWS", 16)

    def body(collective: Collective) -> dict[int, list[float]]:
        rank, rendezvous = collective.rank, ThreadRendezvous(3)
        with StepContainer(collective=collective, rendezvous=rendezvous) as container:
            table = TableConfig("item", 2, placement=placement)
            container.declare(table, StorageChoice("memory"))
            keys = np.arange(*[(0, 0), (40, 90), (80, 120)][rank])
            container.assign("item", keys, rows_of(keys))
            container.save(str(tmp_path / "saved"))
            return stored(container)

    held = run_ranks(3, body)
    expected = {int(key): [key, key + 0.5] for key in range(40, 120)}
    if placement == "replicated":
        assert held == [expected] * 3
    else:
        assert sum(map(len, held)) == 80
        assert {**held[0], **held[1], **held[2]} == expected
        assert min(map(len, held)) > 10
    saved = scan_rows(open_snapshot(str(tmp_path / "saved")), "item")
    assert sum(len(chunk) for chunk in saved) == 80


def test_a_delta_contains_assigned_rows(tmp_path: Path) -> None:
    with StepContainer() as container:
        container.declare(TableConfig("item", 2), StorageChoice("memory"))
        container.assign("item", [1, 2], rows_of([1, 2]))
        base = container.save(str(tmp_path / "base"), options=SaveOptions(is_base=True))
        container.assign("item", [2], rows_of([2], 5.0))
        delta = container.save(str(tmp_path / "delta"), base=base.url)
        assert delta.rows == {"item": 1}


def test_a_running_save_is_not_the_newest_after_an_assignment(tmp_path: Path) -> None:
    with StepContainer() as container:
        container.declare(TableConfig("item", 2), StorageChoice("memory"))
        container.assign("item", [1], rows_of([1]))
        task = container.save(str(tmp_path / "s"), blocking=False)
        container.assign("item", [2], rows_of([2]))
        assert task.result().rows == {"item": 1}
        assert container.saves.newest is None


@pytest.mark.parametrize(
    ("keys", "embeddings", "message"),
    [
        ([1, 2, 1], np.zeros((3, 2)), "key 1 occurs 2 times"),
        ([1.5], np.zeros((1, 2)), "one-dimensional array of integers"),
        ([[1]], np.zeros((1, 2)), "one-dimensional array of integers"),
        ([1], np.zeros((1, 3)), r"of shape \(1, 2\)"),
        ([2**63], np.zeros((1, 2)), "must fit into int64, found 9223372036854775808"),
    ],
)
def test_values_that_fit_no_table_are_rejected(keys: Any, embeddings: Any, message: str) -> None:
    with StepContainer() as container:
        container.declare(TableConfig("item", 2), StorageChoice("memory"))
        with pytest.raises(InvalidArgumentError, match=message):
            container.assign("item", keys, embeddings)
        assert container.num_rows("item") == 0


def test_a_rejection_on_one_rank_is_raised_on_all() -> None:
    def body(collective: Collective) -> list[str]:
        with StepContainer(collective=collective, rendezvous=ThreadRendezvous(2)) as container:
            container.declare(TableConfig("item", 2), StorageChoice("memory", {"capacity": 30}))
            said = []
            for keys in ([1, 1][: 1 + collective.rank], range(collective.rank * 90)):
                with pytest.raises((InvalidArgumentError, CapacityError)) as caught:
                    container.assign("item", np.array(keys), rows_of(keys))
                said.append(str(caught.value))
            container.assign("item", [5], rows_of([5]))
            return said

    one, other = run_ranks(2, body)
    assert "rank 1 failed: embeddings for table 'item': key 1 occurs 2 times" in one[0]
    assert "key 1 occurs 2 times" in other[0]
    assert "capacity" in one[1]
    assert "capacity" in other[1]
