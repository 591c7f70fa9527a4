"""How rows lie in Redis, and what is sent to read and write them.

    sparring:{item:about}      string   what the table is: JSON, see `sparring_redis.description`
    sparring:{item:note-load}  string   a note; this one says what is being loaded, until that is done
    sparring:{item:0}          hash     bucket 0: field → row
    …
    sparring:{item:255}        hash     bucket 255

    field   the key, 8 bytes, little-endian int64
    value   the row, row_bytes bytes: embedding and state as the table draws them, little-endian

1.  A key is in the bucket ``partition(key) * num_buckets // 4096``: a bucket is a contiguous range
    of the 4,096 partitions, so it does not depend on the world size.
2.  `num_buckets` is a power of two and never changes.
3.  A bucket's name is its hash tag, so in a cluster each bucket is whole on one node, and commands
    for it cross no slots.
4.  Every value of a bucket has exactly row_bytes bytes; anything else is `CorruptDataError`.

Commands are packed here by NumPy, all fields of a call at once, and not by the client library one by
one. A command of a bucket is a header and a slice of one buffer in which each field has the same
number of bytes: that is why keys are 8 bytes and not decimal digits.
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
    """The keys of a call, dealt to buckets."""

    order: npt.NDArray[np.int64]
    """``(n,)`` places in the call, bucket by bucket."""
    buckets: list[int]
    """The buckets that any key falls into, ascending."""
    bounds: list[int]
    """``(len(buckets) + 1,)`` where each bucket's slice of `order` begins."""


class Layout:
    """The names of one table in Redis, and the commands for its rows.

    Args:
        table: what the rows are.
        prefix: what all names begin with.
        num_buckets: a power of two, up to 4,096.
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
        # 16-bit numbers are sorted by counting.
        order = np.argsort(buckets, kind="stable")
        counts = np.bincount(buckets, minlength=self.num_buckets)
        used = np.flatnonzero(counts)
        bounds = np.concatenate([[0], np.cumsum(counts[used])])
        return BucketGroups(order, used.tolist(), bounds.tolist())

    def bucket_of(self, keys: Keys) -> npt.NDArray[np.uint16]:
        """``(n,)`` the bucket of each key."""
        shift = (NUM_PARTITIONS // self.num_buckets).bit_length() - 1
        buckets: npt.NDArray[np.uint16] = np.right_shift(partition(keys), np.uint16(shift))
        return buckets

    # -- what is sent -------------------------------------------------------------

    def find_commands(self, keys: Keys, groups: BucketGroups) -> list[Command]:
        """One HMGET for each bucket."""
        return self._commands(b"HMGET", _fields(keys[groups.order]), groups, words_per_key=1)

    def erase_commands(self, keys: Keys, groups: BucketGroups) -> list[Command]:
        """One HDEL for each bucket."""
        return self._commands(b"HDEL", _fields(keys[groups.order]), groups, words_per_key=1)

    def upsert_commands(self, keys: Keys, rows: Rows, groups: BucketGroups) -> list[Command]:
        """One HSET for each bucket.

        Args:
            keys: ``(n,)``
            rows: ``(n, width)`` C-contiguous.
            deal: of `keys`.
        """
        pairs = np.empty(len(keys), self._pair)
        pairs["field"] = _fields(keys[groups.order])
        pairs["head"] = self._value_head
        pairs["row"] = rows.view(f"V{self.table.row_bytes}")[:, 0][groups.order]
        pairs["tail"] = b"\r\n"
        return self._commands(b"HSET", pairs, groups, words_per_key=2)

    def command(self, bucket: int, word: str, *rest: bytes | str | int) -> Command:
        """One command about a bucket: its name follows the first word."""
        return Command(self._slots[bucket], encode_command([word, self._names[bucket], *rest]))

    def note_command(self, note: str, word: str, *rest: bytes) -> Command:
        """One command about a note of the table."""
        name = f"{self._note_prefix}{note}}}".encode()
        return Command(key_slot(name), encode_command([word, name, *rest]))

    def memory_command(self, bucket: int) -> Command:
        """Asks Redis for its estimate of a bucket's memory."""
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

    # -- what comes back ------------------------------------------------------------

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
            replies: for each bucket a list, a row or None for each key.
            deal: of the keys.
            columns: the part of each row that is wanted.
            rows: ``(n, width of columns)``
            found: ``(n,)``

        Raises:
            CorruptDataError: a value is no row of this table.
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
            # As bytes: one copy each, whatever the dtype.
            void = f"V{self.table.row_bytes}"
            rows.view(void)[:, 0][groups.order] = whole.view(void)[:, 0]
        else:
            rows[groups.order] = whole[:, columns.begin : columns.end]

    def decode(self, values: Sequence[bytes]) -> Rows:
        """``(n, width)`` read-only rows.

        Raises:
            CorruptDataError: a value is no row of this table.
        """
        if not set(map(len, values)) <= {self.table.row_bytes}:
            wrong = next(len(each) for each in values if len(each) != self.table.row_bytes)
            raise CorruptDataError(
                f"table {self.table.name!r} in Redis: a value has {wrong} bytes, a row has "
                f"{self.table.row_bytes}; something else writes below {self._names[0].decode()} "
                "and its like: give it another prefix, and load the table from a snapshot",
                table=self.table.name,
            )
        joined = np.frombuffer(b"".join(values), self.table.numpy_dtype)
        return joined.reshape(-1, self.table.width)

    def decode_keys(self, fields: Sequence[bytes]) -> Keys:
        """``(n,)`` int64.

        Raises:
            CorruptDataError: a field is no key.
        """
        if not set(map(len, fields)) <= {8}:
            raise CorruptDataError(
                f"table {self.table.name!r} in Redis: a field has not the 8 bytes of a key; "
                f"something else writes below {self._names[0].decode()} and its like: give it "
                "another prefix, and load the table from a snapshot",
                table=self.table.name,
            )
        return np.frombuffer(b"".join(fields), "<i8").astype(np.int64)


def _fields(keys: Keys) -> npt.NDArray[Any]:
    fields = np.empty(len(keys), _FIELD)
    fields["head"] = b"$8\r\n"
    fields["key"] = keys
    fields["tail"] = b"\r\n"
    return fields
