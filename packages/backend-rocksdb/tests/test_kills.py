"""Processes that are killed while they write lose nothing that was acknowledged."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_killed_processes_lose_no_acknowledged_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    kills = importlib.import_module("reliability.rocksdb_kills")
    report = kills.run(4)
    assert report.failures == []
    assert report.trials == 4
    assert report.counts["calls acknowledged"] > 0
