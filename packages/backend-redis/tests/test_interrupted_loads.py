"""A process that is killed while it loads a snapshot leaves a table that nobody trains on by chance."""

from __future__ import annotations

from pathlib import Path

from sparring.testing.interrupted_load import check_that_an_interrupted_load_is_noticed
from sparring_redis.testing import RedisServer


def test_a_load_that_was_killed_is_told_of(server: RedisServer, tmp_path: Path) -> None:
    options = {"url": server.url, "prefix": "interrupted"}
    check_that_an_interrupted_load_is_noticed("redis", options, str(tmp_path / "snapshot"))
