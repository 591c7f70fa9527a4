"""A rank that ends, or is killed, while rows of a snapshot are loaded in the background.

    python -m …load_until_end FOLDER WAY IS_CLOSED BACKEND OPTIONS DEADLINE

WAY is how the program ends: ``end``, ``error``, ``interrupt``, ``too slow`` (a load that outlasts the
wait of the program), or ``use``, which looks up rows. The program writes ``RANK.started`` with its
process id when the first rows are loaded, ``RANK.loaded`` after all rows, and ``RANK.failed`` with the
error of its lookup. It loads the snapshot that `write_snapshot` wrote to FOLDER.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from sparring.collective.local import LocalGroup
from sparring.contracts.ranks.collective import Collective
from sparring.contracts.storage.results import EvictedRows, ScanChunk
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.plugins.option_checks import validate_options
from sparring.plugins.registry import make_plugin_manager
from sparring.rendezvous.environment import EnvironmentOptions, EnvironmentRendezvous
from sparring.runtime import events
from sparring.snapshot.format.manifest import TableDescription
from sparring.snapshot.row_router import SnapshotOptions
from sparring.snapshot.writer import SnapshotWriter
from sparring.storage.memory import MemoryStorage
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

TABLE = TableConfig("item", 4)
NUM_ROWS = 40_000

begun = threading.Event()


def write_snapshot(folder: Path) -> None:
    """A snapshot that is large enough to be read ahead, in several segments."""
    options = SnapshotOptions(num_ranges=4, buffer_bytes=1 << 17, small_bytes=1)
    writer = SnapshotWriter(str(folder / "snapshot"), step=1, options=options)
    keys = np.arange(NUM_ROWS)
    rows = np.full((NUM_ROWS, TABLE.dim), 3, np.float32)
    chunk = ScanChunk(keys, rows, np.zeros(NUM_ROWS, np.uint64))
    writer.write_table(TableDescription.of(TABLE), [chunk])
    writer.finish()
    writer.commit()


class _Slow(MemoryStorage):
    """Reports when rows arrive, and how many there were at the end."""

    def __init__(self, folder: Path, rank: int, seconds: float) -> None:
        super().__init__(TABLE)
        self._place, self._seconds = folder / f"{rank}", seconds

    def _restore_impl(self, *arguments: Any) -> EvictedRows:
        evicted = super()._restore_impl(*arguments)
        if not begun.is_set():
            _write(self._place.with_suffix(".started"), str(os.getpid()))
            begun.set()
        time.sleep(self._seconds)
        return evicted

    def _flush_impl(self) -> None:
        super()._flush_impl()
        _write(self._place.with_suffix(".loaded"), str(self.size))


def _end(container: StepContainer, way: str, folder: Path) -> None:
    if way == "error":
        raise RuntimeError("the model has a mistake")
    if way == "interrupt":
        # A background job of a shell ignores Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), 2)
        time.sleep(10)
    if way == "use":
        try:
            container.lookup(TABLE.name, np.arange(9))
        except Exception as error:
            said = {"class": type(error).__name__, "message": str(error), "time": time.time()}
            said["rank"] = getattr(error, "rank", None)
            _write(folder / f"{container.collective.rank}.failed", json.dumps(said))
            raise


def run(folder: Path, way: str, is_closed: bool, collective: Collective) -> None:
    rank = collective.rank
    rendezvous = ThreadRendezvous(collective.world_size)
    container = StepContainer(collective=collective, rendezvous=rendezvous)
    is_slow = way in {"too slow", "use"}
    container.declare(TABLE, _Slow(folder, rank, 1.0 if is_slow else 0.03))
    if way == "too slow":
        container.events.deadline_seconds, events.EXIT_SECONDS = 0.2, 0.2
    container.load(str(folder / "snapshot"), tables=[TABLE.name], blocking=False)
    begun.wait(10)
    if is_closed:
        with container:
            _end(container, way, folder)
    _end(container, way, folder)


def _write(path: Path, text: str) -> None:
    """Written atomically, so that a reader finds the whole text or no file."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(text)
    unfinished.rename(path)


def _main(folder: str, way: str, closed: str, backend: str, options: str, deadline: str) -> None:
    if backend == "local":
        run(Path(folder), way, closed == "closed", LocalGroup(1).join(0))
        return
    descriptor = make_plugin_manager().collective(backend)
    checked = validate_options("collective", descriptor, json.loads(options))
    membership = EnvironmentRendezvous(EnvironmentOptions()).membership()
    collective = descriptor.factory(membership, checked, float(deadline))
    run(Path(folder), way, closed == "closed", collective)


if __name__ == "__main__":
    _main(*sys.argv[1:])
