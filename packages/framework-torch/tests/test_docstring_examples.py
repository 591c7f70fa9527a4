"""Examples in docstrings run and give the results that they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import sparring_torch

pytest.importorskip("sparring_hkv", reason="examples use the default storage")

ROOT = Path(sparring_torch.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0
