"""A forked child leaves the database to its parent: it neither hangs nor damages it."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sparring import StepContainer, StorageChoice, open_storage
from sparring.contracts import Storage, TableConfig, write_note
from sparring.errors import ClosedError, StorageIOError
from sparring_testing.processes.child_processes import run_fork

TABLE = TableConfig("films", 3)
KEYS = np.arange(5_000)
ROWS = np.ones((5_000, 3), np.float32)


CALLS: dict[str, Callable[[Storage], object]] = {
    "find": lambda storage: storage.find(KEYS),
    "upsert": lambda storage: storage.upsert(KEYS, 2 * ROWS),
    "scan": lambda storage: list(storage.scan()),
    "size": lambda storage: storage.size,
    "flush": lambda storage: storage.flush(),
    "note": lambda storage: write_note(storage, "load", "nothing"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_child_cannot_use_the_storage_of_its_parent(call: str, tmp_path: Path) -> None:
    with open_storage("rocksdb", TABLE, path=tmp_path) as storage:
        storage.upsert(KEYS, ROWS)

        def body() -> None:
            with pytest.raises(ClosedError, match="opened before this process was forked"):
                CALLS[call](storage)

        assert run_fork(body) == 0
        assert (storage.find(KEYS).rows == 1).all()


def test_a_child_cannot_open_the_folder_of_its_parent(tmp_path: Path) -> None:
    with open_storage("rocksdb", TABLE, path=tmp_path):

        def body() -> None:
            with pytest.raises(StorageIOError, match="opened before this process was forked"):
                open_storage("rocksdb", TABLE, path=tmp_path)

        assert run_fork(body) == 0


@pytest.mark.parametrize("way", ["collects", "closes"])
def test_a_child_exits_and_its_parent_continues(way: str, tmp_path: Path) -> None:
    tiers = [
        {"backend": "memory", "options": {"capacity": 500, "policy": "lru"}},
        {"backend": "rocksdb", "options": {"path": str(tmp_path)}},
    ]
    container = StepContainer()
    container.declare(TABLE, StorageChoice("tiered", {"tiers": tiers}))
    container.storage(TABLE.name).upsert(KEYS, ROWS)

    def body() -> None:
        nonlocal container
        if way == "closes":
            container.close()
        if way == "collects":
            del container
            gc.collect()

    assert run_fork(body) == 0
    with container:
        storage = container.storage(TABLE.name)
        storage.upsert(KEYS, 2 * ROWS)
        assert (storage.find(KEYS).rows == 2).all()


PROGRAM = """
import os, signal, sys
from sparring import TableConfig, open_storage

storage = open_storage("rocksdb", TableConfig("films", 3), path=sys.argv[1])
child = os.fork()
if not child:
    signal.alarm(10)
    print("said by the child")
    sys.exit(3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_that_exits_normally_waits_for_no_thread_of_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (3, "said by the child\n"), ended.stderr
