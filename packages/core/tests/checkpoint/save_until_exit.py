"""A training that ends in different ways while a slow save runs in the background.

python save_until_exit.py FOLDER WAY IS_CLOSED
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

from sparring.contracts.checkpoint import SaveOptions
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.runtime import events
from sparring_testing.faults.faulty_disk import faulty_disk

TABLES = [TableConfig(name, 4) for name in ("item", "user", "tag", "day", "zone")]

begun = threading.Event()
sync_seconds = 0.2


def slow(point: str) -> None:
    if point == "fsync rows":
        begun.set()
        time.sleep(sync_seconds)


disk = faulty_disk(slow)  # here, so that it lasts to the very end


def end(way: str) -> None:
    if way == "exit":
        sys.exit(3)
    if way == "error":
        raise RuntimeError("the model diverged")
    if way == "interrupt":
        # A background job of a shell ignores Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), 2)
        time.sleep(10)


def main(folder: Path, way: str, is_closed: bool) -> None:
    container = StepContainer()
    for table in TABLES:
        container.declare(table, StorageChoice("memory"))
    fill(container, 1)
    container.save(str(folder / "one"))
    fill(container, 2)
    # A save uses the deadline of its options, not the deadline of other work.
    container.events.deadline_seconds = events.EXIT_SECONDS = 0.1
    options = SaveOptions()
    if way == "too slow":
        global sync_seconds
        sync_seconds, options = 60.0, SaveOptions(deadline_seconds=0.2)
    disk.__enter__()
    container.save(str(folder / "two"), blocking=False, options=options)
    begun.wait(10)
    fill(container, 3)
    if is_closed:
        with container:
            end(way)
    end(way)


def fill(container: StepContainer, number: int) -> None:
    """Writes a number into all rows."""
    for table in TABLES:
        rows = np.full((1000, table.dim), number, np.float32)
        container.storage(table.name).upsert(np.arange(1000), rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "closed")
