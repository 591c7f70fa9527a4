"""A program that ends during a background load waits for it, and the other ranks are notified."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sparring.snapshot.chain import scan_rows
from sparring.snapshot.reader import open_snapshot
from sparring_testing.processes.child_processes import ChildProcesses, wait_for
from sparring_testing.processes.rank_launchers import gloo_environment, importing, needs_gloo

from . import load_until_end
from .load_until_end import NUM_ROWS, TABLE, write_snapshot

MODULE = [sys.executable, "-m", load_until_end.__name__]
WORLD_SIZE = 2
DEADLINE_SECONDS = 30.0

WAYS = {
    "end": (0, ""),
    "error": (1, "RuntimeError: the model has a mistake"),
    "interrupt": (-2, "KeyboardInterrupt"),
}


@pytest.fixture(autouse=True)
def snapshot(tmp_path: Path) -> None:
    write_snapshot(tmp_path)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MODULE, str(folder), *arguments, "local", "{}", "5"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **importing(__name__)},
    )


@pytest.mark.parametrize("way", ["end", "interrupt", pytest.param("error", marks=pytest.mark.long)])
def test_a_program_that_exits_without_closing_waits_for_its_rows(way: str, tmp_path: Path) -> None:
    ended = run(tmp_path, way, "left open")
    code, message = WAYS[way]
    assert (ended.returncode, message in ended.stderr) == (code, True), ended.stderr
    assert (tmp_path / "0.loaded").read_text() == str(NUM_ROWS)
    assert "at exit" not in ended.stderr


@pytest.mark.parametrize("way", ["end", "error", pytest.param("interrupt", marks=pytest.mark.long)])
def test_a_block_that_ends_waits_for_its_rows_unless_by_an_error(way: str, tmp_path: Path) -> None:
    ended = run(tmp_path, way, "closed")
    code, message = WAYS[way]
    assert (ended.returncode, message in ended.stderr) == (code, True), ended.stderr
    assert "BackgroundError" not in ended.stderr
    assert (tmp_path / "0.loaded").exists() == (way == "end")


def test_a_program_does_not_wait_forever(tmp_path: Path) -> None:
    ended = run(tmp_path, "too slow", "left open")
    assert ended.returncode == 0
    assert "at exit: load of" in ended.stderr
    assert not (tmp_path / "0.loaded").exists()


def test_files_are_read_even_if_no_thread_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    chunks = list(scan_rows(open_snapshot(str(tmp_path / "snapshot")), TABLE.name))
    assert len(chunks) > 4
    assert sum(map(len, chunks)) == NUM_ROWS


def start_ranks(
    child_processes: ChildProcesses, folder: Path, way: str
) -> list[subprocess.Popen[str]]:
    options = json.dumps({"init_method": f"file://{folder}/meeting"})
    command = [*MODULE, str(folder), way, "left open", "torch", options, str(DEADLINE_SECONDS)]
    return [
        child_processes.start(
            command, {**importing(__name__), **gloo_environment(rank, WORLD_SIZE)}
        )
        for rank in range(WORLD_SIZE)
    ]


@pytest.mark.slow  # the ranks import torch
@needs_gloo
def test_ranks_wait_for_their_rows_before_they_exit(
    child_processes: ChildProcesses, tmp_path: Path
) -> None:
    processes = start_ranks(child_processes, tmp_path, "end")
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, "at exit" in errors) == (0, False), errors
    loaded = [int((tmp_path / f"{rank}.loaded").read_text()) for rank in range(WORLD_SIZE)]
    assert sum(loaded) == NUM_ROWS


@pytest.mark.slow  # the ranks import torch; test_load_on_ranks has the failures of threads
@needs_gloo
def test_survivors_name_a_rank_that_is_killed_while_all_load(
    child_processes: ChildProcesses, tmp_path: Path
) -> None:
    start_ranks(child_processes, tmp_path, "use")
    victim = random.randrange(WORLD_SIZE)
    started = [int(wait_for(tmp_path / f"{rank}.started", 60)) for rank in range(WORLD_SIZE)]
    os.kill(started[victim], signal.SIGKILL)
    for rank in {*range(WORLD_SIZE)} - {victim}:
        said = json.loads(wait_for(tmp_path / f"{rank}.failed", DEADLINE_SECONDS + 60))
        assert (said["class"], said["rank"]) == ("PeerFailure", victim), said
        assert not (tmp_path / f"{rank}.loaded").exists()
