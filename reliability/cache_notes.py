"""Ten million changed keys: a cache in front of a backend applies all notes and misses none.

Notes of up to a million changed keys are published one after another. After each, every row of the cache
is compared with the backend. The last note contains all keys. Backend and cache are tables in memory, so
that the notes, the filters and the re-reading are tested.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from reliability.report import Report
from reliability.small_snapshots import scratch_folder
from sparring import StepContainer, StorageChoice, TableConfig, open_storage
from sparring_tiered import CachedStorage, ChangePublisher, FolderLog, RefreshOptions

__all__ = ["TRIALS", "run"]

TRIALS = 10_000_000

_TABLE = TableConfig("item", 1, initializer="zeros")
_KEYS_OF_NOTE = 1_000_000
_AT_ONCE = 262_144


def run(trials: int) -> Report:
    """Changes `trials` keys in several notes, and then all in one."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    # An odd factor maps each position to a different key.
    with np.errstate(over="ignore"):
        keys = (np.arange(trials, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
    parts = [keys[begin : begin + _KEYS_OF_NOTE] for begin in range(0, trials, _KEYS_OF_NOTE)]
    with scratch_folder() as folder, StepContainer() as container:
        container.declare(_TABLE, StorageChoice("hkv"))
        storage = container.storage("item")
        _write(storage, keys, 1)
        with ChangePublisher(container, url=str(folder)) as publisher:
            publisher.publish(0)
            reader = CachedStorage(
                _TABLE,
                open_storage("hkv", _TABLE),
                storage,
                FolderLog(str(folder), "item"),
                RefreshOptions(poll_seconds=3600),
            )
            for begin in range(0, trials, _AT_ONCE):
                reader.find(keys[begin : begin + _AT_ONCE])
            for step, part in enumerate([*parts, keys], 1):
                _write(storage, part, step + 1)
                publisher.publish(step)
                reader.refresh()
                before = reader.counters().misses
                missed = 0
                for begin in range(0, trials, _AT_ONCE):
                    asked = keys[begin : begin + _AT_ONCE]
                    differs = reader.find(asked).rows != storage.find(asked).rows
                    missed += int(np.count_nonzero(differs))
                if missed:
                    failures.append(f"note {step}: {missed} rows differ from the backend")
                counts["notes"] += 1
                counts["changed keys"] += len(part)
                counts["keys that were not cached"] += reader.counters().misses - before
            counts["keys read again"] = reader.counters().reread_rows
            reader.close()
    return Report(trials, counts, failures)


def _write(storage: object, keys: object, version: int) -> None:
    for begin in range(0, len(keys), _AT_ONCE):  # type: ignore[arg-type]
        part = keys[begin : begin + _AT_ONCE]  # type: ignore[index]
        storage.upsert(part, np.full((len(part), 1), version, np.float32))  # type: ignore[attr-defined]
