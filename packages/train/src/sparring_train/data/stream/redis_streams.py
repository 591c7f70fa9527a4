"""Redis Streams as a stream: ``redis://host:6379/<database>/<stream>,<stream>``.

Each stream is a partition. The offset of an entry is its number among all entries that were ever added,
which Redis counts. Therefore entries that were trimmed before they were read are detected.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

from sparring.errors import DataError, PluginError
from sparring_train.config.sections.stream import RedisStreamOptions
from sparring_train.streams import OffsetGoneError, StreamMessage, StreamRead

__all__ = ["RedisSource"]

_log = logging.getLogger(__name__)

_PAGE = 1000
"""Number of entries that are read at a time to find an offset."""
_TIMEOUT_SECONDS = 60
"""Longer than the longest wait for an entry."""


class RedisSource:
    """See the module.

    Raises:
        DataError: the URL is incomplete.
        PluginError: the package redis is not installed.
    """

    def __init__(self, url: str, options: RedisStreamOptions) -> None:
        try:
            import redis
            from redis.backoff import ExponentialBackoff
            from redis.retry import Retry
        except ImportError as error:
            raise PluginError(
                f"reading {url} needs redis, which is not installed; run: pip install "
                '"sparring-train[redis]"'
            ) from error
        self._errors: Any = redis.exceptions
        self._url, self._field = url, options.field.encode()
        parts = urlsplit(url)
        database, _, names = parts.path.strip("/").partition("/")
        self._streams = [unquote(name) for name in names.split(",") if name]
        if not database.isdigit() or not self._streams:
            raise DataError(
                f"data.url: found {url}, expected redis://host:6379/0/clicks: the number of the database "
                "and the name of the stream, or several names with commas"
            )
        self._client: Any = redis.Redis.from_url(
            f"{parts.scheme}://{parts.netloc}/{database}",
            password=os.environ.get("REDISCLI_AUTH"),
            socket_timeout=_TIMEOUT_SECONDS,
            # Reads change nothing, so they can be repeated.
            retry=Retry(ExponentialBackoff(), 3),
            retry_on_error=[redis.exceptions.ConnectionError, redis.exceptions.TimeoutError],
        )
        # Stream → offset of the next entry to read, and the id of the entry before it.
        self._places: dict[str, tuple[int, str]] = {}

    def partitions(self) -> Sequence[str]:
        return self._streams

    def earliest_offsets(self) -> Mapping[str, int]:
        found = {}
        for name in self._streams:
            found[name], end = self._info(name)
            if not end:
                _log.warning("%s: stream %s has no entry; check its name", self._url, name)
        return found

    def end_offsets(self) -> Mapping[str, int]:
        return {name: self._info(name)[1] for name in self._streams}

    def read(self, partition: str, offset: int, max_events: int, deadline: float) -> StreamRead:
        place = self._places.get(partition)
        if place is None or place[0] != offset:
            place = self._found(partition, offset)
        entries = self._entries(partition, *place, max_events)
        wait = deadline - time.monotonic()
        if not entries and wait > 0:
            with self._own_errors():
                block = max(int(wait * 1000), 1)
                self._client.xread({partition: place[1]}, count=1, block=block)
            entries = self._entries(partition, *place, max_events)
        messages = [
            StreamMessage(
                offset + at,
                self._payload(partition, offset + at, fields),
                _as_numbers(name)[0] / 1000,
            )
            for at, (name, fields) in enumerate(entries)
        ]
        if entries:
            place = offset + len(entries), entries[-1][0].decode()
        self._places[partition] = place
        return StreamRead(place[0], messages)

    def close(self) -> None:
        self._client.close()

    def _payload(self, partition: str, offset: int, fields: Mapping[bytes, bytes]) -> bytes:
        if self._field not in fields:
            found = ", ".join(name.decode(errors="replace") for name in fields)
            raise DataError(
                f"{self._url}, partition {partition}, offset {offset}: the entry has no field "
                f"{self._field.decode()!r}, found {found}; set the field in data.options",
                partition=partition,
                offset=offset,
            )
        return fields[self._field]

    def _entries(self, name: str, offset: int, after: str, count: int) -> list[Any]:
        """Returns the entries from `offset`, which follow the id `after`."""
        with self._own_errors():
            pipeline = self._client.pipeline(transaction=True)
            pipeline.xrange(name, f"({after}", "+", count)
            pipeline.xinfo_stream(name)
            entries, info = pipeline.execute(raise_on_error=False)
        # In one transaction, because a later trim would shift the numbers of these entries.
        earliest, end = self._range_of(name, info)
        if isinstance(entries, Exception):
            raise self._failed(entries)
        self._check_offset(name, offset, earliest, end)
        found: list[Any] = entries
        return found

    def _found(self, name: str, offset: int) -> tuple[int, str]:
        """Returns an offset and the id of the entry before it, from the nearer end of the stream."""
        with self._own_errors():
            info = self._raw_info(name)
        earliest, end = self._range_of(name, info)
        self._check_offset(name, offset, earliest, end)
        if offset == end:
            # The last id that was given, also if its entry was trimmed.
            last = b"0-0" if isinstance(info, Exception) else info["last-generated-id"]
            return offset, last.decode()
        at, after = earliest, "0-0"
        if offset - earliest <= end - offset:
            while at < offset:
                entries = self._entries(name, at, after, min(_PAGE, offset - at))
                at, after = at + len(entries), entries[-1][0].decode()
            return at, after
        at, before = end, "+"
        while True:
            with self._own_errors():
                count = min(_PAGE, at - offset + 1)
                entries = self._client.xrevrange(name, before, "-", count)
            at -= len(entries)
            if at < offset:
                return offset, entries[-1][0].decode()
            if not entries or len(entries) < count:
                # The entry before the offset was trimmed, so the offset is the first one.
                return self._found(name, offset) if at > offset else (offset, "0-0")
            before = f"({entries[-1][0].decode()}"

    def _check_offset(self, name: str, offset: int, earliest: int, end: int) -> None:
        if offset < earliest:
            raise OffsetGoneError(self._url, name, offset, earliest)
        if offset > end:
            raise DataError(
                f"reading {self._url}, partition {name}: found {end} entries, expected at least "
                f"{offset}, because the stream was deleted; use another folder for snapshots",
                partition=name,
                offset=offset,
            )

    def _info(self, name: str) -> tuple[int, int]:
        with self._own_errors():
            return self._range_of(name, self._raw_info(name))

    def _raw_info(self, name: str) -> Any:
        try:
            return self._client.xinfo_stream(name)
        except self._errors.ResponseError as error:
            return error

    def _range_of(self, name: str, info: Any) -> tuple[int, int]:
        """Returns the earliest and the end offset, from the reply to XINFO STREAM."""
        if isinstance(info, Exception):
            if "no such key" in str(info):
                return 0, 0
            raise self._failed(info)
        if "entries-added" not in info:
            raise DataError(
                f"reading {self._url} failed: the server does not count added entries; use Redis 7"
            )
        first = info["first-entry"]
        if first and _as_numbers(info["max-deleted-entry-id"]) >= _as_numbers(first[0]):
            raise DataError(
                f"reading {self._url}, partition {name}: an entry was removed by XDEL, so the numbers of "
                "other entries are unknown; remove only the oldest entries, by XTRIM, or start another "
                "stream",
                partition=name,
            )
        added = int(info["entries-added"])
        return added - int(info["length"]), added

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except self._errors.RedisError as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> DataError:
        return DataError(
            f"reading {self._url} failed: {error}; check that the server runs, the name of the stream, "
            "and the password in REDISCLI_AUTH"
        )


def _as_numbers(name: bytes) -> tuple[int, ...]:
    return tuple(map(int, name.split(b"-")))
