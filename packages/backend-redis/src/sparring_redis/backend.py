"""The ``redis`` storage: stores the rows of a table in Redis hashes that all ranks of a job share."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import numpy.typing as npt

from sparring.contracts import (
    NUM_PARTITIONS,
    Capabilities,
    Columns,
    EvictedRows,
    Keys,
    Rows,
    ScanChunk,
    Scores,
    Shard,
    Storage,
    TableConfig,
)
from sparring_redis.connections.client_factory import open_client
from sparring_redis.connections.deadline import Deadline
from sparring_redis.description import agree_on_buckets, description_slot, find_row_label
from sparring_redis.eviction import check_eviction_policy
from sparring_redis.layout import Layout
from sparring_redis.options import RedisOptions
from sparring_redis.ownership import Ownership
from sparring_redis.scan import BucketScan

__all__ = ["RedisStorage", "found_table"]

_MAX_ROWS_AT_ONCE = 65_536
_MAX_BYTES_AT_ONCE = 32 << 20

# A scan must be able to read this number of rows or bytes within the deadline of one call.
_ROWS_PER_DEADLINE = 1 << 18
_BYTES_PER_DEADLINE = 64 << 20


class RedisStorage(Storage):
    """One rank's part of a table in a Redis that all ranks share.

    The rows of all ranks are stored in one set of buckets, which depends only on the keys, so a job with
    a different world size finds them. `size`, `scan` and `clear` affect only the partitions of this rank.
    `find`, `upsert` and `erase` accept any key, because the engine sends a key only to its owner.

    Retries
        `find` only reads. `upsert` writes whole rows: repeating it writes the same bytes, and an older
        write cannot arrive after a newer one (see `sparring_redis.connections.server`). Therefore both
        are sent again, within the deadline, if a reply is lost. `erase` returns the number of keys that
        existed, which would be smaller the second time. It raises an error instead; the caller may
        call it again.

    Failed calls
        A call sends one Redis command per bucket, and Redis executes each command atomically. If an
        upsert raised `StorageIOError` or `DeadlineError`, it may have written some of the buckets: each
        key has either its old or its new row. Repeating the call writes all new rows.

    Args:
        table: configuration of the table.
        options: location of Redis and layout of the table.
        shard: part of the table that this rank owns; None for the whole table.
        validate: see `sparring.contracts.storage.storage.Storage`.

    Raises:
        InvalidArgumentError: Redis contains the table with another row layout, a password cannot be
            read, or the server evicts rows when its memory is full.
        DeadlineError, StorageIOError: Redis failed.
    """

    capabilities = Capabilities(persistent=True, shared=True, concurrent_reads=True, notes=True)

    def __init__(
        self,
        table: TableConfig,
        options: RedisOptions | None = None,
        shard: Shard | None = None,
        *,
        validate: bool = True,
    ) -> None:
        super().__init__(table, validate=validate)
        self.options = options or RedisOptions()
        self.shard = shard
        self._call = threading.local()
        self._client = open_client(self.options, f"table {table.name!r}")
        try:
            deadline = Deadline(self._client.deadline_seconds)
            if not self.options.allow_eviction:
                slot = description_slot(table, self.options)
                check_eviction_policy(self._client, slot, deadline)
            num_buckets = agree_on_buckets(self._client, table, self.options, deadline)
        except BaseException:
            self._client.close()
            raise
        self._layout = Layout(table, self.options.prefix, num_buckets)
        partitions = np.arange(NUM_PARTITIONS) if shard is None else shard.partitions
        self._owned = Ownership(partitions, num_buckets)
        bytes_per_row = table.row_bytes + 64
        self._rows_at_once = max(1, min(_MAX_ROWS_AT_ONCE, _MAX_BYTES_AT_ONCE // bytes_per_row))

    # -- reading ------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """Number of bytes that the buckets with rows of this rank use, as estimated by Redis."""
        self._check_open()
        commands = [
            self._layout.memory_command(bucket)
            for bucket in (*self._owned.whole_buckets, *self._owned.shared_buckets)
        ]
        replies = self._client.run(commands, "memory_bytes", is_write=False)
        return sum(reply or 0 for reply in replies)

    def _find_impl(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        deadline = Deadline(self._client.deadline_seconds)
        for part in self._parts(len(keys)):
            groups = self._layout.groups(keys[part])
            commands = self._layout.find_commands(keys[part], groups)
            replies = self._client.run(commands, "find", is_write=False, deadline=deadline)
            self._layout.take_rows(replies, groups, columns, rows[part], found[part])

    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        buckets = (*self._owned.whole_buckets, *self._owned.shared_buckets)
        for keys, rows in self._scan_buckets(buckets, chunk_rows):
            self._check_open()
            part = rows[:, columns.begin : columns.end].copy()
            yield ScanChunk(keys, part, np.zeros(len(keys), np.uint64))
            self._check_open()

    def _size_impl(self) -> int:
        deadline = Deadline(self._client.deadline_seconds)
        size = self._count_in(self._owned.whole_buckets, "size", deadline)
        return size + sum(len(keys) for keys in self._keys_in_shared_buckets("size", deadline))

    def _count_in(self, buckets: Sequence[int], operation: str, deadline: Deadline) -> int:
        """Counts the rows in the given buckets, including rows of other ranks."""
        commands = [self._layout.command(each, "HLEN") for each in buckets]
        return sum(self._client.run(commands, operation, is_write=False, deadline=deadline))

    # -- writing ------------------------------------------------------------

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        deadline = Deadline(self._client.deadline_seconds)
        for part in self._parts(len(keys)):
            groups = self._layout.groups(keys[part])
            commands = self._layout.upsert_commands(keys[part], rows[part], groups)
            self._client.run(commands, "upsert", is_write=True, deadline=deadline)
        return self._nothing_evicted()

    def _erase_impl(self, keys: Keys) -> int:
        deadline = Deadline(self._client.deadline_seconds)
        return sum(self._erase(keys[part], deadline) for part in self._parts(len(keys)))

    def _erase(self, keys: Keys, deadline: Deadline) -> int:
        groups = self._layout.groups(keys)
        commands = self._layout.erase_commands(keys, groups)
        replies = self._client.run(
            commands, "erase", is_write=True, is_repeatable=False, deadline=deadline
        )
        return int(sum(replies))

    def _clear_for(self, source: str | None) -> None:
        # One deadline covers the removal of rows and the note.
        with self._one_deadline():
            super()._clear_for(source)

    def _clear_impl(self) -> None:
        deadline = self._deadline()
        commands = [self._layout.command(each, "UNLINK") for each in self._owned.whole_buckets]
        self._client.run(commands, "clear", is_write=True, deadline=deadline)
        for keys in self._keys_in_shared_buckets("clear", deadline):
            commands = self._layout.erase_commands(keys, self._layout.groups(keys))
            self._client.run(commands, "clear", is_write=True, deadline=deadline)

    def _write_note_impl(self, name: str, text: str | None) -> None:
        # All ranks share one note per table, because they load together, and a job with another
        # world size must find it.
        note = partial(self._layout.note_command, name)
        command = note("UNLINK") if text is None else note("SET", text.encode())
        deadline = self._deadline()
        self._client.run([command], f"note {name!r}", is_write=True, deadline=deadline)

    def _read_note_impl(self, name: str) -> str | None:
        command = self._layout.note_command(name, "GET")
        deadline = self._deadline()
        replies = self._client.run([command], f"note {name!r}", is_write=False, deadline=deadline)
        return None if replies[0] is None else bytes(replies[0]).decode(errors="replace")

    def _close_impl(self) -> None:
        self._client.close()

    # -- deadlines ------------------------------------------------------------

    @contextmanager
    def _one_deadline(self) -> Iterator[None]:
        """Uses one deadline for all requests of this thread in the block."""
        self._call.deadline = Deadline(self._client.deadline_seconds)
        try:
            yield
        finally:
            del self._call.deadline

    def _deadline(self) -> Deadline:
        """Returns the deadline of the current call, or a new one."""
        found: Deadline | None = getattr(self._call, "deadline", None)
        return found or Deadline(self._client.deadline_seconds)

    # -- parts ----------------------------------------------------------------

    def _parts(self, count: int) -> Iterator[slice]:
        """Splits a call into slices, so that client and server buffer only some megabytes at once."""
        for begin in range(0, count, self._rows_at_once):
            yield slice(begin, min(begin + self._rows_at_once, count))

    def _keys_in_shared_buckets(self, operation: str, deadline: Deadline) -> Iterator[Keys]:
        """Yields, in chunks, this rank's keys in the buckets that it shares with other ranks.

        Redis can count them only by reading them, so `deadline` is extended in proportion to the number
        of rows to read. That number is known in advance, so a slow server does not extend it further.
        """
        buckets = self._owned.shared_buckets
        num_rows = self._count_in(buckets, operation, deadline)
        num_extensions = num_rows * self._layout.table.row_bytes // _BYTES_PER_DEADLINE
        num_extensions = max(num_extensions, num_rows // _ROWS_PER_DEADLINE)
        deadline.extend(num_extensions * self._client.deadline_seconds)
        for keys, _ in self._scan_buckets(buckets, _MAX_ROWS_AT_ONCE, deadline):
            yield keys

    def _scan_buckets(
        self, buckets: Sequence[int], chunk_rows: int, deadline: Deadline | None = None
    ) -> Iterator[tuple[Keys, Rows]]:
        scan = BucketScan(self._client, self._layout, self._owned, buckets, deadline)
        return scan.chunks(chunk_rows)


def found_table(table: TableConfig, options: RedisOptions) -> TableConfig | None:
    """Returns the configuration of the stored table, or None if there are no rows. Writes nothing.

    Raises:
        DeadlineError, StorageIOError: Redis failed.
    """
    client = open_client(options, f"table {table.name!r}")
    try:
        label = find_row_label(client, table, options, Deadline(client.deadline_seconds))
    finally:
        client.close()
    return None if label is None else table.with_row_label(label)
