"""A stack whose last tier evicts keeps its rows in a flush; a load reports the rows that it evicts."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from sparring import StepContainer
from sparring.contracts import Storage, TableConfig
from sparring.storage.memory import MemoryOptions, MemoryStorage
from sparring_tiered import TieredOptions, TieredStorage

TABLE = TableConfig("film", 2)


def make_storage(*capacities: int) -> Storage:
    tiers = [
        MemoryStorage(TABLE, MemoryOptions(capacity=each, policy="lru")) for each in capacities
    ]
    if len(tiers) == 1:
        return tiers[0]
    options = TieredOptions(tiers=("memory",) * len(tiers))
    return TieredStorage(TABLE, options, [("memory", each) for each in tiers])


def write(storage: Storage, count: int) -> None:
    for begin in range(0, count, 50):
        keys = np.arange(begin, min(begin + 50, count))
        storage.upsert(keys, np.repeat(keys[:, None], 2, axis=1).astype(np.float32))


@pytest.mark.parametrize("capacities", [(100, 150), (50, 100, 100)])
def test_a_flush_keeps_the_rows_of_all_tiers(capacities: tuple[int, ...]) -> None:
    with make_storage(*capacities) as stack:
        write(stack, 400)
        assert stack.size == 250
        stack.flush()
        stack.flush()
        assert stack.size == 250
        write(stack, 400)
        assert stack.size == 250


def test_rows_that_the_last_tier_evicts_at_once_are_counted_and_returned() -> None:
    with make_storage(100, 100) as stack:
        keys = np.arange(250)
        gone = stack.upsert(keys, np.zeros((250, 2), np.float32))
        assert (stack.size, len(gone)) == (200, 50)
        assert not stack.find(gone.keys).found.any()


@pytest.mark.parametrize(
    ("capacities", "num_present"),
    [((100, 150), 250), ((80, 70, 100), 250), ((100, 100), 200), ((240,), 240)],
)
def test_a_load_fills_all_tiers_or_reports_the_rows_that_do_not_fit(
    capacities: tuple[int, ...],
    num_present: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = str(tmp_path / "saved")
    with StepContainer() as container:
        container.declare(TABLE, make_storage(100, 150))
        write(container.storage("film"), 300)
        container.save(url)
    with StepContainer() as container, caplog.at_level(logging.WARNING):
        container.declare(TABLE, make_storage(*capacities))
        loaded = container.load(url)
        storage = container.storage("film")
        assert loaded.rows["film"] == storage.size == num_present
        chunks = list(storage.scan())
    keys = np.concatenate([each.keys for each in chunks])
    rows = np.concatenate([each.rows for each in chunks])
    assert len(np.unique(keys)) == num_present
    assert (rows == keys[:, None]).all()
    assert (f"{250 - num_present} of 250 rows" in caplog.text) == (num_present < 250)
