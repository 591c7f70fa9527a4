"""A rank neither accepts nor saves rows of keys that another rank owns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.contracts.checkpoint import SaveOptions
from sparring.contracts.ranks.shard_map import ShardMap
from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.errors import InvalidArgumentError, SnapshotError
from sparring.kernels.functions import partition
from sparring.snapshot.chain import scan_rows
from sparring.snapshot.reader import open_snapshot
from sparring.snapshot.retention import list_snapshots
from sparring.storage.load import restore
from sparring.storage.update import update_rows
from sparring.updates.resolve import parse_hyper, resolve_method
from sparring_testing.processes.rank_threads import run_containers
from sparring_testing.processes.table_steps import declare_tables

from .test_save_on_ranks import Job

OWNERS = ShardMap.balanced(2)
KEYS = np.arange(100)
OF_RANK = [KEYS[OWNERS.owners[partition(KEYS)] == rank] for rank in range(2)]
SGD = resolve_method("sgd")


def rows_of(keys: Any, value: float = 1.0) -> Any:
    return np.full((len(keys), 2), value, np.float32)


def with_table(
    body: Callable[[StepContainer, int], Any], placement: Any, container: StepContainer
) -> Any:
    declare_tables(container, [TableConfig("item", 2, placement=placement)])
    return body(container, container.collective.rank)


def save(container: StepContainer, url: str, is_beside: bool) -> None:
    if is_beside:
        container.save(url, blocking=False, options=SaveOptions(report_failure=False)).result(10)
    else:
        container.save(url)


def rows_in(url: str) -> dict[int, float]:
    chunks = scan_rows(open_snapshot(url), "item")
    return {
        int(key): float(row[0])
        for chunk in chunks
        for key, row in zip(chunk.keys, chunk.rows, strict=True)
    }


@pytest.mark.parametrize("call", ["upsert", "update"])
def test_a_write_of_a_foreign_key_names_its_owner_and_changes_no_row(call: str) -> None:
    def body(container: StepContainer, rank: int) -> None:
        storage = container.storage("item")
        other = 1 - rank
        foreign = int(OF_RANK[other][0])
        choice = MethodChoice(SGD, parse_hyper(SGD, {"lr": 0.1}), 1)
        write = partial(update_rows, storage) if call == "update" else storage.upsert
        arguments = [KEYS, rows_of(KEYS)] + ([choice] if call == "update" else [])
        with pytest.raises(InvalidArgumentError, match=f"key {foreign} to rank {other}") as e:
            write(*arguments)
        assert (e.value.key, e.value.owner, e.value.rank) == (foreign, other, rank)
        assert f"{len(KEYS)} rows, because {len(OF_RANK[other])}" in str(e.value)
        assert storage.size == 0

    run_containers(2, partial(with_table, body, "sharded"), rendezvous=Job(OWNERS))


def test_the_query_in_the_message_finds_the_keys() -> None:
    def body(container: StepContainer, rank: int) -> int:
        mine = KEYS[container.rendezvous.shard_map().owners[partition(KEYS)] == rank]
        container.storage("item").upsert(mine, rows_of(mine))
        return container.num_rows("item")

    assert run_containers(2, partial(with_table, body, "sharded"), rendezvous=Job(OWNERS)) == [
        len(each) for each in OF_RANK
    ]


def test_each_rank_writes_any_key_of_a_replicated_table(tmp_path: Path) -> None:
    url = str(tmp_path / "all")

    def body(container: StepContainer, rank: int) -> int:
        container.storage("item").upsert(KEYS, rows_of(KEYS))
        container.save(url)
        return container.num_rows("item")

    assert (
        run_containers(2, partial(with_table, body, "replicated"), rendezvous=Job(OWNERS))
        == [len(KEYS)] * 2
    )
    assert len(rows_in(url)) == len(KEYS)


@pytest.mark.parametrize("is_beside", [False, True])
def test_foreign_rows_are_not_saved_until_they_are_erased(is_beside: bool, tmp_path: Path) -> None:
    url = str(tmp_path / "step-1")
    foreign = OF_RANK[0][:3]

    def body(container: StepContainer, rank: int) -> tuple[type, str]:
        storage = container.storage("item")
        storage.upsert(OF_RANK[rank], rows_of(OF_RANK[rank], 5.0))
        if rank == 1:
            # As in a storage that was opened with existing rows.
            restore(storage, foreign, rows_of(foreign), np.zeros(len(foreign), np.uint64))
        with pytest.raises((InvalidArgumentError, SnapshotError)) as caught:
            save(container, url, is_beside)
        assert list_snapshots(str(tmp_path)) == []
        if rank == 1:
            assert caught.value.owner == 0
            assert caught.value.key in foreign
            storage.erase(foreign)
        container.save(url)
        return type(caught.value), str(caught.value)

    (_, told), (own_type, own) = run_containers(
        2, partial(with_table, body, "sharded"), rendezvous=Job(OWNERS)
    )
    assert own_type is InvalidArgumentError
    assert "3 belong to other ranks" in own
    assert "belong to other ranks" in told
    assert rows_in(url) == dict.fromkeys(KEYS.tolist(), 5.0)


def test_a_rank_that_erases_foreign_keys_takes_none_from_their_owner(tmp_path: Path) -> None:
    full, delta = str(tmp_path / "full"), str(tmp_path / "delta")

    def body(container: StepContainer, rank: int) -> None:
        storage = container.storage("item")
        storage.upsert(OF_RANK[rank], rows_of(OF_RANK[rank]))
        container.save(full, options=SaveOptions(is_base=True))
        if rank == 1:
            storage.erase(KEYS)
        container.save(delta, base=full)

    run_containers(2, partial(with_table, body, "sharded"), rendezvous=Job(OWNERS))
    assert open_snapshot(delta).base is not None
    assert sorted(rows_in(delta)) == OF_RANK[0].tolist()
