"""Tables in memory, and services over them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sparring.contracts import TableConfig
from sparring_serve import LookupService, ShardPosition, ShardReplicas
from sparring_serve.testing import MemoryTables

ITEM, USER = TableConfig("item", 4, seed=3), TableConfig("user", 2)


def rows_of_step(step: int) -> dict[str, dict[int, list[float]]]:
    """Rows in which every element is the step."""
    return {
        "item": {key: [step, key, -key, 0.5] for key in range(100)},
        "user": {key: [step, key] for key in range(0, 100, 2)},
    }


MakeTables = Callable[[], MemoryTables]


@pytest.fixture
def make_tables() -> MakeTables:
    return lambda: MemoryTables([ITEM, USER], rows_of_step(1))


@pytest.fixture
def tables(make_tables: MakeTables) -> MemoryTables:
    return make_tables()


@pytest.fixture
def service(tables: MemoryTables) -> LookupService:
    return LookupService(tables, ShardPosition(ShardReplicas((("a:1",),))), clock=lambda: 10.0)


@pytest.fixture
def ids() -> np.ndarray:
    """Ids with and without rows, some of them repeated."""
    return np.array([7, -1, 7, 99, 100, 2**63 - 1, -(2**63), 0], np.int64)
