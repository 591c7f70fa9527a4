"""Contract of stores for open impressions: records of variable size, by key and by time.

A join opens one store on each rank, in a folder of its own, and uses it from one thread. After a crash
it continues from a checkpoint, so writes need not be durable before `JoinStore.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["JoinStore"]


class JoinStore(Protocol):
    """An open store. Each record has a key, a time and a value."""

    def get(self, keys: Sequence[bytes]) -> list[tuple[float, bytes] | None]:
        """Returns time and value of each key, or None.

        Args:
            keys: keys of any length.
        """

    def write(
        self,
        removed: Sequence[tuple[bytes, float]],
        added: Sequence[tuple[bytes, float, bytes]],
    ) -> None:
        """Removes records, and then adds records.

        REQUIRES: `removed` contains each key of `added` that has a record.

        Args:
            removed: key and present time of each record to remove.
            added: key, time and value of each new record; each key occurs once.
        """

    def scan(
        self, after: float, until: float, max_records: int
    ) -> list[tuple[float, bytes, bytes]]:
        """Returns time, key and value of the first records, in the order of times, then of keys.

        Args:
            after: time before the first record.
            until: maximum time.
            max_records: maximum number of records.
        """

    def checkpoint(self, folder: str) -> None:
        """Writes all records to files, from which a store can be opened.

        Args:
            folder: the folder to create. It contains no subfolders.
        """

    def close(self) -> None:
        """Closes the store. Its folder is then removed."""
