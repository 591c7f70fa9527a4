"""Open impressions in memory, for short windows and for tests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow

__all__ = ["MemoryJoinStore"]

_FILE = "records.arrow"
_TIME = itemgetter(0)


class MemoryJoinStore:
    """See `sparring_train.JoinStore`.

    Args:
        folder: a folder that is empty or contains the file of a checkpoint.
        options: not used.
    """

    def __init__(self, folder: str, options: Any = None) -> None:
        self._records: dict[bytes, tuple[float, bytes]] = {}
        # Times and keys, also of records that were removed or replaced, until they are scanned.
        self._order: list[tuple[float, bytes]] = []
        path = Path(folder, _FILE)
        if path.exists():
            with pyarrow.ipc.open_file(path) as file:
                columns = file.read_all().to_pydict()
            self.write([], list(zip(*columns.values(), strict=True)))

    def get(self, keys: Sequence[bytes]) -> list[tuple[float, bytes] | None]:
        return [self._records.get(key) for key in keys]

    def write(
        self,
        removed: Sequence[tuple[bytes, float]],
        added: Sequence[tuple[bytes, float, bytes]],
    ) -> None:
        for key, _ in removed:
            del self._records[key]
        for key, time, value in added:
            self._records[key] = time, value
            self._order.append((time, key))

    def scan(
        self, after: float, until: float, max_records: int
    ) -> list[tuple[float, bytes, bytes]]:
        self._order.sort()
        found: list[tuple[float, bytes, bytes]] = []
        first = at = bisect_right(self._order, after, key=_TIME)
        while at < len(self._order) and self._order[at][0] <= until and len(found) < max_records:
            time, key = self._order[at]
            record = self._records.get(key)
            is_repeated = bool(found) and found[-1][:2] == (time, key)
            if record is not None and record[0] == time and not is_repeated:
                found.append((time, key, record[1]))
            at += 1
        self._order[first:at] = [each[:2] for each in found]
        return found

    def checkpoint(self, folder: str) -> None:
        Path(folder).mkdir()
        items = self._records.items()
        table = pyarrow.table(
            {
                "key": pyarrow.array([key for key, _ in items], pyarrow.large_binary()),
                "time": pyarrow.array([time for _, (time, _) in items], pyarrow.float64()),
                "value": pyarrow.array([value for _, (_, value) in items], pyarrow.large_binary()),
            }
        )
        with pyarrow.ipc.new_file(Path(folder, _FILE), table.schema) as file:
            file.write_table(table)

    def close(self) -> None:
        self._records.clear()
        self._order.clear()
