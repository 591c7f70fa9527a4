"""Generates impressions with clicks, and sends them to a Redis Stream.

    python live_events.py PORT

Each user and item has a vector; their product determines the probability of a click. During the drift,
the vectors of items turn slowly. It is defined as seconds after the begin of the demo, which its main
program writes to Redis when all processes are ready, like the times at which events are bad.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import pyarrow
import redis

STREAM, BEGIN, BAD_EVENTS = "clicks", "begin", "bad-events"
INVERTED, SCRAMBLED, EMPTIED = "labels inverted", "ids scrambled", "column emptied"
EVENTS_PER_SECOND, MESSAGES_PER_SECOND = 1500, 50
NUM_USERS, NUM_ITEMS, _DIM = 200, 60, 4
DRIFT, POISON = (50.0, 70.0), (90.0, 96.0)
_TURN = 0.45 * np.pi
_BIAS, _SCALE = -1.0, 1.0


class World:
    """Users, items, and the probabilities of clicks at each time.

    Args:
        begin: begin of the demo, in seconds since 1970.
    """

    def __init__(self, begin: float) -> None:
        random = np.random.default_rng(1)
        self.begin = begin
        self._users = random.normal(size=(NUM_USERS, _DIM))
        self._items, self._later = random.normal(size=(2, NUM_ITEMS, _DIM))

    def probabilities(self, users: np.ndarray, items: np.ndarray, at: float) -> np.ndarray:
        """Returns the probability of a click for each impression ``(n,)`` at a time."""
        begin, end = DRIFT
        angle = _TURN * np.clip((at - self.begin - begin) / (end - begin), 0, 1)
        vectors = np.cos(angle) * self._items + np.sin(angle) * self._later
        logits = _BIAS + _SCALE * (self._users[users] * vectors[items]).sum(axis=1)
        return 1 / (1 + np.exp(-logits))

    def impressions(
        self, random: np.random.Generator, count: int, at: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns users, items and correct labels of new impressions."""
        users, items = (
            random.integers(NUM_USERS, size=count),
            random.integers(NUM_ITEMS, size=count),
        )
        labels = random.random(count) < self.probabilities(users, items, at)
        return users, items, labels.astype(np.int64)


def poison(client: redis.Redis, kind: str, begin: float, end: float) -> None:
    """Makes all events between two times bad.

    Args:
        client: the Redis of the demo.
        kind: `INVERTED`, `SCRAMBLED` or `EMPTIED`.
        begin: begin in seconds since 1970.
        end: end in seconds since 1970.
    """
    client.set(BAD_EVENTS, json.dumps([kind, begin, end]))


def main(port: str) -> None:
    """Sends events until the process is terminated."""
    random, client = np.random.default_rng(2), redis.Redis(port=int(port))
    count, number, first = EVENTS_PER_SECOND // MESSAGES_PER_SECOND, 0, time.time()
    while True:
        time.sleep(max(0.0, first + number / MESSAGES_PER_SECOND - time.time()))
        now = time.time()
        begin, bad = client.mget(BEGIN, BAD_EVENTS)
        users, items, labels = World(float(begin or now)).impressions(random, count, now)
        shown: np.ndarray | pyarrow.Array = items
        kind, first_bad, end = json.loads(bad or '["", 0, 0]')
        if first_bad <= now < end:
            if kind == INVERTED:
                labels = 1 - labels
            elif kind == SCRAMBLED:
                users, shown = random.permutation(users), random.permutation(items)
            else:
                shown = pyarrow.nulls(count, pyarrow.int64())
        batch = pyarrow.RecordBatch.from_pydict(
            {"user": users, "item": shown, "clicked": labels, "time": np.full(count, now)}
        )
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        client.xadd(STREAM, {"value": sink.getvalue().to_pybytes()})
        number += 1


if __name__ == "__main__":
    main(sys.argv[1])
