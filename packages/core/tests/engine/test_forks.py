"""Forked children: containers of the parent raise, new ones work, and no child hangs at its end."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from sparring.contracts.storage.results import Columns
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.errors import ClosedError
from sparring.storage.memory import MemoryStorage
from sparring_testing.processes.child_processes import run_fork

TABLE = TableConfig("rows", 4)
IDS = np.arange(10)


@pytest.fixture
def container() -> Iterator[StepContainer]:
    storage = MemoryStorage(TABLE)
    storage.upsert(IDS, np.ones((10, 4), np.float32))
    with StepContainer() as made:
        made.declare(TABLE, storage)
        yield made


CALLS: dict[str, Callable[[StepContainer], object]] = {
    "lookup": lambda container: container.lookup("rows", IDS),
    "prefetch": lambda container: container.prefetch([("rows", IDS)]),
    "apply": lambda container: container.apply(lambda *_: None),
    "save": lambda container: container.save("/nowhere"),
    "load": lambda container: container.load("/nowhere"),
    "flush": lambda container: container.flush(),
    "declare": lambda container: container.declare(TableConfig("others", 4)),
    "storage": lambda container: container.storage("rows"),
    "num_rows": lambda container: container.num_rows("rows"),
    "quiesce": lambda container: container.quiesce(),
    "join_load": lambda container: container.join_load(),
    "check_readable": lambda container: container.check_readable(["rows"]),
    "collection": lambda container: container.collection([("rows", "sum")]),
    "num_not_admitted": lambda container: container.num_not_admitted("rows"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_child_is_advised_to_spawn(call: str, container: StepContainer) -> None:
    parent = os.getpid()

    def work() -> None:
        with pytest.raises(ClosedError, match="start workers with spawn, or create it") as caught:
            CALLS[call](container)
        assert (caught.value.made_in, caught.value.used_in) == (parent, os.getpid())
        container.close()

    assert run_fork(work) == 0
    assert container.lookup("rows", IDS).rows.shape == (10, 4)


def test_a_child_forked_during_a_prefetch_does_not_wait_for_it(
    container: StepContainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, may_go_on, find = threading.Event(), threading.Event(), MemoryStorage.find_into

    def slow(storage: MemoryStorage, keys: Any, columns: Columns, *out: Any) -> None:
        has_begun.set()
        assert may_go_on.wait(20)
        find(storage, keys, columns, *out)

    monkeypatch.setattr(MemoryStorage, "find_into", slow)
    prefetch = container.prefetch([("rows", IDS)])
    assert has_begun.wait(20)

    def work() -> None:
        with pytest.raises(ClosedError, match="this StepContainer was created in process"):
            prefetch.finish()
        prefetch.drop()
        container.close()

    assert run_fork(work) == 0
    may_go_on.set()
    assert prefetch.finish()[0].rows.shape == (10, 4)


def test_a_child_trains_separate_tables(container: StepContainer) -> None:
    def work() -> None:
        with StepContainer() as own:
            own.declare(TABLE, MemoryStorage(TABLE))
            for _ in range(2):
                with own.step(lambda rows, *_: rows) as step:
                    step.lookup("rows", IDS)
            assert own.prefetch([("rows", IDS)]).finish()
            own.flush()
            assert own.counters.steps == 2

    assert run_fork(work) == 0


def test_a_child_that_exits_normally_leaves_background_work_to_its_parent() -> None:
    program = """
        import os, signal, sys, threading
        import numpy as np
        from sparring import StepContainer, TableConfig
        from sparring.storage.memory import MemoryStorage

        gate = threading.Event()
        container = StepContainer()
        container.declare(TableConfig("rows", 4), MemoryStorage(TableConfig("rows", 4)))
        container.prefetch([("rows", np.arange(9))])
        container.events.submit(lambda: (gate.wait(), os.write(1, b"parent\\n")))
        child = os.fork()
        if not child:
            signal.alarm(20)
            os.write(1, b"child\\n")
            sys.exit(3)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        gate.set()
        sys.exit(status)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "child\nparent\n"), done.stderr
