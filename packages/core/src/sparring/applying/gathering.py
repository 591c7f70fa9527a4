"""The rows that a step will change, in arrays: found or made, and admitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sparring import _native
from sparring.admission import Decision, decide_unseen
from sparring.applying.room import check_room
from sparring.applying.table_update import TableUpdate
from sparring.exchange import OwnedGradients
from sparring.row_parts import computing_rows

if TYPE_CHECKING:
    from sparring.step import StepContainer

__all__ = ["Gathered", "gather_rows"]


@dataclass(slots=True)
class Gathered:
    """What a step will change, and what will be counted when it has."""

    updates: list[TableUpdate]
    decisions: dict[str, Decision]


def gather_rows(
    container: StepContainer, owned: Mapping[str, OwnedGradients], steps: Mapping[str, int]
) -> Gathered:
    """The rows that gradients will change, in arrays.

    Args:
        owned: table → its gradients, some in each.
        steps: table → the step that is given to its `TableUpdate`.
    """
    gathered = Gathered([], {})
    for name, each in owned.items():
        entry = container.entry(name)
        storage = container.storage(name)
        keys, gradients = each.keys, each.gradients
        if each.found is not None:
            rows, found = each.found.rows, each.found.found
        else:
            rows = np.empty((len(keys), entry.config.width), entry.config.numpy_dtype)
            found = np.empty(len(keys), np.bool_)
            storage._find_impl(keys, entry.whole, rows, found)
        if entry.admission_filter is not None and not found.all():
            decision = decide_unseen(
                entry.admission_filter, keys, found, container.counters.steps + 1
            )
            gathered.decisions[name] = decision
            keys, gradients = keys[decision.is_kept], gradients[decision.is_kept]
            rows, found = rows[decision.is_kept], found[decision.is_kept]
        if not len(keys):
            continue
        check_room(storage, int(len(found) - np.count_nonzero(found)))
        _native.initialize(rows, keys, found, entry.initializer, entry.initial_state)
        rows = computing_rows(entry.config, rows)
        gathered.updates.append(TableUpdate(entry.config, keys, rows, gradients, steps[name]))
    return gathered
