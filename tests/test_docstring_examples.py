"""The public names of core have examples and descriptions of arguments, and examples are correct."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[1] / "packages"
MODULES = sorted(
    ".".join(path.relative_to(source).with_suffix("").parts)
    for source in PACKAGES.glob("*/src")
    for path in source.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_print_the_shown_output(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"needs a package that is not installed: {error}")
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0


def is_public(name: str, member: object) -> bool:
    """Whether a member of a class is a public method that is written in Python."""
    return name[0] != "_" and (inspect.isfunction(member) or inspect.ismethod(member))


def find_calls(face: str) -> Iterator[tuple[str, str]]:
    """Yields the name and docstring of each public function or method with parameters."""
    module = importlib.import_module(face)
    for name in module.__all__:
        found = getattr(module, name)
        calls = {name: found} if inspect.isfunction(found) else {}
        if inspect.isclass(found):
            members = inspect.getmembers(found)
            calls = {f"{name}.{key}": each for key, each in members if is_public(key, each)}
        for call, function in calls.items():
            parameters = set(inspect.signature(function).parameters) - {"self"}
            if parameters and function.__module__.startswith("sparring"):
                yield call, inspect.getdoc(function) or ""


@pytest.mark.parametrize("face", ["sparring", "sparring.contracts", "sparring.adapter"])
def test_the_arguments_of_public_functions_are_described(face: str) -> None:
    calls = dict(find_calls(face))
    assert calls
    # Methods of kernel sets refer to the function that describes their arguments.
    described = re.compile(r"^Args:$|\AImplements `sparring\.kernels\.functions\.\w+`", re.M)
    assert [name for name, text in calls.items() if not described.search(text)] == []


def has_example(name: str, found: object) -> bool:
    """Whether the docstring has an example, or that of a base class or the module mentions the name.

    The reference page and the schema of configurations contain whole docstrings of settings, which
    therefore have no examples of their own.
    """
    own, *bases = getattr(found, "__mro__", (found,))
    shared = [each.__doc__ or "" for each in (*bases, importlib.import_module(own.__module__))]
    mention = re.compile(rf"^ *(>>>|\.\.\.) .*\b{name}\b", re.M)
    return ">>> " in (own.__doc__ or "") or any(map(mention.search, shared))


def test_each_public_class_and_function_has_an_example() -> None:
    module = importlib.import_module("sparring")
    found = {name: getattr(module, name) for name in module.__all__}
    callables = {name: each for name, each in found.items() if callable(each)}
    assert callables
    assert [name for name, each in callables.items() if not has_example(name, each)] == []
