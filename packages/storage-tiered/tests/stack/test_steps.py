"""Steps of a container over stacks: background failures are raised before any row changes."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.collective.local import LocalGroup
from sparring.contracts.ranks.collective import Collective
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.errors import DeadlineError, StorageIOError
from sparring.runtime.events import BackgroundError
from sparring.storage.memory import MemoryStorage
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_tiered import TieredStorage

from ..faulty_storage import FaultyStorage
from .stacks import KEYS, TABLE, memory, stack_of

PLAIN = TableConfig("actors", 3)
ROOM = 15 * (TABLE.row_bytes + 16)


class Ones:
    """An update that sets the rows of a step to its number."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, updates: Any) -> None:
        self.number += 1
        for update in updates:
            update.rows[:] = self.number


def declare(container: StepContainer, last: FaultyStorage, **options: Any) -> StepContainer:
    """A plain table, and one whose last tier may fail; both are written by each step."""
    container.declare(PLAIN, MemoryStorage(PLAIN))
    container.declare(TABLE, stack_of(memory(10), last, **options))
    return container


def step(container: StepContainer, update: Ones, begin: int, *, count: int = 10) -> None:
    keys = KEYS[begin : begin + count]
    with container.step(update) as driven:
        for name in ("actors", "films"):
            driven.accumulate(driven.lookup(name, keys), np.ones((count, 3), np.float32))


def test_the_step_after_a_failure_raises_before_any_row_changes(last: FaultyStorage) -> None:
    update = Ones()
    with declare(StepContainer(), last) as container:
        step(container, update, 0)
        last.breakage = "writes"
        step(container, update, 10)
        container.events.drain()
        with pytest.raises(BackgroundError, match="tier 'memory' failed") as told:
            step(container, update, 20)
        assert isinstance(told.value.__cause__, StorageIOError)
        assert container.num_rows("actors") == container.num_rows("films") == 20
        last.breakage = None
        step(container, update, 20)
        container.events.drain()
        assert container.num_rows("actors") == container.num_rows("films") == 30
        films = container.storage("films")
        assert np.array_equal(
            films.find(KEYS[:30]).rows[:, 0], container.storage("actors").find(KEYS[:30]).rows[:, 0]
        )
        assert isinstance(films, TieredStorage)
        assert films.num_buffered_rows == 0


def test_a_step_that_would_wait_too_long_changes_no_table(last: FaultyStorage) -> None:
    update = Ones()
    with declare(StepContainer(), last, buffer_bytes=ROOM, deadline_seconds=0.1) as container:
        step(container, update, 0)
        last.breakage = "hung"
        step(container, update, 10)
        assert last.is_amid_write.wait(10)
        with pytest.raises(DeadlineError, match="did not end within"):
            step(container, update, 20)
        assert container.num_rows("actors") == container.num_rows("films") == 20
        last.breakage = None
        step(container, update, 20)
        assert container.num_rows("actors") == container.num_rows("films") == 30


def test_a_failure_on_one_rank_changes_no_row_on_any(last: FaultyStorage) -> None:
    group = LocalGroup(2, deadline_seconds=30)

    def run(collective: Collective) -> list[int]:
        update = Ones()
        lower = FaultyStorage(MemoryStorage(TABLE)) if collective.rank else last
        made = StepContainer(collective=collective, rendezvous=ThreadRendezvous(2))
        with declare(made, lower) as container:
            rows = []
            for begin in (0, 30):
                step(container, update, begin, count=30)
            container.events.drain()
            if lower is last:
                last.breakage = "writes"
            step(container, update, 60, count=30)
            container.events.drain()
            rows.append(container.num_rows("films"))
            with pytest.raises(BackgroundError, match="writing rows to tier"):
                step(container, update, 0, count=100)
            rows.append(container.num_rows("films"))
            last.breakage = None
            collective.barrier()
            step(container, update, 0, count=100)
            rows.append(container.num_rows("films"))
            found = container.lookup("films", KEYS)
            assert (found.rows == 4).all()
            return rows

    with ThreadPoolExecutor(2) as threads:
        counts = [
            each.result() for each in [threads.submit(run, group.join(rank)) for rank in range(2)]
        ]
    assert [sum(each) for each in zip(*counts, strict=True)] == [90, 90, 100]


PROGRAM = """\
import sys, time
import numpy as np
from sparring import StepContainer, TableConfig
from sparring.storage.memory import MemoryOptions, MemoryStorage
from sparring_tiered import TieredOptions, TieredStorage

TABLE = TableConfig("films", 3)
written = set()

class Slow(MemoryStorage):
    def _upsert_impl(self, keys, rows, scores):
        time.sleep(0.2)
        written.update(keys.tolist())
        print(len(written), flush=True)
        return super()._upsert_impl(keys, rows, scores)

first = MemoryStorage(TABLE, MemoryOptions(capacity=10, policy="lru"))
stack = TieredStorage(TABLE, TieredOptions(tiers=("memory", "memory")),
                      [("memory", first), ("slow", Slow(TABLE))])
container = StepContainer()
container.declare(TABLE, stack)
for begin in range(0, 50, 10):
    keys = np.arange(begin, begin + 10)
    container.storage("films").upsert(keys, np.zeros((10, 3), np.float32))
print("written", len(written), flush=True)
sys.exit(3)
"""


def test_a_program_that_exits_writes_its_buffered_rows(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 3, ended.stderr
    lines = ended.stdout.splitlines()
    assert int(lines[-1]) == 40, ended.stdout
    assert "written" in ended.stdout
