"""Flushed rows of a stack are durable: its last tier is flushed after it has the rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sparring.engine.container import StepContainer
from sparring.errors import StorageIOError
from sparring.runtime.events import EventLoop
from sparring.storage.memory import MemoryStorage
from sparring_tiered import TieredStorage

from ..faulty_storage import FaultyStorage
from .stacks import TABLE, memory, stack_of

KEYS = np.arange(60)
ROWS = np.arange(180, dtype=np.float32).reshape(60, 3)

WAYS = [
    {"write_back": "background"},
    {"write_back": "inline"},
    {"write": "through"},
]


class Disk(FaultyStorage):
    """A storage whose rows only outlive a power loss after a flush.

    Attributes:
        durable: key → row at the last flush.
        num_flushes: number of flushes.
    """

    def __init__(self) -> None:
        super().__init__(MemoryStorage(TABLE))
        self.capabilities = replace(self.inner.capabilities, persistent=True)
        self.durable: dict[int, list[float]] = {}
        self.num_flushes = 0

    def _flush_impl(self) -> None:
        super()._flush_impl()
        self.num_flushes += 1
        self.durable = {
            key: row
            for chunk in self.inner.scan()
            for key, row in zip(chunk.keys.tolist(), chunk.rows.tolist(), strict=True)
        }


@pytest.fixture
def events() -> Iterator[EventLoop]:
    with EventLoop() as made:
        yield made


def stack_over(disk: Disk, num_above: int, options: dict[str, Any]) -> TieredStorage:
    return stack_of(*(memory(8 * place) for place in range(1, num_above + 1)), disk, **options)


def rows_of(keys: Any) -> dict[int, list[float]]:
    return dict(zip(keys.tolist(), ROWS[keys].tolist(), strict=True))


@pytest.mark.parametrize("num_above", [1, 2])
@pytest.mark.parametrize("options", WAYS, ids=str)
def test_flushed_rows_outlive_a_power_loss(
    events: EventLoop, options: dict[str, Any], num_above: int
) -> None:
    disk = Disk()
    stack = stack_over(disk, num_above, options)
    stack.use_background(events)
    for number, end in enumerate((20, 40, 41), 1):
        stack.upsert(KEYS[:end], ROWS[:end])
        stack.flush()
        assert disk.durable == rows_of(KEYS[:end])
        assert disk.num_flushes == number
    stack.erase(KEYS[:7])
    stack.flush()
    assert disk.durable == rows_of(KEYS[7:41])
    stack.flush()  # nothing is new above: the last tier may have rows that are not durable
    assert disk.num_flushes == 5


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_rows_of_a_closed_stack_outlive_a_power_loss(
    events: EventLoop, options: dict[str, Any]
) -> None:
    disk = Disk()
    stack = stack_over(disk, 1, options)
    stack.use_background(events)
    stack.upsert(KEYS, ROWS)
    stack.close()
    assert disk.durable == rows_of(KEYS)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_rows_flushed_by_a_container_outlive_a_power_loss(options: dict[str, Any]) -> None:
    disk = Disk()
    with StepContainer() as container:
        container.declare(TABLE, stack_over(disk, 1, options))
        container.storage("films").upsert(KEYS, ROWS)
        container.flush()
        assert disk.durable == rows_of(KEYS)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_a_flush_that_fails_in_the_last_tier_is_reported(
    events: EventLoop, options: dict[str, Any]
) -> None:
    disk = Disk()
    stack = stack_over(disk, 1, options)
    stack.use_background(events)
    stack.upsert(KEYS, ROWS)
    stack.flush()
    disk.breakage = "lost"
    with pytest.raises(StorageIOError):
        stack.flush()
    disk.breakage = None
