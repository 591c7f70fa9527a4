"""Tables in memory, and stacks of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.storage.memory import MemoryOptions, MemoryStorage
from sparring_tiered import TieredOptions, TieredStorage

__all__ = ["KEYS", "ROWS", "TABLE", "memory", "stack_of"]

TABLE = TableConfig("films", 3)
KEYS = np.arange(100)
ROWS = np.arange(300, dtype=np.float32).reshape(100, 3)


def memory(
    capacity: int | None = None, policy: str = "lru", table: TableConfig = TABLE
) -> MemoryStorage:
    chosen: Any = policy if capacity else "none"
    return MemoryStorage(table, MemoryOptions(capacity=capacity, policy=chosen))


def stack_of(*tiers: Storage, **options: Any) -> TieredStorage:
    made = TieredOptions(tiers=("memory",) * len(tiers), **options)
    return TieredStorage(tiers[0].table, made, [("memory", tier) for tier in tiers])
