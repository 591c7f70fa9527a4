"""Scalars that no optimizer uses are saved again only as long as they describe the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables.entry import TableScalars


@pytest.fixture
def made() -> StepContainer:
    made = StepContainer()
    made.declare(TableConfig("item", 2, initializer="zeros"))
    made.set_state("item", np.zeros(2, np.float32), "Adagrad")
    return made


def step(made: StepContainer) -> None:
    found = made.lookup("item", np.arange(3))
    assert found.shadow_id is not None
    made.resources.accumulate(found.shadow_id, np.ones((len(found.keys), 2), np.float32))

    def add_one(updates: Any) -> None:
        for each in updates:
            each.rows += 1

    made.apply(add_one)


SAVED = {"method": "Adagrad", "values": {"step": 7}}


def test_loaded_scalars_are_unknown_after_a_step(made: StepContainer) -> None:
    entry = made.entry("item")
    entry.load_scalars(SAVED)
    assert entry.save_scalars() == SAVED
    step(made)
    assert entry.save_scalars() is None


def test_an_optimizer_learns_that_they_are_unknown(made: StepContainer) -> None:
    entry, written = made.entry("item"), list[Any]()
    entry.load_scalars(SAVED)
    step(made)
    entry.attach_scalars(TableScalars("Adagrad", lambda: {"step": 9}, written.append))
    assert written == [None]
    step(made)
    assert entry.save_scalars() == {"method": "Adagrad", "values": {"step": 9}}
