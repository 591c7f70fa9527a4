"""Changelog of a table, stored in Redis next to its rows.

    sparring:{item:changes}   hash     17 → note 17, 18 → note 18, kept → 17,18; base → the base

One HSET writes a note and adds it to the list of kept notes, so the write is atomic and can be repeated.
A separate command removes old notes afterwards.
"""

from __future__ import annotations

from typing import Any

from redis.crc import key_slot

from sparring.contracts import ChangeLog
from sparring_redis.connections.client import Command
from sparring_redis.connections.client_factory import open_client
from sparring_redis.connections.connection import encode_command
from sparring_redis.options import RedisOptions

__all__ = ["RedisChangeLog"]


class RedisChangeLog(ChangeLog):
    """Changelog of one table.

    Args:
        table: name of the table.
        options: options of the storage that contains the rows.

    Raises:
        InvalidArgumentError: a password, or a file for TLS, cannot be read.
    """

    def __init__(self, table: str, options: RedisOptions) -> None:
        self._name = f"{options.prefix}:{{{table}:changes}}"
        self._slot = key_slot(self._name.encode())
        self._client = open_client(options, f"change notes of table {table!r}")

    @property
    def place(self) -> str:
        return f"{self._client.topology.place}, name {self._name}"

    def append(self, sequence: int, note: bytes, keep: int) -> None:
        numbers = [*self._kept(), sequence]
        old, kept = numbers[:-keep], numbers[-keep:]
        self._ask("HSET", str(sequence), note, "kept", ",".join(map(str, kept)), is_write=True)
        if old:
            self._ask("HDEL", *map(str, old), is_write=True)

    def newest(self) -> int:
        return max(self._kept(), default=0)

    def read(self, sequence: int) -> bytes | None:
        return self._get(str(sequence))

    def write_base(self, base: bytes) -> None:
        self._ask("HSET", "base", base, is_write=True)

    def read_base(self) -> bytes | None:
        return self._get("base")

    def close(self) -> None:
        self._client.close()

    def _kept(self) -> list[int]:
        kept = self._get("kept") or b""
        return [int(each) for each in kept.split(b",") if each]

    def _get(self, field: str) -> bytes | None:
        found: bytes | None = self._ask("HMGET", field)[0]
        return found

    def _ask(self, word: str, *rest: str | bytes, is_write: bool = False) -> Any:
        command = Command(self._slot, encode_command([word, self._name, *rest]))
        return self._client.run([command], word, is_write=is_write)[0]
