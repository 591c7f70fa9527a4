"""Hooks that another package declares: plugins with them also load without that package."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest

from sparring.contracts.descriptors import Descriptor, StorageDescriptor
from sparring.contracts.hookspecs import hookimpl, hookspec
from sparring.errors import PluginError
from sparring.plugins.distributions import PluginSource
from sparring.plugins.registry import DISABLE_VARIABLE, PluginManager, make_plugin_manager
from sparring_testing.processes.plugin_site import Site

TRAINER = """
    from sparring.contracts import CommandDescriptor, hookimpl

    @hookimpl
    def sparring_register_commands():
        return [CommandDescriptor(name="greet", api_version=(1, 0), register=print)]

    @hookimpl(optionalhook=True)
    def sparring_register_trainers():
        from sparring_train.hookspecs import TrainerDescriptor

        return [TrainerDescriptor(name="acme", api_version=(1, 0), train=print)]
"""


@dataclass(frozen=True, kw_only=True)
class WheelDescriptor(Descriptor):
    """The descriptor of the hook `sparring_register_wheels`."""


WHEEL = WheelDescriptor(name="front", api_version=(1, 0))


def extend(manager: PluginManager) -> None:
    """Adds the hook, like the package that declares it."""

    def sparring_register_wheels() -> list[WheelDescriptor]:  # type: ignore[empty-body]
        """Wheels that this plugin offers."""

    specs = ModuleType("acme_hookspecs")
    vars(specs)["sparring_register_wheels"] = hookspec(sparring_register_wheels)
    manager.extend(specs, {"wheels": WheelDescriptor})


def load_offering(manager: PluginManager, wheels: Callable[[], list[WheelDescriptor]]) -> None:
    """Loads a plugin with the storage `acme`, and with wheels if that hook is declared."""

    class Plugin:
        @hookimpl
        def sparring_register_storage(self) -> list[StorageDescriptor]:
            return [replace(manager.storage("memory"), name="acme")]

        @hookimpl(optionalhook=True)
        def sparring_register_wheels(self) -> list[WheelDescriptor]:
            return wheels()

    manager.load(PluginSource("acme", "acme-store", "1.0", Plugin))


@pytest.fixture
def manager() -> PluginManager:
    return make_plugin_manager(entry_points=False)


def test_threads_that_add_a_hook_at_once_find_all_of_its_descriptors(
    manager: PluginManager,
) -> None:
    is_loading = threading.Event()

    def wheels() -> list[WheelDescriptor]:
        is_loading.set()
        time.sleep(0.2)  # The other thread adds the hook meanwhile.
        return [WHEEL]

    def extend_second() -> WheelDescriptor:
        assert is_loading.wait(10)
        extend(manager)
        return manager.find("wheels", "front", WheelDescriptor)

    load_offering(manager, wheels)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(extend_second)
        extend(manager)
    assert second.result() is WHEEL


def test_a_plugin_with_a_trainer_loads_with_only_core_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DISABLE_VARIABLE, "sparring-train")
    monkeypatch.setitem(sys.modules, "sparring_train", None)
    Site(tmp_path / "site", monkeypatch).install("acme-train", TRAINER)
    manager = make_plugin_manager()
    assert "greet" in {each.name for each in manager.commands()}
    assert "acme_train" not in {each.plugin for each in manager.load_errors()}


def test_a_hook_that_is_declared_later_is_then_called(manager: PluginManager) -> None:
    load_offering(manager, lambda: [WHEEL])
    with pytest.raises(PluginError, match="wheel 'front' is unknown"):
        manager.find("wheels", "front", WheelDescriptor)
    extend(manager)
    assert manager.find("wheels", "front", WheelDescriptor) is WHEEL
    assert manager.storage("acme").name == "acme"
    extend(manager)
    assert manager.find("wheels", "front", WheelDescriptor) is WHEEL


def test_all_hooks_of_a_plugin_that_is_loaded_later_are_called(manager: PluginManager) -> None:
    extend(manager)
    load_offering(manager, lambda: [WHEEL])
    assert manager.find("wheels", "front", WheelDescriptor) is WHEEL


def test_a_plugin_whose_later_hook_fails_is_rejected_as_a_whole(manager: PluginManager) -> None:
    load_offering(manager, lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    assert manager.storage("acme").name == "acme"
    extend(manager)
    (refusal,) = manager.load_errors()
    assert refusal.reason.startswith("ZeroDivisionError")
    with pytest.raises(PluginError, match=r"'acme' cannot be used: .*ZeroDivisionError"):
        manager.storage("acme")
    assert "acme" not in {each.name for each in manager.descriptors()}
    assert manager.storage("memory").name == "memory"
