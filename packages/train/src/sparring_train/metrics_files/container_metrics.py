"""Copies the counters of a container. Other threads can then read the copy during steps."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from sparring.adapter import TableEntry
from sparring.contracts import Storage, SupportsTiers
from sparring_cli import process_metrics
from sparring_train.report.step_times import PARTS, StepTimes

if TYPE_CHECKING:
    from sparring import StepContainer

__all__ = ["read_metrics"]


def read_metrics(container: StepContainer, *, counts_all: bool = False) -> dict[str, Any]:
    """Returns all counters of this rank as JSON values; see ``docs/reference/metrics.md``.

    Only the thread that runs steps may call it, so that no step or lookup changes counters during the
    copy. A save or a write-back may run at the same time, so its counters may not match each other.

    Args:
        counts_all: whether to count the rows of every storage, which may require a request to a server
            or a scan of a disk. If False, `rows` is None for tables whose number of rows is unknown.
            `memory_bytes` of persistent storages is always None.

    Raises:
        ClosedError: the container was closed.
        StorageIOError: a storage could not count its rows.
    """
    container.check_open()
    container.join_load()
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "rank": container.collective.rank,
        "steps": {**asdict(container.counters), **_read_times(container)},
        "saves": asdict(container.saves.counters),
        "prefetches": asdict(container.prefetches.counters),
        "exchange": asdict(container.exchange.counters),
        "events": {
            "num_outstanding": container.events.num_outstanding,
            "num_failed": container.events.num_failed,
        },
        "process": process_metrics(),
        "tables": {
            entry.config.name: _read_table(container, entry, counts_all=counts_all)
            for entry in container.entries()
        },
    }


def _read_times(container: StepContainer) -> dict[str, Any]:
    times = container.trace
    if not isinstance(times, StepTimes):
        return {}
    seconds = times.seconds()
    return {"seconds": {part: seconds[part] for part in PARTS}}


def _read_table(container: StepContainer, entry: TableEntry, *, counts_all: bool) -> dict[str, Any]:
    tiers: list[dict[str, Any]]
    name, storage = entry.config.name, entry.storage
    is_cheap = storage is None or _is_counted_at_once(storage)
    if counts_all:
        rows: int | None = container.num_rows_to_sum(name)
        tiers = [each.as_dict() for each in container.tier_counters(name)]
    else:
        rows = 0 if storage is None else _rows_at_once(storage)
        tiers = _tiers_at_once(container, entry)
    return {
        "rows": rows,
        "memory_bytes": container.table_bytes(name) if is_cheap else None,
        "not_admitted": container.num_not_admitted(name),
        "num_forgotten": container.num_forgotten(name),
        "tiers": tiers,
    }


def _tiers_at_once(container: StepContainer, entry: TableEntry) -> list[dict[str, Any]]:
    storage = entry.storage
    if not isinstance(storage, SupportsTiers):
        return [each.as_dict() for each in container.tier_counters(entry.config.name)]
    counted = storage.tier_counters(_is_counted_at_once)
    found: list[dict[str, Any]] = [dict(each.as_dict()) for each in counted]
    for tier, counters in zip(storage.tiers, found, strict=True):
        if not _is_counted_at_once(tier):
            counters["rows"] = None
    return found


def _rows_at_once(storage: Storage) -> int | None:
    if isinstance(storage, SupportsTiers):
        return storage.known_size
    return storage.size if _is_counted_at_once(storage) else None


def _is_counted_at_once(storage: Storage) -> bool:
    """Returns whether rows and bytes can be read without a request to a server or a scan of a disk."""
    return not storage.capabilities.persistent
