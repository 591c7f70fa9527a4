"""Writes the events of a run to NATS at a constant rate, each exactly once."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from typing import Any

import numpy as np
import pyarrow

from soak.processes import NUM_RANKS

__all__ = ["MESSAGE", "STREAMS", "Feed", "events"]

MESSAGE = 16
"""Events per message; a step trains one message of each stream."""
STREAMS = [f"clicks{number}" for number in range(1, NUM_RANKS + 1)]
NUM_USERS, NUM_ITEMS = 6_000, 3_000
_PAUSE_SECONDS = 0.5


def events(seed: int, stream: int, number: int) -> Any:
    """Returns the events of a message."""
    draw = np.random.default_rng([seed, stream, number])
    users, items = draw.integers(0, NUM_USERS, MESSAGE), draw.integers(0, NUM_ITEMS, MESSAGE)
    return pyarrow.table(
        {
            "user": users,
            "item": items,
            "price": draw.normal(size=MESSAGE),
            "clicked": (users + items + draw.integers(0, 9, MESSAGE)) % 2,
        }
    )


class Feed:
    """Writes on a thread. The broker may be away for a while.

    Args:
        url: URL of the broker.
        seed: chooses the events.
        num_messages: number of messages of each stream.
        messages_per_second: rate of each stream.
    """

    def __init__(self, url: str, seed: int, num_messages: int, messages_per_second: float) -> None:
        self._url, self._seed = url, seed
        self._num_messages, self._rate = num_messages, messages_per_second
        self._is_closed = threading.Event()
        self.num_acknowledged = 0
        self.num_retries = 0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._write()), daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return self.num_acknowledged == self._num_messages * NUM_RANKS

    def close(self) -> None:
        self._is_closed.set()
        self._thread.join()

    async def _write(self) -> None:
        import nats

        client = await nats.connect(
            self._url, max_reconnect_attempts=-1, reconnect_time_wait=0.2, error_cb=_ignore
        )
        stream = client.jetstream(timeout=5)
        for name in STREAMS:
            await self._repeat(
                lambda name=name: stream.add_stream(name=name, subjects=[f"{name}.*"])
            )
        begin = time.monotonic()
        for number in range(self._num_messages):
            await asyncio.sleep(max(0.0, begin + number / self._rate - time.monotonic()))
            for at, name in enumerate(STREAMS):
                payload = _as_arrow(events(self._seed, at, number))
                # The broker ignores a message whose number it has already stored.
                headers = {"Nats-Msg-Id": f"{name}-{number}"}
                await self._repeat(
                    lambda name=name, payload=payload, headers=headers: stream.publish(
                        f"{name}.new", payload, headers=headers
                    )
                )
                if self._is_closed.is_set():
                    return
                self.num_acknowledged += 1
        await client.close()

    async def _repeat(self, call: Any) -> None:
        from nats.errors import Error

        while not self._is_closed.is_set():
            try:
                await call()
            except (Error, OSError, asyncio.TimeoutError):
                self.num_retries += 1
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return


async def _ignore(_: Exception) -> None:
    """The client connects again, and each call is repeated until it is acknowledged."""


def _as_arrow(table: Any) -> bytes:
    sink = io.BytesIO()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()
