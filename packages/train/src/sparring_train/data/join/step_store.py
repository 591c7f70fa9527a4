"""The store of a join, with the changes of the last steps in memory.

Batches are read ahead of the steps that train them, but a snapshot contains the state after its step.
Therefore the changes of the last steps are written to the store later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from sparring_train.join_stores import JoinStore

__all__ = ["MAX_STEPS", "Change", "StepStore"]

Change = tuple[float | None, tuple[float, bytes] | None]
"""Time of the record before the change, or None; time and value after it, or None if it is removed."""

MAX_STEPS = 4
"""Maximum number of steps whose changes are in memory. Trainers read fewer batches ahead."""


class StepStore:
    """See the module.

    Args:
        store: the store of this rank.
    """

    def __init__(self, store: JoinStore) -> None:
        self._store = store
        self._steps: deque[tuple[int, dict[bytes, Change]]] = deque()

    def get(self, keys: Iterable[bytes]) -> dict[bytes, tuple[float, bytes] | None]:
        """Returns key → time and value, or None."""
        found: dict[bytes, tuple[float, bytes] | None] = {}
        rest = []
        for key in keys:
            for _, changes in reversed(self._steps):
                if key in changes:
                    found[key] = changes[key][1]
                    break
            else:
                rest.append(key)
        found.update(zip(rest, self._store.get(rest) if rest else [], strict=True))
        return found

    def scan(
        self, after: float, until: float, max_records: int
    ) -> list[tuple[float, bytes, bytes]]:
        """See `JoinStore.scan`."""
        recent: dict[bytes, Change] = {}
        num_replaced = 0
        for _, changes in self._steps:
            recent.update(changes)
            num_replaced += sum(
                old is not None and after < old <= until for old, _ in changes.values()
            )
        found = [
            each
            for each in self._store.scan(after, until, max_records + num_replaced)
            if each[1] not in recent
        ]
        found += [
            (new[0], key, new[1])
            for key, (_, new) in recent.items()
            if new is not None and after < new[0] <= until
        ]
        found.sort()
        return found[:max_records]

    def change(self, step: int, changes: dict[bytes, Change]) -> None:
        """Adds changes that belong to a step. Steps increase."""
        if self._steps and self._steps[-1][0] == step:
            last = self._steps[-1][1]
            for key, (old, new) in changes.items():
                last[key] = (last[key][0] if key in last else old, new)
            return
        self._steps.append((step, changes))
        if len(self._steps) > MAX_STEPS:
            self._write_oldest()

    def checkpoint(self, step: int, folder: str) -> None:
        """Writes all records as they were after a step to a folder.

        REQUIRES: at most the last `MAX_STEPS` steps are later.
        """
        while self._steps and self._steps[0][0] <= step:
            self._write_oldest()
        self._store.checkpoint(folder)

    def _write_oldest(self) -> None:
        _, changes = self._steps.popleft()
        removed = [(key, old) for key, (old, _) in changes.items() if old is not None]
        added = [(key, *new) for key, (_, new) in changes.items() if new is not None]
        self._store.write(removed, added)

    def close(self) -> None:
        """Closes the store. Changes in memory are lost."""
        self._store.close()
