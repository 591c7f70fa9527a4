"""Runs prefetches on a thread, and records the keys that steps change during a prefetch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from sparring.contracts.storage.results import Keys
from sparring.exchange.refresh import ChangedKeys
from sparring.runtime.lifecycle import at_exit
from sparring.runtime.threads import Threads

__all__ = ["PrefetchCounters", "PrefetchThread", "RunningPrefetch"]


@dataclass(slots=True)
class PrefetchCounters:
    """Totals of prefetches since the container was created."""

    lookups: int = 0
    """Number of finished prefetches."""
    rows: int = 0
    """Number of rows that finished prefetches returned."""
    rows_refreshed: int = 0
    """Number of these rows that were read again because a step had changed them."""
    wait_seconds: float = 0.0
    """Time that the driving thread waited for prefetches."""


@dataclass(slots=True, eq=False)
class RunningPrefetch:
    """A prefetch that was neither finished nor dropped."""

    future: Future[None]
    changed: dict[str, ChangedKeys]
    """Keys that were written since the prefetch started, by table."""


class PrefetchThread:
    """Runs the prefetches of a container, one at a time."""

    def __init__(self) -> None:
        self.counters = PrefetchCounters()
        self.unfinished: list[RunningPrefetch] = []
        self._thread = Threads("sparring-prefetch")
        # Exit functions run in reverse order, so this one runs before the end of the collective.
        at_exit(self.close)

    def begin(self, tables: Iterable[str], pull: Callable[[], None]) -> RunningPrefetch:
        """Starts a prefetch of rows of `tables`. No other prefetch may be running.

        Args:
            tables: names of the entries.
            pull: function that runs on the thread.
        """
        changed = {table: ChangedKeys() for table in tables}
        running = RunningPrefetch(self._thread.submit(pull), changed)
        self.unfinished.append(running)
        return running

    def end(self, running: RunningPrefetch) -> None:
        """Unregisters a prefetch that was finished or dropped."""
        self.unfinished.remove(running)

    def note(self, table: str, keys: Keys | None) -> None:
        """Records that the rows of `keys` change in `table`; None: any rows."""
        for running in self.unfinished:
            known = running.changed.get(table)
            if known is None:
                continue
            if keys is None:
                known.are_all = True
            else:
                known.parts.append(keys)

    def close(self) -> None:
        """Waits for the thread and ends it."""
        self._thread.close()
