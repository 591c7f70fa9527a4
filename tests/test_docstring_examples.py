"""The examples in docstrings print the shown output."""

from __future__ import annotations

import doctest
import importlib
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
