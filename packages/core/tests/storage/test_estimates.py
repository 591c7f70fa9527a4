"""Estimates of storages before there are any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import estimate_bytes, make_plugin_manager, open_storage
from sparring.contracts import StorageDescriptor, TableConfig, hookimpl
from sparring.errors import InvalidArgumentError, PluginError
from sparring.plugins.distributions import PluginSource
from sparring.storage.memory import MemoryOptions, MemoryStorage

TABLE = TableConfig("films", 16)


class Silent:
    """A backend that estimates nothing."""

    @hookimpl
    def sparring_register_storage(self) -> list[StorageDescriptor]:
        return [
            StorageDescriptor(
                name="silent", api_version=(1, 0), options=MemoryOptions, factory=MemoryStorage
            )
        ]


def filled(backend: str, num_rows: int, **options: Any) -> int:
    with open_storage(backend, TABLE, **options) as storage:
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
def test_bytes_of_a_stack_are_those_of_its_tiers_and_filters(tiers: Any, num_rows: int) -> None:
    told = estimate_bytes("tiered", TABLE, num_rows, tiers=tiers)
    assert told is not None
    assert told["host"] == pytest.approx(filled("tiered", num_rows, tiers=tiers), rel=0.1)
    alone = estimate_bytes("memory", TABLE, num_rows)
    assert alone is not None
    assert told["host"] > alone["host"]


def test_capacity_bounds_the_estimate() -> None:
    told = [estimate_bytes("memory", TABLE, rows, capacity=500) for rows in (500, 5_000)]
    assert told[0] == told[1]


def test_backend_without_an_estimate_says_none_and_a_stack_on_it_refuses() -> None:
    manager = make_plugin_manager(entry_points=False)
    manager.load(PluginSource("silent", "acme-silent", "1.0", Silent))
    assert estimate_bytes("silent", TABLE, 10, manager) is None
    tiers = [{"backend": "memory", "budget_bytes": 1 << 20}, "silent"]
    with pytest.raises(PluginError, match=r"its tier 1 \(silent\) gives none"):
        estimate_bytes("tiered", TABLE, 10, manager, tiers=tiers)


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="at least 0, found -1"):
        estimate_bytes("memory", TABLE, -1)
    with pytest.raises(PluginError, match="hkw"):
        estimate_bytes("hkw", TABLE, 1)
    with pytest.raises(InvalidArgumentError, match="unknown option 'folder'"):
        estimate_bytes("memory", TABLE, 1, folder=tmp_path)
