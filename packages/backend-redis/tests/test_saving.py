"""A server that dies while a save reads from it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from sparring import StepContainer, StorageChoice, count_rows, list_snapshots, open_snapshot
from sparring.contracts import TableConfig
from sparring.errors import DeadlineError, StorageIOError
from sparring.runtime.events import BackgroundError
from sparring_redis.testing.server import RedisServer

TABLE = TableConfig("film", 4)
KEYS = np.arange(20_000)
DEADLINE_SECONDS = 2.0


def test_a_save_that_loses_its_server_fails_within_the_deadline(
    own_redis_server: RedisServer, tmp_path: Path
) -> None:
    redis = {"url": own_redis_server.url, "deadline_seconds": DEADLINE_SECONDS}
    first = {"backend": "memory", "options": {"capacity": 1000, "policy": "lru"}}
    tiers = [first, {"backend": "redis", "options": redis}]
    container = StepContainer()
    container.declare(TABLE, StorageChoice("tiered", {"tiers": tiers}))
    storage = container.storage("film")
    storage.upsert(KEYS, np.ones((len(KEYS), 4), np.float32))
    container.save(str(tmp_path / "one"))
    storage.flush()
    task = container.save(str(tmp_path / "two"), blocking=False)
    own_redis_server.kill()
    begin = time.monotonic()
    container.saves.join()
    assert time.monotonic() - begin < DEADLINE_SECONDS + 10
    with pytest.raises((StorageIOError, DeadlineError), match=r"127\.0\.0\.1"):
        task.result(0)
    with pytest.raises(BackgroundError, match=r"save of .*two"):
        container.events.check()
    container.close()  # all rows were flushed
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    assert list_snapshots(str(tmp_path)) == [str(tmp_path / "one")]
    assert count_rows(open_snapshot(tmp_path / "one"), "film") == len(KEYS)
