"""The rows that a step will change, in arrays: found or made, and admitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sparring import _native
from sparring.contracts.results import Keys, Rows
from sparring.contracts.table import TableConfig
from sparring.engine.apply.commit import check_room
from sparring.engine.state import EngineState
from sparring.exchange.messages import OwnedGradients
from sparring.kernels.admission_filters import Decision, decide_unseen
from sparring.kernels.mixed_precision import computing_rows

__all__ = ["Gathered", "TableUpdate", "Update", "gather_rows"]


@dataclass(slots=True)
class TableUpdate:
    """Rows and gradients of one table for an update, which changes `rows` in place.

    Arrays are NumPy's; or, where a framework handed in its own on a device, those of the framework
    there, as `sparring.contracts.kernels.DeviceArray`.
    """

    table: TableConfig
    keys: Keys
    """``(u,)``"""
    rows: Rows
    """``(u, dim + state_width)`` of the computing dtype: embedding, then state."""
    gradients: Rows
    """``(u, dim)`` of the computing dtype."""
    step: int
    """The number of this step, from 1: rounding to 16 bits is seeded by it."""


class Update(Protocol):
    """Changes the rows of all updates in place, in one call for a step."""

    def __call__(self, updates: Sequence[TableUpdate], /) -> None: ...


@dataclass(slots=True)
class Gathered:
    """Updates of a step, and the admissions that are counted once it was written."""

    updates: list[TableUpdate]
    decisions: dict[str, Decision]


def gather_rows(
    state: EngineState, owned: Mapping[str, OwnedGradients], steps: Mapping[str, int]
) -> Gathered:
    """The rows that gradients will change, in arrays.

    Args:
        owned: table → its gradients, some in each.
        steps: table → the step that is given to its `TableUpdate`.
    """
    gathered = Gathered([], {})
    for name, each in owned.items():
        entry = state.tables.entries[name]
        storage = state.tables.storage(name)
        keys, gradients = each.keys, each.gradients
        if each.found is not None:
            rows, found = each.found.rows, each.found.found
        else:
            rows = np.empty((len(keys), entry.config.width), entry.config.numpy_dtype)
            found = np.empty(len(keys), np.bool_)
            storage.find_into(keys, entry.whole, rows, found)
        if entry.admission_filter is not None and not found.all():
            decision = decide_unseen(entry.admission_filter, keys, found, state.counters.steps + 1)
            gathered.decisions[name] = decision
            keys, gradients = keys[decision.is_kept], gradients[decision.is_kept]
            rows, found = rows[decision.is_kept], found[decision.is_kept]
        if not len(keys):
            continue
        check_room(storage, int(len(found) - np.count_nonzero(found)))
        _native.initialize(rows, keys, found, entry.initializer, entry.initial_state)
        if entry.config.is_16_bit:
            rows = computing_rows(entry.config, rows)
        gathered.updates.append(TableUpdate(entry.config, keys, rows, gradients, steps[name]))
    return gathered
