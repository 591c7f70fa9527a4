"""Measures finds, updates and pools on this machine, for several widths of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparring import PluginManager, _native, open_storage, update_rows
from sparring.adapter import parse_hyper, resolve_method
from sparring.contracts import MethodChoice, TableConfig
from sparring_plan.planning.inputs import StorageCosts, UpdateCosts
from sparring_plan.simulation.calibration import measure_best_seconds

__all__ = ["METHODS", "WIDTHS", "MeasuredStorage", "pool_ns_per_byte", "measure_storage_costs"]

WIDTHS = (8, 32, 128)
METHODS = ("adagrad", "adam", "rowwise_adagrad", "sgd")
_IDS_PER_BAG = 16


@dataclass(frozen=True, slots=True)
class MeasuredStorage:
    """A storage to measure.

    Args:
        name: Name of its entry, and of its backend.
        memory: Kind of memory of its rows.
        options: Options to open it with.
        kept_options: Options to store in the calibration: how it is used, not where it is.
        num_rows: Number of rows of the measured table.
        num_keys: Number of keys per call.
        methods: Update methods.
    """

    name: str
    memory: str
    options: Mapping[str, Any]
    kept_options: Mapping[str, Any]
    num_rows: int
    num_keys: int
    methods: Sequence[str] = METHODS


def measure_storage_costs(asked: MeasuredStorage, manager: PluginManager) -> StorageCosts:
    """Measures a storage at each width, and fits lines to the results.

    A call for one row gives the latency; calls use random rows of the table, and each result is the
    minimum of several measurements.

    Raises:
        PluginError, StorageIOError: The storage cannot be opened, or fails.
    """
    finds: list[tuple[float, float]] = []
    singles: list[float] = []
    updates: dict[str, list[tuple[float, float]]] = {method: [] for method in asked.methods}
    for width in WIDTHS:
        for method in asked.methods:
            times = _time_storage(
                asked, manager, width, method, is_first=method == asked.methods[0]
            )
            updates[method].append((times.elements, times.update))
            if times.find is not None and times.single is not None:
                finds.append((4.0 * width, times.find))
                singles.append(times.single)
    find_ns, find_ns_per_byte = _line(finds)
    lines = {method: _line(points) for method, points in updates.items()}
    every = _line([point for points in updates.values() for point in points])
    # The latency is the time of a call beyond the work for its row.
    latency = max(0.0, min(singles) - find_ns * 1e-9)
    return StorageCosts(
        memory=asked.memory,
        options=dict(asked.kept_options),
        find_ns=find_ns,
        find_ns_per_byte=find_ns_per_byte,
        update_ns=every[0],
        update_ns_per_element=every[1],
        methods={
            method: UpdateCosts(update_ns=line[0], update_ns_per_element=line[1])
            for method, line in lines.items()
        },
        latency_us=_rounded(latency * 1e6),
        key_bytes=8,
        overhead=1.05,
    )


@dataclass(frozen=True, slots=True)
class _Times:
    elements: float
    """Elements per row, including state."""
    update: float
    """Seconds per row."""
    find: float | None
    single: float | None
    """Seconds of a call for one row."""


def _time_storage(
    asked: MeasuredStorage, manager: PluginManager, width: int, name: str, *, is_first: bool
) -> _Times:
    method = resolve_method(name, manager)
    table = TableConfig(
        f"calibration_{name}_{width}", width, state_width=method.state_width(width),
        state_method=name,
    )  # fmt: skip
    choice = MethodChoice(method, parse_hyper(method, {"lr": 0.01}), 1)
    random = np.random.default_rng(0)
    keys = random.permutation(asked.num_rows).astype(np.int64)
    # Use other keys in each call, because rows of the previous call are in the processor's caches.
    parts = cycle(np.array_split(keys, max(1, asked.num_rows // asked.num_keys)))
    gradients = np.ones((asked.num_rows, width), np.float32)
    num_keys = asked.num_rows / max(1, asked.num_rows // asked.num_keys)

    def update_some() -> int:
        some = next(parts)
        return update_rows(storage, some, gradients[: len(some)], choice)

    with open_storage(asked.name, table, plugin_manager=manager, **asked.options) as storage:
        try:
            rows = np.zeros((asked.num_rows, table.width), np.float32)
            storage.upsert(keys, rows)
            storage.flush()
            find = single = None
            if is_first:
                find = measure_best_seconds(lambda: storage.find(next(parts))) / num_keys
                single = measure_best_seconds(lambda: storage.find(next(parts)[:1]))
            update = measure_best_seconds(update_some) / num_keys
        finally:
            if storage.capabilities.persistent:
                storage.clear()
    return _Times(float(width + table.state_width), update, find, single)


def pool_ns_per_byte(num_rows: int = 200_000) -> float:
    """Returns the nanoseconds per byte to add a row to the pool of its bag: the median of the widths."""
    places = np.random.default_rng(0).integers(0, num_rows, 4096 * _IDS_PER_BAG)
    offsets = np.arange(0, len(places) + 1, _IDS_PER_BAG)

    def pooled(rows: NDArray[np.float32]) -> float:
        seconds = measure_best_seconds(lambda: _native.pool(rows, places, offsets, "sum", None))
        return float(seconds / len(places) / (4 * rows.shape[1]) * 1e9)

    each = [pooled(np.zeros((num_rows, width), np.float32)) for width in WIDTHS]
    return _rounded(float(np.median(each)))


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fits a line to points in seconds. Returns its value at 0 and its slope in nanoseconds, both ≥ 0."""
    x, seconds = np.asarray(points).T
    y = seconds * 1e9
    slope = max(0.0, float(np.polyfit(x, y, 1)[0])) if len(set(x)) > 1 else 0.0
    start = float(np.mean(y - slope * x))
    if start < 0:
        start, slope = 0.0, float(np.sum(x * y) / np.sum(x * x))
    return _rounded(start), _rounded(slope)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
