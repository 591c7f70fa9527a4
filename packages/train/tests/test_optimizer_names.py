"""Optimizers by their names in configurations; update methods are found first."""

from __future__ import annotations

from types import ModuleType

import pytest

from sparring import PluginManager, make_plugin_manager
from sparring.contracts import NativeMethod
from sparring.errors import ConfigError
from sparring_train.optimizer_names import (
    find_native_class,
    find_update_method,
    list_optimizer_classes,
)


class Base:
    """Base class of the optimizers of a framework."""


class Nesterov(Base):
    """An optimizer of a framework."""


@pytest.fixture
def module() -> ModuleType:
    made = ModuleType("frame.optimizers")
    made.Base, made.Nesterov, made.Stranger = Base, Nesterov, dict  # type: ignore[attr-defined]
    return made


@pytest.fixture
def manager() -> PluginManager:
    return make_plugin_manager()


def test_the_optimizers_of_a_module_are_the_classes_that_inherit(module: ModuleType) -> None:
    assert list_optimizer_classes(module, Base) == {"nesterov": Nesterov}


@pytest.mark.parametrize("name", ["nesterov", "Nesterov", f"{__name__}:Nesterov"])
def test_a_name_is_found_in_any_case_and_by_its_class(module: ModuleType, name: str) -> None:
    assert find_native_class(name, module, Base, "optimizer.name") is Nesterov


@pytest.mark.parametrize("name", ["nestorov", "builtins:dict", "stranger", f"{__name__}:Nestorov"])
def test_a_name_of_something_else_is_rejected(module: ModuleType, name: str) -> None:
    expected = r"optimizer.name: .*(has no|expected a class derived from)"
    with pytest.raises(ConfigError, match=expected) as refused:
        find_native_class(name, module, Base, "optimizer.name")
    assert refused.value.details["setting"] == "optimizer.name"


def test_an_update_method_comes_before_an_optimizer_of_its_name(manager: PluginManager) -> None:
    def never() -> Nesterov:
        raise AssertionError("nobody asked for an optimizer")

    assert isinstance(find_update_method("adam", manager, never), NativeMethod)
    assert isinstance(find_update_method("nesterov", manager, Nesterov), Nesterov)


def test_a_name_of_neither_is_rejected_with_both_lists(
    module: ModuleType, manager: PluginManager
) -> None:
    def make() -> type[Base]:
        return find_native_class("adan", module, Base, "a.name")

    with pytest.raises(ConfigError, match=r"frame.optimizers has no .* did you mean 'adam'"):
        find_update_method("adan", manager, make)
