"""The commands, trainers and hooks of sparring-train are where the documentation says."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import sparring_train
from sparring import make_plugin_manager
from sparring.contracts import Descriptor
from sparring.errors import PluginError
from sparring_train import hookspecs
from sparring_train.hookspecs import (
    DataDescriptor,
    JoinStoreDescriptor,
    ModelDescriptor,
    StreamDescriptor,
    TrackerDescriptor,
    TrainerDescriptor,
)
from sparring_train.registered_kinds import find_trainer

PAGE = (Path(__file__).parents[3] / "docs/reference/hooks.md").read_text()


def test_every_public_name_has_its_object() -> None:
    for name in sparring_train.__all__:
        assert getattr(sparring_train, name).__name__ == name


def test_its_commands_are_offered() -> None:
    offers = {each.name: each for each in make_plugin_manager().descriptors()}
    assert {offers[name].distribution for name in ("train", "config")} == {"sparring-train"}


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_each_framework_has_its_trainer(framework: str) -> None:
    manager = make_plugin_manager()
    assert find_trainer(framework, manager).name == framework
    assert find_trainer(framework, manager).name == framework


def test_a_framework_without_a_trainer_is_rejected_by_name() -> None:
    with pytest.raises(
        PluginError, match=r"trainer 'acme' is unknown \(installed: tensorflow, torch\)"
    ):
        find_trainer("acme", make_plugin_manager())


def test_the_reference_page_has_every_hook_with_its_exact_signature() -> None:
    for name, hook in vars(hookspecs).items():
        if name.startswith("sparring_register_"):
            signature = str(inspect.signature(hook)).replace("'", "")
            description = " ".join((hook.__doc__ or "").split())
            assert f"| `{name}{signature}` | {description} |" in PAGE, f"{name}{signature}"


def test_the_reference_page_has_every_field_of_every_descriptor() -> None:
    fields = {
        "trainers": (TrainerDescriptor, {"train", "open", "export", "parameters"}),
        "data": (DataDescriptor, {"section", "open", "pin", "read"}),
        "streams": (StreamDescriptor, {"open"}),
        "join_stores": (JoinStoreDescriptor, {"open"}),
        "trackers": (TrackerDescriptor, {"open", "package"}),
        "models": (ModelDescriptor, {"section", "build"}),
    }
    for kind, (descriptor, expected) in fields.items():
        own = set(descriptor.__dataclass_fields__) - set(Descriptor.__dataclass_fields__)
        assert own == expected
        assert all(f"| `{name}` | {kind} |" in PAGE for name in own)
