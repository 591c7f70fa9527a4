"""Caches in front of a Redis that a trainer writes to: notes are stored with the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparring import StepContainer, StorageChoice, open_storage
from sparring.contracts import TableConfig
from sparring.errors import DeadlineError, InvalidArgumentError, StorageIOError
from sparring_redis.testing.cluster import RedisCluster
from sparring_redis.testing.server import RedisServer
from sparring_testing.processes.waiting import wait_until
from sparring_tiered import CachedStorage, ChangePublisher

TABLE = TableConfig("item", 4, state_width=4, state_method="adagrad")
KEYS = np.arange(2_000)


def rows(version: float, count: int = len(KEYS)) -> Any:
    return np.full((count, TABLE.width), version, np.float32)


class Trainer:
    """Writes whole rows, with an optimizer's state, and publishes notes of them."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.container = StepContainer()
        tiers = [{"backend": "memory"}, {"backend": "redis", "options": options}]
        self.container.declare(TABLE, StorageChoice("tiered", {"tiers": tiers}))
        self.container.entry("item")
        self.publisher = ChangePublisher(self.container, run="run-1", keep=4)
        self.step = 0

    def write(self, keys: Any, version: float) -> None:
        self.container.storage("item").upsert(keys, rows(version, len(keys)))

    def publish(self) -> None:
        self.step += 1
        self.publisher.publish(self.step)

    def close(self) -> None:
        self.publisher.close()
        self.container.close()


def open_reader(options: dict[str, Any], **refresh: Any) -> CachedStorage:
    sizes = ("64 KiB", "1 MiB")
    tiers = [{"backend": "memory", "budget_bytes": size} for size in sizes]
    tiers.append({"backend": "redis", "options": options})
    refresh = {"poll_seconds": 0.05, "drop_seconds": 0.2, **refresh}
    opened = open_storage("tiered", TableConfig("item", 4), tiers=tiers, refresh=refresh)
    assert isinstance(opened, CachedStorage)
    return opened


@pytest.mark.parametrize("kind", ["redis_server", "redis_cluster"])
def test_served_rows_follow_training(
    kind: str, request: pytest.FixtureRequest, new_prefix: Callable[[], str]
) -> None:
    place: RedisServer | RedisCluster = request.getfixturevalue(kind)
    options = {"url": place.url, "prefix": new_prefix()}
    trainer = Trainer(options)
    trainer.write(KEYS, 1)
    trainer.publish()
    with open_reader(options) as reader:
        assert (reader.find(KEYS).rows == 1).all()
        for version in range(2, 12):
            trainer.write(KEYS[::10], version)
            trainer.publish()
            wait_until(lambda: reader.counters().step == trainer.step)
            found = reader.find(KEYS).rows
            assert (found[::10] == version).all()
            assert (found[1::10] == 1).all()
        counters = reader.counters()
        assert counters.missed_notes == 0
        assert reader.progress().run == "run-1"
    trainer.close()


def test_a_redis_that_lost_its_memory_returns(
    own_redis_server: RedisServer,
) -> None:
    options = {"url": own_redis_server.url, "deadline_seconds": 0.5}
    trainer = Trainer(options)
    trainer.write(KEYS, 1)
    trainer.publish()
    with open_reader(options) as reader:
        cached = KEYS[:1_500]
        reader.find(cached)
        own_redis_server.kill()
        assert (reader.find(cached).rows == 1).all()
        with pytest.raises((DeadlineError, StorageIOError)):
            reader.find(KEYS)
        wait_until(lambda: reader.counters().failed_polls > 0)
        trainer.close()
        own_redis_server.start()
        again = Trainer(options)
        again.write(KEYS, 2)
        again.publish()
        wait_until(lambda: bool((reader.find(cached).rows == 2).all()))
        assert reader.counters().missed_notes >= 1
        again.close()


def test_a_missing_table_is_rejected(
    redis_server: RedisServer, new_prefix: Callable[[], str]
) -> None:
    options = {"url": redis_server.url, "prefix": new_prefix()}
    with pytest.raises(InvalidArgumentError, match="'redis' has no rows of it"):
        open_reader(options)
    assert redis_server.ask("KEYS", f"{options['prefix']}*") == []  # nothing was created


def test_rows_without_notes_are_rejected(
    redis_server: RedisServer, new_prefix: Callable[[], str]
) -> None:
    options = {"url": redis_server.url, "prefix": new_prefix()}
    with open_storage("redis", TABLE, **options) as storage:
        storage.upsert(KEYS, rows(1))
    with pytest.raises(InvalidArgumentError, match="a section change_notes"):
        open_reader(options)


@pytest.mark.parametrize("name", ["write", "promote", "write_back"])
def test_options_of_writers_are_rejected(name: str) -> None:
    value = {"write": "back", "promote": "never", "write_back": "inline"}[name]
    with pytest.raises(InvalidArgumentError, match=f"{name} is an option for stacks"):
        open_storage("tiered", TABLE, tiers=["memory", "memory"], refresh={}, **{name: value})


def test_a_table_on_a_device_and_one_in_memory_before_redis(
    table_device: str, redis_server: RedisServer, new_prefix: Callable[[], str]
) -> None:
    pytest.importorskip("sparring_hkv", reason="needs sparring-hkv")
    options = {"url": redis_server.url, "prefix": new_prefix()}
    trainer = Trainer(options)
    trainer.write(KEYS, 1)
    trainer.publish()
    first = {"backend": "hkv", "options": {"device": table_device, "capacity": 512}}
    second = {"backend": "hkv", "options": {"capacity": 4_096}}
    with open_storage(
        "tiered",
        TableConfig("item", 4),
        tiers=[first, second, {"backend": "redis", "options": options}],
        refresh={"poll_seconds": 3600},
    ) as reader:
        assert isinstance(reader, CachedStorage)
        for version in range(2, 6):
            for begin in range(0, len(KEYS), 250):
                assert (reader.find(KEYS[begin : begin + 250]).rows[:, 0] < version).all()
            trainer.write(KEYS[::20], version)
            trainer.publish()
            reader.refresh()
            found = reader.find(KEYS).rows
            assert (found[::20] == version).all()
            assert (found[1::20] == 1).all()
        assert reader.counters().hits > 3 * len(KEYS)
    trainer.close()
