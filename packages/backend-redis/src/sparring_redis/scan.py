"""Reads the rows of buckets in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sparring.contracts import Keys, Rows
from sparring_redis.connections.client import Client
from sparring_redis.connections.deadline import Deadline
from sparring_redis.layout import Layout
from sparring_redis.ownership import Ownership

__all__ = ["BucketScan"]

_MAX_BUCKETS_AT_ONCE = 32
_MAX_ROWS_AT_ONCE = 16_384


@dataclass(slots=True)
class _Cursor:
    """Position of the scan in a bucket."""

    bucket: int
    at: bytes = b"0"


class BucketScan:
    """One scan over some buckets of a table.

    HSCAN returns each field that exists during the whole scan, and it may return more or fewer fields
    than requested. Surplus rows are kept for the next chunk.

    Args:
        client: the client to use.
        layout: layout of the table.
        owned: the partitions whose rows to return.
        buckets: the buckets to scan.
        deadline: deadline of the whole scan; if None, each request has a separate deadline.
    """

    def __init__(
        self,
        client: Client,
        layout: Layout,
        owned: Ownership,
        buckets: Sequence[int],
        deadline: Deadline | None = None,
    ) -> None:
        self._client = client
        self._layout = layout
        self._owned = owned
        self._deadline = deadline
        self._shared = frozenset(owned.shared_buckets)
        self._waiting = [_Cursor(bucket) for bucket in reversed(buckets)]  # taken from the end
        self._active: list[_Cursor] = []
        self._fields: list[bytes] = []
        self._values: list[bytes] = []

    def chunks(self, chunk_rows: int) -> Iterator[tuple[Keys, Rows]]:
        """Yields chunks of 1 to `chunk_rows` rows: ``(n,)`` keys and read-only ``(n, width)`` rows.

        Raises:
            DeadlineError, StorageIOError: a request to Redis failed.
            CorruptDataError: a value is not a row of this table.
        """
        fields, values = self._fields, self._values
        while True:
            while len(fields) < chunk_rows and (self._waiting or self._active):
                self._advance(min(chunk_rows - len(fields), _MAX_ROWS_AT_ONCE))
            if not fields:
                return
            chunk = fields[:chunk_rows], values[:chunk_rows]
            del fields[:chunk_rows], values[:chunk_rows]
            yield self._layout.decode_keys(chunk[0]), self._layout.decode(chunk[1])

    def _advance(self, room: int) -> None:
        """Reads the next rows of some buckets, about `room` rows in total."""
        while self._waiting and len(self._active) < min(_MAX_BUCKETS_AT_ONCE, room):
            self._active.append(self._waiting.pop())
        count = max(1, room // len(self._active))
        commands = [
            self._layout.command(cursor.bucket, "HSCAN", cursor.at, "COUNT", count)
            for cursor in self._active
        ]
        replies = self._client.run(commands, "scan", is_write=False, deadline=self._deadline)
        for cursor, (at, flat) in zip(self._active, replies, strict=True):
            self._keep(cursor.bucket, flat[::2], flat[1::2])
            cursor.at = at
        self._active = [cursor for cursor in self._active if cursor.at != b"0"]

    def _keep(self, bucket: int, fields: list[bytes], values: list[bytes]) -> None:
        if fields and bucket in self._shared:
            mine = np.flatnonzero(self._owned.owns(self._layout.decode_keys(fields))).tolist()
            fields, values = [fields[i] for i in mine], [values[i] for i in mine]
        self._fields += fields
        self._values += values
