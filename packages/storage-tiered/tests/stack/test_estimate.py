"""Estimates of the bytes of stacks before they are opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from sparring import PluginManager, make_plugin_manager, open_storage
from sparring.contracts import StorageDescriptor, TableConfig, hookimpl
from sparring.errors import PluginError
from sparring.plugins.distributions import PluginSource
from sparring.storage.memory import MemoryOptions, MemoryStorage

TABLE = TableConfig("films", 16)


class Silent:
    """A backend without an estimate."""

    @hookimpl
    def sparring_register_storage(self) -> list[StorageDescriptor]:
        return [
            StorageDescriptor(
                name="silent", api_version=(1, 0), options=MemoryOptions, factory=MemoryStorage
            )
        ]


def estimated(manager: PluginManager, num_rows: int, **options: Any) -> Mapping[str, int]:
    descriptor = manager.storage("tiered")
    assert descriptor.estimate_bytes is not None
    checked = descriptor.options.model_validate(options)
    return descriptor.estimate_bytes(TABLE, checked, num_rows, manager)


def filled(num_rows: int, **options: Any) -> int:
    with open_storage("tiered", TABLE, **options) as storage:
        for begin in range(0, num_rows, 4096):
            keys = np.arange(begin, min(begin + 4096, num_rows))
            storage.upsert(keys, np.zeros((len(keys), 16), np.float32))
        storage.flush()
        return storage.memory_bytes


@pytest.mark.parametrize(
    "tiers",
    [
        [{"backend": "memory", "budget_bytes": 1 << 20}, "memory"],
        [{"backend": "memory", "options": {"capacity": 3000, "policy": "lfu"}}, "memory"],
    ],
)
@pytest.mark.parametrize("num_rows", [2_000, 40_000])
def test_bytes_of_a_stack_are_the_sum_of_its_tiers_and_filters(tiers: Any, num_rows: int) -> None:
    manager = make_plugin_manager()
    told = estimated(manager, num_rows, tiers=tiers)
    assert told["host"] == pytest.approx(filled(num_rows, tiers=tiers), rel=0.1)
    memory = manager.storage("memory")
    assert memory.estimate_bytes is not None
    alone = memory.estimate_bytes(TABLE, memory.options(), num_rows)
    assert told["host"] > alone["host"]


def test_stack_on_a_backend_without_an_estimate_raises() -> None:
    manager = make_plugin_manager()
    manager.load(PluginSource("silent", "acme-silent", "1.0", Silent))
    tiers = [{"backend": "memory", "budget_bytes": 1 << 20}, "silent"]
    with pytest.raises(PluginError, match=r"its tier 1 \(silent\) does not provide"):
        estimated(manager, 10, tiers=tiers)
