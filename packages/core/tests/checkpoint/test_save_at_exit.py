"""A program that ends while a background save runs finishes the save first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sparring.snapshot.chain import scan_rows
from sparring.snapshot.reader import open_snapshot
from sparring.snapshot.retention import list_snapshots, retain

PROGRAM = Path(__file__).with_name("save_until_exit.py")

WAYS = {
    "end": (0, ""),
    "exit": (3, ""),
    "error": (1, "RuntimeError: the model diverged"),
    "interrupt": (-2, "KeyboardInterrupt"),
}


def numbers_in(url: Path) -> set[float]:
    """All numbers in the rows of all tables."""
    snapshot = open_snapshot(url)
    chunks = (chunk for name in snapshot.tables for chunk in scan_rows(snapshot, name))
    return {float(number) for chunk in chunks for number in np.unique(chunk.rows)}


SHORT = {
    ("end", "left open"),
    ("interrupt", "left open"),
}
SLOW = {("exit", "closed"), ("error", "left open")}


@pytest.mark.parametrize(
    ("way", "closed"),
    [
        pytest.param(
            way,
            closed,
            marks=[]
            if (way, closed) in SHORT
            else pytest.mark.slow
            if (way, closed) in SLOW
            else pytest.mark.long,
        )
        for way in WAYS
        for closed in ("closed", "left open")
    ],
)
def test_a_program_that_exits_finishes_its_save(way: str, closed: str, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path), way, closed]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    code, message = WAYS[way]
    assert (ended.returncode, message in ended.stderr) == (code, True), ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    assert (numbers_in(tmp_path / "one"), numbers_in(tmp_path / "two")) == ({1.0}, {2.0})


@pytest.mark.parametrize("closed", ["closed", "left open"])
def test_a_save_that_is_not_awaited_leaves_the_older_snapshot(closed: str, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path), "too slow", closed]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=25, check=False)
    assert ended.returncode == (1 if closed == "closed" else 0), ended.stderr
    assert "background work has not ended within 0.2 s: save of" in ended.stderr
    assert list_snapshots(str(tmp_path)) == [str(tmp_path / "one")]
    assert numbers_in(tmp_path / "one") == {1.0}
    retain(tmp_path, 2, stale_seconds=0)
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
