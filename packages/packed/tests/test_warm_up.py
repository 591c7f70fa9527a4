"""A newer version is read before it is served, but not longer than specified."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparring_packed
from sparring.errors import InvalidArgumentError, SnapshotDamagedError
from sparring_packed import WarmUp, warm_up

KEYS = np.arange(20_000)


def rows_file(training: Any) -> Path:
    [path] = Path(training.served_url()).glob("rows.*")
    return path


def resident(path: Path) -> np.ndarray:
    """Returns which pages of a file are in memory."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        length = len(mapped)
        flags = np.zeros(-(-length // mmap.PAGESIZE), np.uint8)
        view = np.frombuffer(mapped, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        assert libc.mincore(view.ctypes.data, length, flags.ctypes.data) == 0
        del view
    return flags & 1 == 1


def forget(path: Path) -> None:
    """Lets the kernel drop the pages of a file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident(path).any():
        pytest.skip("this file system keeps pages that it is told to drop")


@pytest.fixture
def served(training: Any) -> Iterator[Any]:
    training.save(training.draw(KEYS, 1))
    training.publish()
    with sparring_packed.open(training.served, verify="open") as tables:
        yield tables


def test_directories_and_rows_are_in_memory_before_the_switch(
    training: Any, served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_up, "_BYTES_AT_ONCE", 3 * 4096)
    training.save(training.draw(KEYS, 2), is_delta=False)
    training.publish()
    path = rows_file(training)
    forget(path)
    asked = np.array([7, 11, 19_999, 10**12])
    assert served.refresh(warm_up=WarmUp(20.0, lambda: {"item": asked, "gone": asked}))
    done = served.warmed_up
    assert (done.num_ids, done.is_complete) == (4, True)
    num_pages = done.directory_bytes // mmap.PAGESIZE
    assert num_pages > 5
    assert resident(path)[:num_pages].all()
    assert np.array_equal(served.lookup("item", asked), training.expected(asked))


def test_only_newer_files_are_read(training: Any, served: Any) -> None:
    looked: list[int] = []
    wanted = WarmUp(20.0, lambda: looked.append(1) or {})
    assert not served.refresh(warm_up=wanted)
    assert (served.warmed_up, looked) == (None, [])
    training.save(training.draw(KEYS[:100], 2))
    training.publish(base=training.served_url(1))
    assert served.refresh(warm_up=wanted)
    # The pages of the delta are read, but not those of its base.
    assert 0 < served.warmed_up.directory_bytes < 4096
    assert not served.refresh(warm_up=wanted)
    assert len(looked) == 1


def test_a_late_reader_reads_all_missing_deltas(training: Any, served: Any) -> None:
    for seed in (2, 3):
        training.save(training.draw(KEYS[:100], seed))
        training.publish(base=training.served_url(training.step - 1))
    served.refresh(warm_up=WarmUp(20.0))
    one_delta = rows_file(training).stat().st_size
    assert served.num_layers == 3
    assert 0 < served.warmed_up.directory_bytes < one_delta
    directory = served.warmed_up.directory_bytes
    with sparring_packed.open(training.served_url(1), verify="open") as from_base:
        from_base.refresh(training.served_url(2), warm_up=WarmUp(20.0))
        assert from_base.warmed_up.directory_bytes == directory // 2


def test_a_hanging_read_does_not_block(
    training: Any, served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    def slow(*_: Any) -> Iterator[tuple[int, int]]:
        yield 5, 0
        goes_on.wait(120)
        yield 5, 0

    monkeypatch.setattr(warm_up, "_pieces", slow)
    training.save(training.draw(KEYS[:10], 2))
    training.publish()
    assert served.refresh(warm_up=WarmUp(0.2))
    assert 0.2 <= served.warmed_up.seconds < 60
    assert (served.warmed_up.num_ids, served.warmed_up.is_complete) == (5, False)
    goes_on.set()


def test_damage_is_rejected_as_without_warm_up(training: Any, served: Any) -> None:
    training.save(training.draw(KEYS[:10], 2))
    training.publish(base=training.served_url(1))
    path = rows_file(training)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(SnapshotDamagedError, match=r"rows\.item"):
        served.refresh(warm_up=WarmUp(20.0))
    assert served.version.step == 1


@pytest.mark.parametrize("seconds", [0, -1, 601, float("nan")])
def test_an_invalid_duration_is_rejected(seconds: float) -> None:
    with pytest.raises(InvalidArgumentError, match=f"at most 600, found {seconds}"):
        WarmUp(seconds)


def test_few_ids_read_single_pages_and_many_are_read_ahead(training: Any) -> None:
    training.save(training.draw(KEYS, 1))
    training.publish()
    path = rows_file(training)
    forget(path)
    with sparring_packed.open(training.served, verify="open") as tables:
        assert tables.find("item", [5]).found.all()
        first = resident(path).sum()
        # Header, directory, record.
        assert first <= 4
        tables.find("item", [5] * 300)
        assert resident(path).sum() == first
        assert tables.find("item", [17_000]).found.all()
        assert resident(path).sum() > first + 8
