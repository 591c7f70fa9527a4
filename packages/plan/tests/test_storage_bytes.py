"""Estimates of storages before they are opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparring import PluginManager, make_plugin_manager
from sparring.contracts import StorageDescriptor, TableConfig, hookimpl
from sparring.errors import InvalidArgumentError, PluginError
from sparring.plugins.distributions import PluginSource
from sparring.storage.memory import MemoryOptions, MemoryStorage
from sparring_plan.planning.costs.storage_bytes import estimate_bytes

TABLE = TableConfig("films", 16)


@pytest.fixture
def plugins() -> PluginManager:
    return make_plugin_manager()


class Silent:
    """A backend without an estimate."""

    @hookimpl
    def sparring_register_storage(self) -> list[StorageDescriptor]:
        return [
            StorageDescriptor(
                name="silent", api_version=(1, 0), options=MemoryOptions, factory=MemoryStorage
            )
        ]


def test_capacity_bounds_the_estimate(plugins: PluginManager) -> None:
    told = [estimate_bytes("memory", TABLE, rows, plugins, capacity=500) for rows in (500, 5_000)]
    assert told[0] == told[1]


def test_backend_without_an_estimate_returns_none() -> None:
    manager = make_plugin_manager(entry_points=False)
    manager.load(PluginSource("silent", "acme-silent", "1.0", Silent))
    assert estimate_bytes("silent", TABLE, 10, manager) is None


def test_invalid_arguments_are_rejected(tmp_path: Path, plugins: PluginManager) -> None:
    with pytest.raises(InvalidArgumentError, match="at least 0, found -1"):
        estimate_bytes("memory", TABLE, -1, plugins)
    with pytest.raises(PluginError, match="hkw"):
        estimate_bytes("hkw", TABLE, 1, plugins)
    with pytest.raises(InvalidArgumentError, match="unknown option 'folder'"):
        estimate_bytes("memory", TABLE, 1, plugins, folder=tmp_path)
