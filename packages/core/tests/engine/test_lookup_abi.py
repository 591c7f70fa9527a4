"""Lookups by table number, as by a native caller."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import _native
from sparring.contracts.storage.results import EvictedRows
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import ClosedError, InterruptedLoadError, SnapshotDamagedError
from sparring.storage.load import begin_load
from sparring.storage.memory import MemoryStorage
from sparring_testing.processes.child_processes import run_fork

INVALID_ARGUMENT, CLOSED, FLOAT32 = 1, 3, 1


class Error(ctypes.Structure):
    pass


Error._fields_ = [
    ("message", ctypes.c_char_p),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(Error))),
    ("owner", ctypes.c_void_p),
]


class Gather(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint64),
        ("count", ctypes.c_int64),
        ("ids", ctypes.c_void_p),
        ("dim", ctypes.c_int64),
        ("type", ctypes.c_int32),
        ("out", ctypes.c_void_p),
        ("error", Error),
    ]


class Lookups(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("struct_bytes", ctypes.c_uint64),
        ("gather", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.POINTER(Gather))),
        ("pool", ctypes.c_void_p),
    ]


def gathered(number: int, ids: Any, dim: int = 4) -> tuple[int, str, Any]:
    """Returns status, message and embeddings."""
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.argtypes, pointer_of.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    address = pointer_of(_native.lookups(), b"sparring.lookups")
    lookups = ctypes.cast(address, ctypes.POINTER(Lookups)).contents
    assert lookups.major == 1
    out = np.zeros((len(ids), dim), np.float32)
    asked = Gather(ctypes.sizeof(Gather), len(ids), ids.ctypes.data, dim, FLOAT32, out.ctypes.data)
    status = lookups.gather(number, ctypes.byref(asked))
    message = (asked.error.message or b"").decode()
    if status:
        asked.error.release(ctypes.byref(asked.error))
    return status, message, out


@pytest.fixture
def ids() -> Any:
    return np.array([7, -1, 7, 2**62], np.int64)


def test_rows_equal_a_lookup_in_python(ids: Any) -> None:
    with StepContainer() as container:
        container.declare(TableConfig("rows", 4))
        publication = _native.Publication()
        publication.show(container.collection([("rows", "sum")]))
        status, _, found = gathered(publication.number, ids)
        looked_up = container.lookup("rows", ids, is_registered=False)
    assert status == 0
    assert np.array_equal(found, looked_up.rows[looked_up.inverse])


def test_a_number_shows_its_last_publication(ids: Any) -> None:
    publication = _native.Publication()
    found = []
    for name in ("one", "other"):
        container = StepContainer()
        container.declare(TableConfig(name, 4))
        publication.show(container.collection([(name, "sum")]))
        found.append(gathered(publication.number, ids)[2])
    assert not np.array_equal(*found)


def test_a_rejecting_number_reports_the_reason_until_it_shows_rows_again(ids: Any) -> None:
    with StepContainer() as container:
        container.declare(TableConfig("rows", 4))
        publication = _native.Publication()
        for _ in range(2):
            publication.show(container.collection([("rows", "sum")]))
            assert gathered(publication.number, ids)[0] == 0
            publication.refuse("rows are of step 7")
            refused = gathered(publication.number, ids)
            assert refused[:2] == (INVALID_ARGUMENT, "rows are of step 7")
        number = publication.number
        del publication
        assert "tables do not exist" in gathered(number, ids)[1]


def test_failed_lookups_are_reported(ids: Any) -> None:
    container = StepContainer()
    container.declare(TableConfig("rows", 4))
    publication = _native.Publication()
    number = publication.number
    assert gathered(number, ids)[0] == CLOSED
    publication.show(container.collection([("rows", "sum")]))
    status, message, _ = gathered(number, ids, dim=8)
    assert (status, message) == (INVALID_ARGUMENT, "dim must be 4, found 8")
    container.close()
    assert "is closed" in gathered(number, ids)[1]
    del publication
    assert "tables do not exist" in gathered(number, ids)[1]


def test_lookups_by_number_wait_for_a_background_load(ids: Any, tmp_path: Path) -> None:
    url = str(tmp_path / "saved")
    table = TableConfig("rows", 4)
    with StepContainer() as container:
        container.declare(table, StorageChoice("memory"))
        container.storage("rows").upsert(np.unique(ids), np.full((3, 4), 3, np.float32))
        container.save(url)
    storage = MemoryStorage(table)
    restore, has_begun, may_go_on = storage._restore_impl, threading.Event(), threading.Event()
    failures = [SnapshotDamagedError("a bit is gone"), None]

    def slow(*arguments: Any) -> EvictedRows:
        has_begun.set()
        assert may_go_on.wait(20)
        failure = failures.pop(0)
        if failure is not None:
            raise failure
        return restore(*arguments)

    storage._restore_impl = slow  # type: ignore[method-assign]
    with StepContainer() as container, ThreadPoolExecutor(1) as threads:
        container.declare(table, storage)
        publication = _native.Publication()
        publication.show(container.collection([("rows", "sum")]))
        number = publication.number
        loading = container.load(url, blocking=False)
        assert has_begun.wait(20)
        asking = threads.submit(gathered, number, ids)
        assert not wait([asking], 0.2).done
        may_go_on.set()
        status, message, _ = asking.result(20)
        assert status == CLOSED
        assert "was cut short" in message
        with pytest.raises(SnapshotDamagedError):
            loading.result(20)
        container.load(url, blocking=False)
        status, _, found = gathered(number, ids)
        assert (status, (found == 3).all()) == (0, True)


def test_a_table_cleared_after_a_partial_load_can_be_looked_up_again(ids: Any) -> None:
    with StepContainer() as container:
        container.declare(TableConfig("rows", 4), StorageChoice("memory"))
        publication = _native.Publication()
        publication.show(container.collection([("rows", "sum")]))
        entry = container.entry("rows")
        begin_load(container.storage("rows"), "elsewhere")
        entry.view.begin_load()
        entry.end_load()
        assert gathered(publication.number, ids)[0] == CLOSED
        container.state.tables.open(entry).clear()
        container.check_readable(["rows"])
        assert gathered(publication.number, ids)[0] == 0


@pytest.mark.parametrize("blocking", [False, True])
def test_a_child_forked_during_a_load_is_rejected(blocking: bool, ids: Any, tmp_path: Path) -> None:
    url = str(tmp_path / "saved")
    table = TableConfig("rows", 4)
    with StepContainer() as container:
        container.declare(table, StorageChoice("memory"))
        container.storage("rows").upsert(np.unique(ids), np.full((3, 4), 3, np.float32))
        container.save(url)
    storage = MemoryStorage(table)
    restore, has_begun, may_go_on = storage._restore_impl, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> EvictedRows:
        has_begun.set()
        assert may_go_on.wait(20)
        return restore(*arguments)

    storage._restore_impl = slow  # type: ignore[method-assign]
    with StepContainer() as container, ThreadPoolExecutor(3) as threads:
        container.declare(table, storage)
        publication = _native.Publication()
        publication.show(container.collection([("rows", "sum")]))
        number = publication.number
        loading = threads.submit(
            lambda: container.load(url) if blocking else container.load(url, blocking=False)
        )
        assert has_begun.wait(20)
        asking = threads.submit(gathered, number, ids)
        assert not wait([asking], 0.2).done

        def work() -> None:
            status, message, _ = gathered(number, ids)
            assert status == CLOSED
            assert "in another process" in message
            with pytest.raises(ClosedError, match="before a fork"):
                container.lookup("rows", ids)
            with pytest.raises(ClosedError, match="before a fork"):
                container.load(url)

        assert run_fork(work) == 0
        may_go_on.set()
        loading.result(20)
        status, _, found = asking.result(20)
        assert (status, (found == 3).all()) == (0, True)


def test_a_child_forked_during_a_lookup_by_number_can_publish_other_rows(ids: Any) -> None:
    storage = MemoryStorage(TableConfig("rows", 4))
    find, has_begun, may_go_on = storage.find, threading.Event(), threading.Event()

    def slow(*arguments: Any, **named: Any) -> Any:
        has_begun.set()
        assert may_go_on.wait(20)
        return find(*arguments, **named)

    with StepContainer() as container, ThreadPoolExecutor(1) as threads:
        container.declare(storage.table, storage)
        publication = _native.Publication()
        publication.show(container.collection([("rows", "sum")]))
        storage.find = slow  # type: ignore[method-assign]
        asking = threads.submit(gathered, publication.number, ids)
        assert has_begun.wait(20)

        def work() -> None:
            other = StepContainer()
            other.declare(TableConfig("rows", 4))
            assert gathered(publication.number, ids)[0] == CLOSED
            publication.show(other.collection([("rows", "sum")]))
            assert gathered(publication.number, ids)[0] == 0

        assert run_fork(work) == 0
        may_go_on.set()
        assert asking.result(20)[0] == 0


def test_an_interrupted_load_of_an_earlier_process_is_also_rejected_by_number(ids: Any) -> None:
    storage = MemoryStorage(TableConfig("rows", 4))
    begin_load(storage, "elsewhere")
    with StepContainer() as container:
        container.declare(storage.table, storage)
        publication = _native.Publication()
        publication.show(container.collection([("rows", "sum")]))
        with pytest.raises(InterruptedLoadError):
            container.check_readable(["rows"])
        status, message, _ = gathered(publication.number, ids)
        assert status == CLOSED
        assert "was cut short" in message
        storage.clear()
        container.check_readable(["rows"])
        assert gathered(publication.number, ids)[0] == 0


def test_a_load_that_could_not_begin_leaves_rows_readable(
    ids: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with StepContainer() as container, ThreadPoolExecutor(1) as threads:
        container.declare(TableConfig("rows", 4), StorageChoice("memory"))
        container.storage("rows").upsert(np.unique(ids), np.full((3, 4), 3, np.float32))
        container.save(str(tmp_path / "saved"))
        publication = _native.Publication()
        publication.show(container.collection([("rows", "sum")]))
        with monkeypatch.context() as patched:
            patched.setattr("sparring.engine.checkpoint.load.Coordinator.start", refused)
            with pytest.raises(RuntimeError, match="new thread"):
                container.load(str(tmp_path / "saved"))
        asking = threads.submit(gathered, publication.number, ids)
        try:
            status, _, found = asking.result(10)
            assert (status, (found == 3).all()) == (0, True)
        finally:
            container.entry("rows").end_load()  # otherwise the thread would wait forever


def test_a_load_cancelled_before_it_began_delays_no_lookup(ids: Any, tmp_path: Path) -> None:
    with StepContainer() as container, ThreadPoolExecutor(1) as threads:
        container.declare(TableConfig("rows", 4), StorageChoice("memory"))
        container.storage("rows").upsert(np.unique(ids), np.full((3, 4), 3, np.float32))
        container.save(str(tmp_path / "saved"))
        publication = _native.Publication()
        publication.show(container.collection([("rows", "sum")]))
        is_free = threading.Event()
        for _ in range(container.events.num_threads):
            container.events.submit(lambda: is_free.wait(20), name="another's work")
        loading = container.load(str(tmp_path / "saved"), blocking=False)
        asking = threads.submit(gathered, publication.number, ids)
        assert not wait([asking], 0.2).done
        assert loading.cancel()
        try:
            status, _, found = asking.result(10)
            assert (status, (found == 3).all()) == (0, True)
        finally:
            is_free.set()
            container.loads.join()


def test_lookups_do_not_wait_for_a_storage_that_cannot_report_whether_it_is_complete(
    ids: Any,
) -> None:
    def broken(_: str) -> None:
        raise RuntimeError("a bug of the backend")

    storage = MemoryStorage(TableConfig("rows", 4))
    with StepContainer() as container:
        container.declare(storage.table, storage)
        publication = _native.Publication()
        publication.show(container.collection([("rows", "sum")]))
        entry = container.entry("rows")
        entry.view.begin_load()
        storage._read_note = broken  # type: ignore[method-assign,assignment]
        entry.end_load()
        assert gathered(publication.number, ids)[0] == CLOSED
