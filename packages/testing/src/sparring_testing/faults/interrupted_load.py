"""Kills a process during a load, to test storages whose data survive the process.

    kill_during_load("rocksdb", {"path": str(folder)}, str(tmp_path / "snapshot"))

``python -m sparring_testing.faults.interrupted_load BACKEND OPTIONS URL`` runs that process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from sparring import StepContainer, StorageChoice, Uniform, open_storage
from sparring.adapter import parse_hyper, resolve_method
from sparring.contracts import (
    Keys,
    MethodChoice,
    Rows,
    Scores,
    Storage,
    TableConfig,
    interrupted_load,
)
from sparring.errors import InterruptedLoadError

__all__ = ["check_interrupted_load", "kill_during_load"]

TABLE = TableConfig("item", 8, "float32", Uniform(-1, 1))
NUM_ROWS = 1_000
START_SECONDS = 60
_METHOD = resolve_method("sgd")
_HYPER = parse_hyper(_METHOD, {"lr": 0.1})


def container_of(backend: str, options: Mapping[str, Any]) -> StepContainer:
    """Creates a container with one table that is stored in the backend."""
    container = StepContainer()
    container.declare(TABLE, StorageChoice(backend, options))
    container.set_state(TABLE.name, np.empty(0, np.float32), _METHOD.name)
    return container


def take_step(container: StepContainer) -> None:
    """Trains one step on some keys."""
    found = container.lookup(TABLE.name, np.arange(50))
    assert found.shadow_id is not None
    container.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
    choice = MethodChoice(_METHOD, _HYPER, container.counters.steps + 1)
    container.apply_methods({TABLE.name: choice})


def check_interrupted_load(backend: str, options: Mapping[str, Any], url: str) -> None:
    """Tests that an interrupted load is detected.

    Kills a process during a load. Training must then raise `InterruptedLoadError` until the snapshot
    is loaded again or the storage is cleared.

    Args:
        backend: name of a storage backend whose data survive the process and which declares `notes`.
        options: options of the storage; they are passed to the process as JSON.
        url: location at which a snapshot can be written.
    """
    with container_of("memory", {}) as container:
        keys = np.arange(NUM_ROWS)
        container.storage(TABLE.name).upsert(keys, np.ones((NUM_ROWS, TABLE.dim), np.float32))
        container.save(url)
    with container_of(backend, options) as container:
        take_step(container)
    kill_during_load(backend, options, url)
    with container_of(backend, options) as container:
        for _ in range(2):
            with pytest.raises(InterruptedLoadError, match=r"'item': a load of .* was cut short"):
                take_step(container)
            container.discard()
        container.load(url)
        assert container.num_rows(TABLE.name) == NUM_ROWS
        take_step(container)
    kill_during_load(backend, options, url)
    with open_storage(backend, TABLE, **options) as storage:
        assert interrupted_load(storage) == url
        assert storage.size < NUM_ROWS
        storage.clear()
    with container_of(backend, options) as container:
        take_step(container)
        assert container.num_rows(TABLE.name) == 50


def kill_during_load(backend: str, options: Mapping[str, Any], url: str) -> None:
    """Starts a process that loads a snapshot and kills it (SIGKILL) when half a chunk is stored."""
    command = [sys.executable, "-m", __name__, backend, json.dumps(options), url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
            told = os.read(process.stdout.fileno(), 16) if ready else b""
        finally:
            process.send_signal(signal.SIGKILL)
    if told != b"half":
        raise RuntimeError(f"the loading process must print b'half', found {told!r}: {command}")


def load_half(backend: str, options: Mapping[str, Any], url: str) -> None:
    """Loads until the process is killed. Runs in the process that `kill_during_load` starts."""

    def upsert_half(storage: Storage, keys: Keys, rows: Rows, _scores: Scores) -> None:
        storage.upsert(keys[: len(keys) // 2], rows[: len(keys) // 2])
        os.write(1, b"half")
        time.sleep(START_SECONDS)
        raise AssertionError("this process was not killed")

    Storage.upsert_from = upsert_half  # type: ignore[assignment,method-assign]
    with container_of(backend, options) as container:
        container.load(url)


if __name__ == "__main__":
    load_half(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3])
