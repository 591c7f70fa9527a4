"""Saves of snapshots from stacks whose lower tier fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparring import StepContainer, Uniform, open_snapshot, scan_rows
from sparring.contracts import TableConfig
from sparring.errors import DeadlineError, StorageIOError
from sparring.runtime.events import BackgroundError
from sparring.storage.memory import MemoryOptions, MemoryStorage
from sparring_tiered import TieredOptions, TieredStorage

from ..faulty_storage import FaultyStorage


@pytest.mark.parametrize("breakage", ["lost", "slow"])
def test_a_lower_tier_that_dies_during_a_save_fails_the_save_and_no_row_is_lost(
    breakage: str, tmp_path: Path
) -> None:
    table = TableConfig("film", 2, "float32", Uniform(-1, 1))
    last = FaultyStorage(MemoryStorage(table, MemoryOptions()))
    first = MemoryStorage(table, MemoryOptions(capacity=100, policy="lru"))
    options = TieredOptions(tiers=("memory", "memory"))
    tiers = TieredStorage(table, options, [("memory", first), ("memory", last)])
    keys = np.arange(1000)

    def write(number: int) -> None:
        tiers.upsert(keys, np.full((len(keys), 2), number, np.float32))

    def numbers(url: Path) -> set[float]:
        chunks = list(scan_rows(open_snapshot(url), "film"))
        assert sum(map(len, chunks)) == len(keys)
        return {float(number) for chunk in chunks for number in np.unique(chunk.rows)}

    with StepContainer() as container:
        container.declare(table, tiers)
        write(1)
        container.save(str(tmp_path / "one"))
        write(2)
        container.events.drain()
        last.breakage = breakage
        task = container.save(str(tmp_path / "two"), blocking=False)
        container.saves.join()
        with pytest.raises((StorageIOError, DeadlineError), match="the lower tier"):
            task.result(0)
        with pytest.raises(BackgroundError, match=r"save of .*two.*the lower tier"):
            container.events.check()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["one"]
        last.breakage = None
        write(3)
        container.save(str(tmp_path / "three"))
    assert (numbers(tmp_path / "one"), numbers(tmp_path / "three")) == ({1.0}, {3.0})
