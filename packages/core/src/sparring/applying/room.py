"""Refuses a step before its first write where a later write would be refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparring.errors import CapacityError
from sparring.storage.contract import Storage

if TYPE_CHECKING:
    from sparring.step import StepContainer

__all__ = ["check_room", "check_rooms", "may_refuse"]


def check_rooms(container: StepContainer, waiting: Mapping[str, Any], step: Any) -> None:
    """`check_room` of every table that a fused step will change."""
    for place, name in enumerate(waiting):
        storage = container.storage(name)
        if may_refuse(storage):
            check_room(storage, step.count_new(place))


def check_room(storage: Storage, num_new: int) -> None:
    """Refuses a step before its first write where a later write would be refused."""
    if not may_refuse(storage):
        return
    size, capacity = storage.size, storage.capacity
    assert capacity is not None
    if size + num_new > capacity:
        raise CapacityError(
            f"table {storage.table.name!r} holds {size} rows and may hold {capacity}; this step "
            f"would add {num_new}. No row was changed. Raise its capacity, or choose a policy "
            "that evicts",
            table=storage.table.name,
            capacity=capacity,
        )


def may_refuse(storage: Storage) -> bool:
    """Whether a write may find no room."""
    return not storage.capabilities.evicts and storage.capacity is not None
