"""A process finds whole rows of an earlier one, or the information that a load is incomplete."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sparring import StepContainer, StorageChoice, open_storage
from sparring.contracts import TableConfig
from sparring_redis.testing.server import RedisServer
from sparring_testing.faults.interrupted_load import check_interrupted_load


def test_a_killed_load_is_reported(redis_server: RedisServer, tmp_path: Path) -> None:
    options = {"url": redis_server.url, "prefix": "interrupted"}
    check_interrupted_load("redis", options, str(tmp_path / "snapshot"))


def test_existing_rows_are_read_before_an_optimizer_is_known(redis_server: RedisServer) -> None:
    table = TableConfig("item", 4)
    options = {"url": redis_server.url, "prefix": "found"}
    keys = np.arange(100)
    with StepContainer() as container:
        container.declare(table, StorageChoice("redis", options))
        initial = container.lookup(table.name, keys, is_registered=False).rows.copy()
    rows = np.arange(600, dtype=np.float32).reshape(100, 6)
    # The search created nothing: rows of any width may still be stored.
    with open_storage("redis", table.with_state(2, "somebody"), **options) as storage:
        storage.upsert(keys, rows)
    with StepContainer() as container:
        container.declare(table, StorageChoice("redis", options))
        found = container.lookup(table.name, keys, is_registered=False).rows
        assert found.tobytes() == np.ascontiguousarray(rows[:, :4]).tobytes()
        assert not np.array_equal(found, initial)
