"""A step over tables on a device by update methods of core: rows change in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.updates import MethodChoice
from sparring.engine.apply.commit import check_room, may_refuse
from sparring.engine.apply.device_owned_gradients import OwnedOnDevice
from sparring.engine.apply.device_step import writing_on_device
from sparring.engine.apply.write import count_refused, raise_interrupted
from sparring.engine.state import EngineState
from sparring.kernels.admission_filters import Decision, decide_unseen

__all__ = ["check_rooms_on_device", "write_methods_on_device"]


def check_rooms_on_device(state: EngineState, owned: Mapping[str, OwnedOnDevice]) -> None:
    """Refuses what does not fit before anything is written.

    The update of a single table on a single rank changes nothing where it raises, so nothing need
    be asked.
    """
    if len(state.tables.entries) == 1 and state.collective.world_size == 1:
        return
    for name, each in owned.items():
        _check_room(state, name, each)


def write_methods_on_device(
    state: EngineState,
    owned: Mapping[str, OwnedOnDevice],
    choices: Mapping[str, MethodChoice],
    after: Sequence[str] = (),
) -> list[str]:
    """Changes rows by update methods of core, a table at a time.

    Args:
        owned: gradients by table.
        choices: the method of each of them.
        after: the tables that the step changes after these.

    Returns:
        The tables that have changed: not those of which a filter admitted no key.

    Raises:
        DeviceMemoryError, DeviceError: the device failed or was full; no row has changed.
        PartialStepError: it did when other tables had changed already.
    """
    names, changed = list(owned), list[str]()
    for place, (name, each) in enumerate(owned.items()):
        try:
            num_changed = _write(state, name, each, choices[name])
        except Exception as error:
            raise_interrupted(
                state,
                error,
                changed,
                names[place : place + 1],
                [*names[place + 1 :], *after],
            )
        state.counters.rows_updated += num_changed
        if num_changed:
            changed.append(name)
    return changed


def _write(state: EngineState, name: str, owned: OwnedOnDevice, choice: MethodChoice) -> int:
    """Returns how many rows have changed."""
    entry = state.tables.entries[name]
    asked = None
    if entry.admission_filter is not None:
        asked = _Asked(entry.admission_filter, state.counters.steps + 1, owned.decision)
    with writing_on_device(state, name, owned.kernels, owned.keys) as write:
        change = owned.kernels.update_storage(
            state.tables.storage(name),
            choice,
            owned.keys,
            owned.gradients,
            entry.initial_state,
            admit=asked,
            keeps_evicted=write.keeps_evicted,
        )
        write.note_evicted(change.evicted)
    if asked is None:
        return len(owned.keys)
    num_refused = asked.record()
    count_refused(state, name, num_refused)
    return len(owned.keys) - num_refused


@dataclass(slots=True)
class _Asked:
    """Question to an admission filter, and its answer."""

    admission_filter: Any
    step: int
    decision: Decision | None
    """Its earlier answer about all keys that have no row; it is asked once."""
    answered: tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]] | None = None
    """Keys, and which of them were admitted."""

    def __call__(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        is_admitted: npt.NDArray[np.bool_]
        if self.decision is None:
            is_admitted = self.admission_filter.decide(keys, self.step)
        else:
            order = np.argsort(self.decision.unseen)
            places = np.searchsorted(self.decision.unseen, keys, sorter=order)
            is_admitted = self.decision.is_admitted[order[places]]
        self.answered = keys, is_admitted
        return is_admitted

    def record(self) -> int:
        """Counts the keys, now that the step was applied. Returns how many were refused."""
        if self.answered is None:
            return 0
        self.admission_filter.record(*self.answered)
        return int(np.count_nonzero(~self.answered[1]))


def _check_room(state: EngineState, name: str, owned: OwnedOnDevice) -> None:
    storage = state.tables.storage(name)
    if not may_refuse(storage):
        return
    # Asking waits for the device.
    capacity = storage.capacity
    assert capacity is not None
    if storage.size + len(owned.keys) <= capacity:
        return
    to_host, admission_filter = (
        owned.kernels.arrays.to_host,
        state.tables.entries[name].admission_filter,
    )
    found = to_host(owned.kernels.find_storage(storage, owned.keys, 1).found)
    is_found = np.asarray(found).astype(np.bool_)
    num_new = int(np.count_nonzero(~is_found))
    if admission_filter is not None and num_new:
        keys = np.ascontiguousarray(to_host(owned.keys))
        step = state.counters.steps + 1
        owned.decision = decide_unseen(admission_filter, keys, is_found, step)
        num_new -= owned.decision.num_refused
    check_room(storage, num_new)
