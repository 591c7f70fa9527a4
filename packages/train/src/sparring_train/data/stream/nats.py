"""NATS JetStream as a stream: ``nats://host:4222/<stream>,<stream>``.

Each JetStream stream is a partition, and the offset of a message is its sequence number. Consumers exist
only while the run reads, and acknowledge nothing.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any
from urllib.parse import unquote, urlsplit

from sparring.errors import DataError, PluginError
from sparring_train.config.sections.stream import NatsStreamOptions
from sparring_train.streams import OffsetGoneError, StreamMessage, StreamRead

__all__ = ["NatsSource"]

_PASSWORD = "SPARRING_NATS_PASSWORD"
_TIMEOUT_SECONDS = 30.0
"""Time for which a request is repeated, for example while the server starts again."""
_REPLY_SECONDS = 5.0
"""Timeout of one request. A request or a reply may be lost with a connection."""
_ATTEMPTS = 60
"""Number of attempts to connect, at first and after a connection was lost."""
_PAUSE_SECONDS = 0.5
"""Pause between two attempts."""
_IDLE_SECONDS = 600.0
"""The server keeps a consumer for this long between two reads."""
_FETCH_SECONDS = 1.0
"""Time after which a read checks whether the connection broke, which can have lost the last messages."""
_LEAST_WAIT_SECONDS = 0.02
"""The client needs some time to receive messages that exist."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """A consumer, and what it delivers next."""

    subscription: Any
    offset: int
    """Offset of the next message, or of an earlier one if messages between them were removed."""
    number: int
    """Number of the next message among all messages that the consumer delivers, from 1."""
    connection: int
    """Number of the connection on which the consumer was created. What it delivers on a connection that
    breaks can be lost, and it does not deliver it again."""


class NatsSource:
    """See the module.

    Raises:
        DataError: the URL is incomplete, or the server or a stream cannot be reached.
        PluginError: the package nats-py is not installed.
    """

    def __init__(self, url: str, options: NatsStreamOptions) -> None:
        try:
            import nats
            import nats.errors
            import nats.js.api
            import nats.js.errors
        except ImportError as error:
            raise PluginError(
                f"reading {url} needs nats-py, which is not installed; run: pip install "
                '"sparring-train[nats]"'
            ) from error
        self._nats: Any = nats
        self._not_ready = (
            nats.errors.NoRespondersError,
            nats.errors.TimeoutError,
            nats.js.errors.NoStreamResponseError,
            nats.js.errors.ServiceUnavailableError,
        )
        self._url = url
        parts = urlsplit(url)
        self._streams = [unquote(name) for name in parts.path.strip("/").split(",") if name]
        if not parts.hostname or not self._streams:
            raise DataError(
                f"data.url: found {url}, expected nats://host:4222/CLICKS: the server and the name of "
                "the JetStream stream, or several names with commas"
            )
        # The client is asynchronous, and needs a thread while the run trains.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nats", daemon=True)
        self._thread.start()
        try:
            # The client itself repeats this.
            self._client = self._wait_for(
                lambda: nats.connect(
                    f"{parts.scheme}://{parts.hostname}:{parts.port or 4222}",
                    user=parts.username,
                    password=os.environ.get(_PASSWORD),
                    user_credentials=options.credentials,
                    allow_reconnect=True,
                    max_reconnect_attempts=_ATTEMPTS,
                    reconnect_time_wait=_PAUSE_SECONDS,
                    connect_timeout=_REPLY_SECONDS,
                    error_cb=_ignore,
                )
            )
            self._jetstream = self._client.jetstream(timeout=_REPLY_SECONDS)
            for name in self._streams:
                self._range(name)
        except BaseException:
            self._stop()
            raise
        self._readers: dict[str, _Reader] = {}

    def partitions(self) -> Sequence[str]:
        return self._streams

    def earliest_offsets(self) -> Mapping[str, int]:
        return {name: self._range(name)[0] for name in self._streams}

    def end_offsets(self) -> Mapping[str, int]:
        return {name: self._range(name)[1] for name in self._streams}

    def read(self, partition: str, offset: int, max_events: int, deadline: float) -> StreamRead:
        while True:
            end = min(deadline, time.monotonic() + _FETCH_SECONDS)
            read = self._read_once(partition, offset, max_events, end)
            if read.messages or time.monotonic() >= deadline:
                return read

    def _read_once(
        self, partition: str, offset: int, max_events: int, deadline: float
    ) -> StreamRead:
        reader = self._readers.pop(partition, None)
        connection = self._client.stats["reconnects"]
        if reader is None or (reader.offset, reader.connection) != (offset, connection):
            if reader is not None:
                self._unsubscribe(reader)
            self._check_offset(partition, offset)
            reader = _Reader(self._subscribe(partition, offset), offset, 1, connection)
        seconds = max(deadline - time.monotonic(), _LEAST_WAIT_SECONDS)
        subscription = reader.subscription
        fetched = self._wait_for(lambda: self._fetch(subscription, max_events, seconds))
        found = [] if fetched is None else _without_gaps(fetched, reader.number)
        messages = [
            StreamMessage(
                each.metadata.sequence.stream, each.data, each.metadata.timestamp.timestamp()
            )
            for each in found
        ]
        if messages and messages[0].offset > offset:
            # Messages at the offset were removed, by the limits of the stream or one by one.
            self._check_offset(partition, offset)
        after = messages[-1].offset + 1 if messages else offset
        if fetched is None or len(found) < len(fetched):
            # The consumer was removed, or a connection broke while it delivered messages. The next
            # call creates another one.
            self._unsubscribe(reader)
        else:
            number = reader.number + len(found)
            self._readers[partition] = _Reader(subscription, after, number, reader.connection)
        return StreamRead(after, messages)

    def close(self) -> None:
        try:
            self._wait_for(self._client.close)
        finally:
            self._stop()

    def _subscribe(self, partition: str, offset: int) -> Any:
        api = self._nats.js.api
        config = api.ConsumerConfig(
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=max(offset, 1),
            ack_policy=api.AckPolicy.NONE,
            inactive_threshold=_IDLE_SECONDS,
            mem_storage=True,
        )
        return self._wait_for(
            lambda: self._jetstream.pull_subscribe(">", stream=partition, config=config)
        )

    def _unsubscribe(self, reader: _Reader) -> None:
        self._wait_for(reader.subscription.unsubscribe)

    async def _fetch(self, subscription: Any, count: int, seconds: float) -> list[Any] | None:
        """Returns messages; None if the consumer does not exist any more, because the server was started
        again, or the last read was `_IDLE_SECONDS` ago."""
        try:
            found: list[Any] = await subscription.fetch(count, timeout=seconds)
        except self._nats.errors.TimeoutError:
            return []
        except self._nats.js.errors.ServiceUnavailableError:
            return None
        return found

    def _check_offset(self, partition: str, offset: int) -> None:
        earliest, end = self._range(partition)
        if offset < earliest:
            raise OffsetGoneError(self._url, partition, offset, earliest)
        if offset > end:
            raise DataError(
                f"reading {self._url}, partition {partition}: found messages before offset {end}, "
                f"expected {offset}, because the stream was deleted; use another folder for snapshots",
                partition=partition,
                offset=offset,
            )

    def _range(self, partition: str) -> tuple[int, int]:
        """Returns the earliest and the end offset."""
        state = self._wait_for(lambda: self._jetstream.stream_info(partition)).state
        return max(state.first_seq, 1), state.last_seq + 1

    def _wait_for(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Returns the result of a call of the client, which is repeated while the server is not ready.

        Raises:
            DataError: the server cannot be reached, or rejects the call.
        """
        end = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            try:
                return asyncio.run_coroutine_threadsafe(_awaited(call), self._loop).result()
            except self._not_ready as error:
                # JetStream starts after the server accepts connections.
                if time.monotonic() >= end:
                    raise self._failed(error) from error
                time.sleep(_PAUSE_SECONDS)
            except (self._nats.errors.Error, OSError, TimeoutError) as error:
                raise self._failed(error) from error

    def _failed(self, error: Exception) -> DataError:
        return DataError(
            f"reading {self._url} failed: {type(error).__name__}: {error}; check that the server "
            f"runs with JetStream, the name of the stream, and the password in {_PASSWORD} or "
            "data.options.credentials"
        )

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _awaited(call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


def _without_gaps(messages: Sequence[Any], number: int) -> list[Any]:
    """Returns the messages before the first one that was lost.

    Args:
        messages: messages of one consumer, in order.
        number: number of the next message that the consumer delivers.
    """
    numbers = range(number, number + len(messages))
    pairs = zip(messages, numbers, strict=True)
    return [
        each
        for each, _ in takewhile(lambda pair: pair[0].metadata.sequence.consumer == pair[1], pairs)
    ]


async def _ignore(error: Exception) -> None:
    """The client reports each failed attempt to connect; the last one raises an error."""
