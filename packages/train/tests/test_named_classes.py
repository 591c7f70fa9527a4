"""Classes in configurations: one syntax, and a message for every possible error."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from sparring.errors import ConfigError
from sparring_train.config.names import ClassName, KnownOrClassName
from sparring_train.named_classes import create, find_class


class Base:
    """Base class of all classes of this kind."""


class Sized(Base):
    """A class of this kind."""

    def __init__(self, first: int, size: int = 1) -> None:
        if size < 1:
            raise ValueError("size must be positive")
        self.first, self.size = first, size

    def measure(self) -> int:
        return self.size


def function() -> None:
    """Not a class."""


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    made = types.ModuleType("named")
    made.Sized, made.function, made.inner = Sized, function, types.SimpleNamespace(Sized=Sized)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "named", made)


def test_only_classes_that_fit_are_suggested() -> None:
    with pytest.raises(ConfigError, match="'functio'") as caught:
        find_class("named:functio", "a.key", Base)
    assert "Sized" in str(caught.value)
    assert "function'" not in str(caught.value)


def test_a_class_is_found_and_called() -> None:
    for name in ("named:Sized", "named:inner.Sized"):
        found = find_class(name, "a.key", Base, ["measure"])
        made = create(found, name, "a.key", 3, words="a number", options={"size": 2})
        assert isinstance(made, Sized)
        assert (made.first, made.size) == (3, 2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:Sized", "importing nowhere:Sized failed: No module named 'nowhere'; install"),
        ("named:Sizd", "named:Sizd was not found: named has no 'Sizd'; did you mean 'Sized'?"),
        ("named:function", "named:function is a function, expected a class derived from .*:Base"),
        ("builtins:dict", "builtins:dict is a class, expected a class derived from .*:Base"),
        ("broken:Sized", "broken:Sized: importing broken failed: RuntimeError: no; fix"),
    ],
)
def test_objects_that_are_not_a_class_of_the_kind_are_rejected(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('no')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=f"^a.key: {message}") as rejected:
        find_class(name, "a.key", Base)
    assert rejected.value.details["setting"] == "a.key"


def test_missing_methods_and_wrong_arguments_are_rejected() -> None:
    with pytest.raises(
        ConfigError, match=r"a.key: named:Sized has no method 'weigh', expected a class with"
    ):
        find_class("named:Sized", "a.key", methods=["measure", "weigh"])
    for options, why in (
        ({"sise": 1}, "unexpected keyword"),
        ({"size": 0}, "size must be positive"),
    ):
        with pytest.raises(
            ConfigError, match=f"a.key: named:Sized does not accept a number and .*{why}"
        ):
            create(Sized, "named:Sized", "a.key", 3, words="a number", options=options)


@pytest.mark.parametrize("name", ["a:B", "a.b:C", "a.b_1:C.d"])
def test_one_syntax_names_classes(name: str) -> None:
    assert TypeAdapter(ClassName).validate_python(name) == name
    assert TypeAdapter(KnownOrClassName).validate_python(name) == name


@pytest.mark.parametrize(
    "name", ["a.b.C", "a:", ":C", "a b:C", "a:B:C", "a..b:C", "a/b:C", "", "1:C"]
)
def test_other_syntaxes_are_rejected_with_the_intended_one(name: str) -> None:
    for kind in (ClassName, KnownOrClassName):
        with pytest.raises(ValidationError, match=r"package.module:Class") as rejected:
            TypeAdapter(kind).validate_python(name)
        assert ("did you mean a.b:C?" in str(rejected.value)) == (name == "a.b.C")
    assert TypeAdapter(KnownOrClassName).validate_python("adagrad") == "adagrad"
