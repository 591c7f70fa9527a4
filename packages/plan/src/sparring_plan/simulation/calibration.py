"""Measures parameters of the simulation on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sparring import LocalGroup, _native, open_storage
from sparring.adapter import pass_messages
from sparring.contracts import TableConfig

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["Calibration", "measure_best_seconds", "calibrate"]

_NUM_ROWS, _NUM_KEYS, _NUM_MESSAGES, _ROUNDS = 200_000, 16_384, 500, 7


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measurements of one rank of this machine; see `Compute` and `Network`."""

    find_seconds_per_row: float
    add_seconds_per_row: float
    move_seconds_per_row: float
    message_seconds: float


def calibrate(
    dim: int, backend: str = "hkv", plugin_manager: PluginManager | None = None
) -> Calibration:
    """Measures for about a second, on one rank. The minimum of several rounds is used.

    Args:
        dim: Elements of an embedding, float32.
        backend: Storage whose finds are measured.

    Raises:
        PluginError: The backend is not installed.
    """
    table = TableConfig("calibration", dim)
    random = np.random.default_rng(0)
    keys = random.permutation(_NUM_ROWS).astype(np.int64)
    some = np.ascontiguousarray(keys[:_NUM_KEYS])
    rows = np.zeros((_NUM_ROWS, dim), np.float32)
    with open_storage(backend, table, plugin_manager=plugin_manager) as storage:
        storage.upsert(keys, rows)
        find = measure_best_seconds(lambda: storage.find(some)) / _NUM_KEYS
    gradients = rows[:_NUM_KEYS]
    accumulator = _native.GradientAccumulator(dim, table.computing_dtype.name)
    accumulator.add(some, gradients)
    add = measure_best_seconds(lambda: accumulator.add(some, gradients)) / _NUM_KEYS
    places = random.permutation(_NUM_KEYS).astype(np.int64)
    move = measure_best_seconds(lambda: _native.place_rows(gradients, places, rows)) / _NUM_KEYS
    return Calibration(find, add, move, _message_seconds())


def _message_seconds() -> float:
    """Measures half of the time of a message that one thread both sends and receives."""
    with LocalGroup(2).join(0) as collective:
        best = measure_best_seconds(lambda: pass_messages(collective, _NUM_MESSAGES))
    return best / _NUM_MESSAGES / 2


def measure_best_seconds(call: Callable[[], object]) -> float:
    """Returns the minimum duration of several calls."""
    times = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)
