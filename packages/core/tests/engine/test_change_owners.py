"""A rank without a collective takes over partitions of other ranks, and gives its own up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparring import SaveOptions, StepContainer, open_snapshot, scan_rows
from sparring.contracts import Collective, ShardMap, TableConfig, partition
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring.rendezvous.environment import IndependentRendezvous
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.table_steps import open_tables
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

TABLE = TableConfig("item", 2)
KEYS = np.arange(200)


def test_writes_saves_and_loads_follow_the_new_owners(tmp_path: Path) -> None:
    before, after = ShardMap.balanced(3).owners, ShardMap.balanced(2).owners
    old, new = (KEYS[each[partition(KEYS)] == 0] for each in (before, after))
    gained = np.setdiff1d(new, old)
    rows = np.repeat(gained[:, None], 2, axis=1).astype(np.float32)
    with open_tables(TABLE, rendezvous=IndependentRendezvous(0, 3)) as made:
        with pytest.raises(InvalidArgumentError, match="no row was changed"):
            made.storage("item").upsert(gained, rows)
        made.change_owners(ShardMap(after, 2))
        made.storage("item").upsert(gained, rows)
        url = str(tmp_path / "saved")
        options = SaveOptions(token="one-save", step=1)
        saves = [made.save(url, blocking=False, options=options)]
        with open_tables(TABLE, rendezvous=IndependentRendezvous(1, 2)) as other:
            saves.append(other.save(url, blocking=False, options=options))
            for each in saves:
                each.result(60)
        snapshot = open_snapshot(url)
        found = np.concatenate([each.keys for each in scan_rows(snapshot, "item")])
        np.testing.assert_array_equal(np.sort(found), gained)
        assert snapshot.world_size == 2

        made.change_owners(ShardMap(before, 3))
        made.load(url)
        assert made.num_rows("item") == 0
        with pytest.raises(InvalidArgumentError, match="no row was changed"):
            made.storage("item").upsert(gained, rows)


def test_each_rank_still_stores_all_rows_of_a_replicated_table() -> None:
    with StepContainer(rendezvous=IndependentRendezvous(0, 3)) as made:
        made.declare(TableConfig("item", 2, placement="replicated"), StorageChoice("memory"))
        made.change_owners(ShardMap.balanced(2))
        made.storage("item").upsert(KEYS, np.ones((len(KEYS), 2), np.float32))
        assert made.num_rows("item") == len(KEYS)


def test_ranks_that_take_steps_together_keep_their_partitions() -> None:
    def change(collective: Collective) -> None:
        with (
            open_tables(TABLE, collective=collective, rendezvous=ThreadRendezvous(2)) as made,
            pytest.raises(UnsupportedError, match="load the snapshot with other ranks"),
        ):
            made.change_owners(ShardMap.balanced(1))

    run_ranks(2, change)
