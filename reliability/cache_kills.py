"""Kills trainers while they publish changelog notes to a Redis: `python -m reliability cache_kills`.

A trainer is a process that continuously writes rows and publishes notes. Each trial kills it (SIGKILL) at
a random moment and starts the next one. Meanwhile a reader with a cache follows, and these promises are
checked:

whole      no row is torn
forward    no row is older than an earlier read of the same key
caught up  after a trainer's last note, the cache has the rows of Redis, including unpublished changes
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter

import numpy as np

from reliability.report import Report
from sparring import StepContainer, StorageChoice, open_storage
from sparring.contracts import TableConfig
from sparring_tiered import CachedStorage, ChangePublisher

__all__ = ["TRIALS", "run"]

TRIALS = 100
_TABLE = TableConfig("item", 4, initializer="zeros")
_KEYS = np.arange(4_000)
_KEPT = 8
_SECONDS = 30.0


def train(url: str, begin: int) -> None:
    """Writes versions from `begin` on, and publishes them; never returns."""
    generator = np.random.default_rng(begin)
    with StepContainer() as container:
        container.declare(_TABLE, StorageChoice("redis", {"url": url}))
        storage = container.storage("item")
        publisher = ChangePublisher(container, keep=_KEPT)
        version = begin
        while True:
            version += 1
            keys = np.sort(generator.permutation(_KEYS)[:400])
            storage.upsert(keys, np.full((len(keys), 4), version, np.float32))
            publisher.publish(version)
            if version == begin + 1:
                print("publishes", flush=True)


def run(trials: int) -> Report:
    """Kills the given number of trainers."""
    from sparring_redis.testing.server import RedisServer, redis_server_missing

    if reason := redis_server_missing():
        return Report(0, {}, [], reason)
    counts: Counter[str] = Counter()
    failures: list[str] = []
    pause = random.Random(0)
    with RedisServer() as server:
        _train_once(server.url, _KEYS, 1)
        with _reader(server.url) as reader:
            floor = np.zeros(len(_KEYS))
            for trial in range(trials):
                command = [sys.executable, "-m", "reliability.cache_kills", server.url]
                command.append(str((trial + 1) * 10_000))
                with subprocess.Popen(command, stdout=subprocess.PIPE) as trainer:
                    assert trainer.stdout is not None
                    trainer.stdout.readline()
                    end = time.monotonic() + pause.uniform(0.0, 0.2)
                    while time.monotonic() < end:
                        _look(reader, floor, failures)
                    trainer.kill()
                counts["killed"] += 1
                # The first note of the next trainer covers unpublished changes of the last one.
                _train_once(server.url, _KEYS[:1], (trial + 1) * 10_000 + 9_999)
                with open_storage("redis", _TABLE, url=server.url) as backend:
                    expected = backend.find(_KEYS).rows
                end = time.monotonic() + _SECONDS
                while (reader.find(_KEYS).rows != expected).any():
                    if time.monotonic() > end:
                        failures.append(f"trial {trial}: the cache did not catch up")
                        break
                _look(reader, floor, failures)
            counters = reader.counters()
            counts["notes taken"] = counters.notes
            counts["notes missed"] = counters.missed_notes
            counts["keys found in the cache"] = counters.hits
    return Report(trials, counts, failures)


def _train_once(url: str, keys: np.ndarray, version: int) -> None:
    with StepContainer() as container:
        container.declare(_TABLE, StorageChoice("redis", {"url": url}))
        rows = np.full((len(keys), 4), version, np.float32)
        container.storage("item").upsert(keys, rows)
        with ChangePublisher(container, keep=_KEPT) as publisher:
            publisher.publish(version)


def _reader(url: str) -> CachedStorage:
    opened = open_storage(
        "tiered",
        _TABLE,
        tiers=[{"backend": "memory"}, {"backend": "redis", "options": {"url": url}}],
        refresh={"poll_seconds": 0.01, "drop_seconds": 0.05},
    )
    assert isinstance(opened, CachedStorage)
    return opened


def _look(reader: CachedStorage, floor: np.ndarray, failures: list[str]) -> None:
    rows = reader.find(_KEYS).rows
    if (rows != rows[:, :1]).any():
        failures.append("a row is torn")
    if (rows[:, 0] < floor).any():
        failures.append("a row is older than before")
    np.maximum(floor, rows[:, 0], out=floor)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
