"""Fixtures for tests of the whole checkout."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("benchmarks", "fuzz", "reliability", "sessions", "soak")
"""Folders of programs that are not installed."""


@pytest.fixture
def import_program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a module of a program of this checkout, such as ``benchmarks.chart``, for one test."""
    monkeypatch.syspath_prepend(str(ROOT))
    for name in [each for each in sys.modules if each.split(".")[0] in PROGRAMS]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module


@pytest.fixture(scope="session")
def movielens() -> Path:
    """The real ratings of ml-latest-small."""
    folder = Path(os.environ.get("SPARRING_TEST_DATA", ROOT.parent / "shared" / "data"))
    path = folder / "ml-latest-small" / "ratings.csv"
    if not path.exists():
        pytest.skip(f"needs {path}; SPARRING_TEST_DATA names the folder above ml-latest-small")
    return path
