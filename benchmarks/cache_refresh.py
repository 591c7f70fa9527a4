"""Refreshing a cache of a million rows after 1 % of the keys changed in Redis, compared to reading them.

Between rounds other rows change and a note is published. The refresh is timed from polling for the note
to the last row in the cache. The reference reads the same number of keys from the same Redis through the
`redis` storage.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.measuring import Figure
from benchmarks.scale import Scale
from sparring import StepContainer, StorageChoice, open_storage
from sparring.contracts import TableConfig
from sparring_tiered import CachedStorage, ChangePublisher

__all__ = ["measure"]

TABLE_ROWS, DIM, ROUNDS, BAR = 1_000_000, 64, 15, 1.5
_AT_ONCE = 65_536


def measure(scale: Scale) -> list[Figure]:
    """Returns the ratio of both times, and the ratio of times of finding cached keys during a refresh."""
    from sparring_redis.testing.server import RedisServer, redis_server_missing

    what = "refresh of a cache, 1 % changed, compared with reading 1 % of the keys"
    if reason := redis_server_missing():
        return [Figure(what, "not measured", detail=reason)]
    num_rows = scale.rows(TABLE_ROWS)
    table = TableConfig("item", DIM, initializer="zeros")
    keys = np.arange(num_rows) * 2_654_435_761
    generator = np.random.default_rng(0)
    with RedisServer() as server, StepContainer() as container:
        options = {"url": server.url}
        container.declare(table, StorageChoice("redis", options))
        storage = container.storage("item")
        for begin in range(0, num_rows, _AT_ONCE):
            part = keys[begin : begin + _AT_ONCE]
            storage.upsert(part, generator.random((len(part), DIM), np.float32))
        with ChangePublisher(container) as publisher:
            publisher.publish(0)
            cache = {"backend": "hkv"}
            with open_storage(
                "tiered",
                table,
                tiers=[cache, {"backend": "redis", "options": options}],
                refresh={"poll_seconds": 3600},
            ) as reader:
                assert isinstance(reader, CachedStorage)
                for begin in range(0, num_rows, _AT_ONCE):
                    reader.find(keys[begin : begin + _AT_ONCE])
                refreshes, reads = [], []
                for step in range(scale.rounds(ROUNDS) + 2):
                    changed = generator.choice(keys, max(1, num_rows // 100), replace=False)
                    storage.upsert(changed, generator.random((len(changed), DIM), np.float32))
                    publisher.publish(step)
                    begin_time = perf_counter()
                    reader.refresh()
                    refreshed = perf_counter()
                    expected = storage.find(changed)
                    read = perf_counter()
                    if (reader.find(changed).rows != expected.rows).any():
                        raise AssertionError("the rows in the cache differ from those in Redis")
                    if step >= 2:  # after warm-up
                        refreshes.append(refreshed - begin_time)
                        reads.append(read - refreshed)
                num_reread = reader.counters().reread_rows
    ratio = median(a / b for a, b in zip(refreshes, reads, strict=True))
    return [
        Figure(
            what,
            f"{ratio:.2f} x the read",
            f"<= {BAR}",
            ratio <= BAR,
            f"{median(refreshes) * 1e3:.1f} and {median(reads) * 1e3:.1f} ms, {num_rows:,} rows of "
            f"{DIM} floats, {num_reread / (len(reads) + 2) / max(1, num_rows // 100):.3f} keys read per "
            "changed one",
            1 / ratio,
        )
    ]
