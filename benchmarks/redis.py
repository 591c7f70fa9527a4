"""The ``redis`` storage, compared with plain redis-py: pipelined HMGET and HSET of the same buckets.

For the plain side, keys, fields and buckets are prepared: only redis-py itself is timed, from encoding
the commands to the list of bytes. Our side is timed completely, from keys to an array of rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Any

import numpy as np

from benchmarks.measuring import Figure, alternate, ratios
from benchmarks.scale import Scale
from sparring import open_storage
from sparring.contracts import TableConfig, partition

__all__ = ["RawRedis", "measure"]

TABLE_ROWS, DIM, ROUNDS, BAR = 1_000_000, 64, 40, 0.9
BATCHES = (65_536, 8_192, 1_024)
NUM_BUCKETS = 256
_MAX_ROWS_AT_ONCE = 65_536


def measure(scale: Scale) -> list[Figure]:
    """Measures ratios on a standalone Redis and on a cluster of three masters, on this machine."""
    from sparring_redis.testing.cluster import RedisCluster
    from sparring_redis.testing.server import RedisServer, redis_server_missing

    if reason := redis_server_missing():
        return [Figure("find and upsert, compared with redis-py", "not measured", detail=reason)]
    import redis

    figures = []
    with ExitStack() as closing:
        server = closing.enter_context(RedisServer())
        raw = closing.enter_context(redis.Redis(port=server.port))
        figures += _measure("standalone", server.url, raw, scale)
    with ExitStack() as closing:
        cluster = closing.enter_context(RedisCluster())
        spread = redis.RedisCluster(host="127.0.0.1", port=cluster.servers[0].port)
        closing.callback(spread.close)
        figures += _measure("cluster of 3 masters", cluster.url, spread, scale)
    return figures


def _measure(kind: str, url: str, raw: Any, scale: Scale) -> list[Figure]:
    generator = np.random.default_rng(0)
    num_rows = scale.rows(TABLE_ROWS)
    keys = generator.permutation(num_rows).astype(np.int64) * 7_919 - 2**40
    table = TableConfig("table", DIM)
    figures = []
    with open_storage(
        "redis", table, url=url, num_buckets=NUM_BUCKETS, deadline_seconds=60, validate=False
    ) as storage:
        for begin in range(0, num_rows, _MAX_ROWS_AT_ONCE):
            part = keys[begin : begin + _MAX_ROWS_AT_ONCE]
            storage.upsert(part, generator.random((len(part), DIM), np.float32))
        for batch in BATCHES:
            count = min(batch, num_rows)
            asked = generator.choice(keys, count, replace=False)
            rows = generator.random((count, DIM), np.float32)
            theirs = RawRedis(raw, asked, rows)
            storage.upsert(asked, rows)
            if theirs.found() != storage.find(asked).rows.tobytes():
                raise AssertionError("redis-py and the storage read different rows")
            theirs.upsert()
            if storage.find(asked).rows.tobytes() != rows.tobytes():
                raise AssertionError(
                    "the rows of the storage differ from those that redis-py wrote"
                )

            out = np.empty((count, DIM), np.float32)
            for name, ours, raw_call in (
                ("find", _Bound(storage.find, asked, out=out), theirs.find),
                ("upsert", _Bound(storage.upsert, asked, rows), theirs.upsert),
            ):
                figures.append(
                    _figure(f"{name} of {count:,}, {kind}", ours, raw_call, scale, count)
                )
    return figures


def _figure(
    what: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    scale: Scale,
    count: int,
) -> Figure:
    timings = alternate({"ours": ours, "raw": theirs}, rounds=scale.rounds(ROUNDS))
    ratio = median(ratios(timings["raw"], timings["ours"]))
    speeds = {name: count / timing.median / 1e3 for name, timing in timings.items()}
    return Figure(
        what,
        f"{ratio:.2f} x raw redis-py",
        f">= {BAR}",
        ratio >= BAR,
        f"{speeds['ours']:,.0f} against {speeds['raw']:,.0f} thousand rows/s, "
        f"{os.cpu_count()} cores",
        ratio,
    )


class _Bound:
    """A call with its arguments."""

    def __init__(self, call: Callable[..., object], *arguments: Any, **named: Any) -> None:
        self._call, self._arguments, self._named = call, arguments, named

    def __call__(self) -> object:
        return self._call(*self._arguments, **self._named)


class RawRedis:
    """Plain redis-py pipelines over our buckets."""

    def __init__(self, client: Any, keys: Any, rows: Any) -> None:
        self._client = client
        shift = (4096 // NUM_BUCKETS).bit_length() - 1
        buckets = (partition(keys) >> shift).tolist()
        self._places: dict[str, list[int]] = {}
        for place, bucket in enumerate(buckets):
            self._places.setdefault(f"sparring:{{table:{bucket}}}", []).append(place)
        fields = [key.tobytes() for key in keys]
        values = [row.tobytes() for row in rows]
        self._fields = {
            name: [fields[place] for place in places] for name, places in self._places.items()
        }
        self._rows = {
            name: {fields[place]: values[place] for place in places}
            for name, places in self._places.items()
        }

    def find(self) -> list[list[bytes]]:
        pipeline = self._client.pipeline(transaction=False)
        for name, fields in self._fields.items():
            pipeline.hmget(name, fields)
        found: list[list[bytes]] = pipeline.execute()
        return found

    def upsert(self) -> object:
        pipeline = self._client.pipeline(transaction=False)
        for name, mapping in self._rows.items():
            pipeline.hset(name, mapping=mapping)
        return pipeline.execute()

    def found(self) -> bytes:
        """Returns the rows in the order of the keys."""
        by_place = {
            place: value
            for places, values in zip(self._places.values(), self.find(), strict=True)
            for place, value in zip(places, values, strict=True)
        }
        return b"".join(by_place[place] for place in range(len(by_place)))
