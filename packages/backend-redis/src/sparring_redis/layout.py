"""Layout of rows in Redis, and the commands that read and write them.

    sparring:{item:about}      string   description of the table in JSON, see `sparring_redis.description`
    sparring:{item:note-load}  string   a note; this one exists during a load
    sparring:{item:0}          hash     bucket 0: field → row
    …
    sparring:{item:255}        hash     bucket 255

    field   the key, 8 bytes, little-endian int64
    value   the row, row_bytes bytes: embedding and state in the layout of the table, little-endian

1.  A key is in the bucket ``partition(key) * num_buckets // 4096``: a bucket is a contiguous range
    of the 4,096 partitions, so it does not depend on the world size.
2.  `num_buckets` is a power of two and never changes.
3.  The name of a bucket is its hash tag, so in a cluster each bucket is stored on one node, and each
    command affects one slot.
4.  Every value of a bucket has exactly row_bytes bytes; anything else is `CorruptDataError`.

NumPy encodes all fields of a call at once; the client library would encode them one by one. The command
for a bucket is a header and a slice of one buffer in which each field has the same number of bytes.
Therefore keys have 8 bytes instead of decimal digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from redis.crc import key_slot

from sparring.contracts import NUM_PARTITIONS, Columns, Keys, Rows, TableConfig, partition
from sparring.errors import CorruptDataError
from sparring_redis.connections.client import Command
from sparring_redis.connections.connection import encode_command

__all__ = ["BucketGroups", "Layout"]

_FIELD = np.dtype([("head", "S4"), ("key", "<i8"), ("tail", "S2")])


@dataclass(frozen=True, slots=True)
class BucketGroups:
    """The keys of a call, grouped by bucket."""

    order: npt.NDArray[np.int64]
    """``(n,)`` positions in the call, sorted by bucket."""
    buckets: list[int]
    """The buckets with at least one key, ascending."""
    bounds: list[int]
    """``(len(buckets) + 1,)`` start of each bucket's slice of `order`."""


class Layout:
    """The names of one table in Redis, and the commands for its rows.

    Args:
        table: configuration of the table.
        prefix: prefix of all names.
        num_buckets: a power of two, at most 4,096.
    """

    def __init__(self, table: TableConfig, prefix: str, num_buckets: int) -> None:
        self.table = table
        self.num_buckets = num_buckets
        self._names = [f"{prefix}:{{{table.name}:{i}}}".encode() for i in range(num_buckets)]
        self._note_prefix = f"{prefix}:{{{table.name}:note-"
        self._slots = [key_slot(name) for name in self._names]
        self._heads = {
            word: [b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(word), word, len(name), name)
                   for name in self._names]
            for word in (b"HMGET", b"HSET", b"HDEL")
        }  # fmt: skip
        value_head = b"$%d\r\n" % table.row_bytes
        self._pair = np.dtype(
            [
                ("field", _FIELD),
                ("head", f"S{len(value_head)}"),
                ("row", f"V{table.row_bytes}"),
                ("tail", "S2"),
            ]
        )
        self._value_head = value_head
        self._missing = bytes(table.row_bytes)

    def groups(self, keys: Keys) -> BucketGroups:
        """Groups keys by bucket.

        Args:
            keys: ``(n,)`` int64, n >= 1.
        """
        buckets = self.bucket_of(keys)
        # NumPy sorts 16-bit integers with a radix sort.
        order = np.argsort(buckets, kind="stable")
        counts = np.bincount(buckets, minlength=self.num_buckets)
        used = np.flatnonzero(counts)
        bounds = np.concatenate([[0], np.cumsum(counts[used])])
        return BucketGroups(order, used.tolist(), bounds.tolist())

    def bucket_of(self, keys: Keys) -> npt.NDArray[np.uint16]:
        """Returns ``(n,)`` the bucket of each key."""
        shift = (NUM_PARTITIONS // self.num_buckets).bit_length() - 1
        buckets: npt.NDArray[np.uint16] = np.right_shift(partition(keys), np.uint16(shift))
        return buckets

    # -- requests -----------------------------------------------------------------

    def find_commands(self, keys: Keys, groups: BucketGroups) -> list[Command]:
        """Returns one HMGET per bucket."""
        return self._commands(b"HMGET", _fields(keys[groups.order]), groups, words_per_key=1)

    def erase_commands(self, keys: Keys, groups: BucketGroups) -> list[Command]:
        """Returns one HDEL per bucket."""
        return self._commands(b"HDEL", _fields(keys[groups.order]), groups, words_per_key=1)

    def upsert_commands(self, keys: Keys, rows: Rows, groups: BucketGroups) -> list[Command]:
        """Returns one HSET per bucket.

        Args:
            keys: ``(n,)``.
            rows: ``(n, width)``, C-contiguous.
            groups: the keys grouped by bucket.
        """
        pairs = np.empty(len(keys), self._pair)
        pairs["field"] = _fields(keys[groups.order])
        pairs["head"] = self._value_head
        pairs["row"] = rows.view(f"V{self.table.row_bytes}")[:, 0][groups.order]
        pairs["tail"] = b"\r\n"
        return self._commands(b"HSET", pairs, groups, words_per_key=2)

    def command(self, bucket: int, word: str, *rest: bytes | str | int) -> Command:
        """Returns a command about a bucket. The name of the bucket follows the first word."""
        return Command(self._slots[bucket], encode_command([word, self._names[bucket], *rest]))

    def note_command(self, note: str, word: str, *rest: bytes) -> Command:
        """Returns a command about a note of the table."""
        name = f"{self._note_prefix}{note}}}".encode()
        return Command(key_slot(name), encode_command([word, name, *rest]))

    def memory_command(self, bucket: int) -> Command:
        """Returns the command for Redis' estimate of a bucket's memory."""
        return Command(
            self._slots[bucket], encode_command(["MEMORY", "USAGE", self._names[bucket]])
        )

    def _commands(
        self, word: bytes, fields: npt.NDArray[Any], groups: BucketGroups, *, words_per_key: int
    ) -> list[Command]:
        data = memoryview(fields.view(np.uint8).data) if len(fields) else memoryview(b"")
        size = fields.dtype.itemsize
        heads = self._heads[word]
        commands = []
        for i, bucket in enumerate(groups.buckets):
            begin, end = groups.bounds[i], groups.bounds[i + 1]
            count = 2 + words_per_key * (end - begin)
            body = (b"*%d\r\n" % count, heads[bucket], data[begin * size : end * size])
            commands.append(Command(self._slots[bucket], b"".join(body)))
        return commands

    # -- replies ----------------------------------------------------------------------

    def take_rows(
        self,
        replies: Sequence[list[bytes | None]],
        groups: BucketGroups,
        columns: Columns,
        rows: Rows,
        found: npt.NDArray[np.bool_],
    ) -> None:
        """Fills `rows` and `found` from the replies to `find_commands`.

        Args:
            replies: per bucket, a list with a row or None for each key.
            groups: the keys grouped by bucket.
            columns: columns of the rows to read.
            rows: ``(n, width of columns)`` output.
            found: ``(n,)`` output.

        Raises:
            CorruptDataError: a value is not a row of this table.
        """
        values: list[bytes | None] = []
        for reply in replies:
            values += reply
        num_missing = values.count(None)
        present: list[Any] = values
        if num_missing:
            found[groups.order] = [value is not None for value in values]
            present = [self._missing if value is None else value for value in values]
        else:
            found[:] = True
        whole = self.decode(present)
        if columns.end - columns.begin == self.table.width and rows.flags.c_contiguous:
            # As bytes, so that every dtype needs only one copy.
            void = f"V{self.table.row_bytes}"
            rows.view(void)[:, 0][groups.order] = whole.view(void)[:, 0]
        else:
            rows[groups.order] = whole[:, columns.begin : columns.end]

    def decode(self, values: Sequence[bytes]) -> Rows:
        """Returns ``(n, width)`` read-only rows.

        Raises:
            CorruptDataError: a value is not a row of this table.
        """
        if not set(map(len, values)) <= {self.table.row_bytes}:
            wrong = next(len(each) for each in values if len(each) != self.table.row_bytes)
            raise CorruptDataError(
                f"table {self.table.name!r} in Redis: rows have {self.table.row_bytes} bytes, found a "
                f"value of {wrong}; another program writes to names such as "
                f"{self._names[0].decode()}: give it another prefix, and load the table from a snapshot",
                table=self.table.name,
            )
        joined = np.frombuffer(b"".join(values), self.table.numpy_dtype)
        return joined.reshape(-1, self.table.width)

    def decode_keys(self, fields: Sequence[bytes]) -> Keys:
        """Returns ``(n,)`` int64 keys.

        Raises:
            CorruptDataError: a field is not a key.
        """
        if not set(map(len, fields)) <= {8}:
            raise CorruptDataError(
                f"table {self.table.name!r} in Redis: a field must have the 8 bytes of a key; another "
                f"program writes to names such as {self._names[0].decode()}: give it another prefix, "
                "and load the table from a snapshot",
                table=self.table.name,
            )
        return np.frombuffer(b"".join(fields), "<i8").astype(np.int64)


def _fields(keys: Keys) -> npt.NDArray[Any]:
    fields = np.empty(len(keys), _FIELD)
    fields["head"] = b"$8\r\n"
    fields["key"] = keys
    fields["tail"] = b"\r\n"
    return fields
