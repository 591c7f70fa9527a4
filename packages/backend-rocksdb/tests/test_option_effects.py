"""Options have their effect on the syncs, reads and open files that the system reports."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.contracts import TableConfig
from sparring_rocksdb.backend import RocksdbStorage
from sparring_rocksdb.options import RocksdbOptions
from sparring_testing.processes.child_processes import run_script
from sparring_testing.processes.compilers import compile_program

TABLE = TableConfig("table", 16)
NUM_ROWS = 20_000
KEYS = np.arange(0, 2 * NUM_ROWS, 2)
"""Between any two of them is a key that has no row."""

SOURCE = Path(__file__).with_name("count_syncs.c")
MAX_BYTES = 64 << 20


# -- syncs ------------------------------------------------------------------------

PROGRAM = """\
import ctypes, json, sys
import numpy as np
from sparring import TableConfig, open_storage
from sparring.adapter import BUILTIN_METHODS
from sparring.contracts import MethodChoice
from sparring import update_rows

num_syncs = ctypes.CDLL(None).num_syncs
num_syncs.restype = ctypes.c_long
table = TableConfig("table", 16)
path, is_synced, is_stack = sys.argv[1], sys.argv[2] == "True", sys.argv[3] == "True"
rocksdb = {"path": path, "sync_writes": is_synced}
if is_stack:
    tiers = [{"backend": "memory", "options": {"capacity": 10}},
             {"backend": "rocksdb", "options": rocksdb}]
    storage = open_storage("tiered", table, tiers=tiers, write="through")
else:
    storage = open_storage("rocksdb", table, **rocksdb)
sgd = BUILTIN_METHODS["sgd"]
choice = MethodChoice(sgd(), sgd.hyperparameters(lr=0.5), 1)
rows = np.ones((100, 16), np.float32)
counts = {}

def counted(name, call, times):
    before = num_syncs()
    for number in range(times):
        call(np.arange(100 * number, 100 * number + 100))
    counts[name] = num_syncs() - before

counted("upsert", lambda keys: storage.upsert(keys, rows), 20)
counted("update", lambda keys: update_rows(storage, keys, rows, choice), 10)
counted("erase", lambda keys: storage.erase(keys[:50]), 10)
counted("flush", lambda keys: storage.flush(), 1)
storage.upsert(np.arange(100), rows)
counted("close", lambda keys: storage.close(), 1)
print(json.dumps(counts))
"""


@pytest.mark.parametrize("is_stack", [False, True], ids=["alone", "in a stack"])
def test_every_call_waits_for_the_disk_with_sync_writes(
    library: str, tmp_path: Path, is_stack: bool
) -> None:
    counts = syncs(library, tmp_path, sync_writes=True, is_stack=is_stack)
    assert counts["upsert"] >= 20
    assert counts["update"] >= 10
    assert counts["erase"] >= 10


@pytest.mark.parametrize("is_stack", [False, True], ids=["alone", "in a stack"])
def test_without_sync_writes_only_flush_and_close_wait_for_the_disk(
    library: str, tmp_path: Path, is_stack: bool
) -> None:
    counts = syncs(library, tmp_path, sync_writes=False, is_stack=is_stack)
    assert counts["upsert"] == counts["update"] == counts["erase"] == 0
    assert counts["flush"] >= 1
    assert counts["close"] >= 1


# -- reads -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    if not sys.platform.startswith("linux"):
        pytest.skip("needs a system that preloads libraries")
    target = tmp_path_factory.mktemp("preloaded") / "count_syncs.so"
    return str(compile_program(SOURCE, target, "-shared", "-fPIC", "-ldl"))


def syncs(library: str, folder: Path, *, sync_writes: bool, is_stack: bool) -> dict[str, int]:
    """Returns how often each kind of call waited for the disk."""
    words = (str(folder), str(sync_writes), str(is_stack))
    ran = run_script(PROGRAM, *words, seconds=120, LD_PRELOAD=library)
    assert ran.returncode == 0, ran.stderr
    counts: dict[str, int] = json.loads(ran.stdout)
    return counts


def reads_of(storage: RocksdbStorage, keys: Any) -> int:
    """Returns the number of reads of a search for `keys`, a hundred at a time."""
    counters = Path("/proc/self/io")
    if not counters.exists():
        pytest.skip("needs /proc/self/io, which counts what is read")
    before = counters.read_text()
    for part in np.array_split(keys, len(keys) // 100):
        storage.find(part)
    end, begin = (
        int(re.findall(r"syscr: (\d+)", text)[0]) for text in (counters.read_text(), before)
    )
    return end - begin


def written_out(folder: Path, **options: Any) -> RocksdbStorage:
    """A table whose rows are only in separate files, opened with `options`."""
    made = RocksdbOptions(path=folder / "made", **options)
    with RocksdbStorage(TABLE, made) as storage:
        storage.upsert(KEYS, np.ones((NUM_ROWS, 16), np.float32))
        storage.checkpoint(folder / "written out")
    return RocksdbStorage(TABLE, made.model_copy(update={"path": folder / "written out"}))


def test_filters_avoid_reads_for_missing_keys(tmp_path: Path) -> None:
    reads = {}
    for bits in (0.0, 4.0, 10.0):
        folder = tmp_path / str(bits)
        with written_out(folder, bloom_bits_per_key=bits, block_cache_bytes=MAX_BYTES) as storage:
            assert not storage.find(KEYS[:1] + 1).found.any()  # reads each file's metadata once
            reads[bits] = reads_of(storage, KEYS[::20] + 1)
    # A block of 4 KiB has about 50 rows, and is read once.
    assert reads[0.0] > 200, reads
    assert reads[10.0] < 0.1 * reads[0.0], reads
    assert reads[10.0] < reads[4.0] < reads[0.0], reads


def test_a_cache_avoids_the_second_read_and_stays_within_its_size(tmp_path: Path) -> None:
    with written_out(tmp_path / "large", block_cache_bytes=MAX_BYTES) as storage:
        assert reads_of(storage, KEYS) > 200
        assert reads_of(storage, KEYS) <= 20
    budget = 256 << 10
    with written_out(tmp_path / "small", block_cache_bytes=budget) as storage:
        at_first = storage.memory_bytes
        assert reads_of(storage, KEYS) > 200
        assert reads_of(storage, KEYS) > 200
        assert storage.memory_bytes <= at_first + budget
    with written_out(tmp_path / "none", block_cache_bytes=0) as storage:
        reads_of(storage, KEYS[:100])
        assert reads_of(storage, KEYS[:100]) >= 1


def test_a_larger_block_reads_more_rows_at_once(tmp_path: Path) -> None:
    reads = {}
    for size in (1 << 12, 1 << 16):
        folder = tmp_path / str(size)
        with written_out(folder, block_bytes=size, block_cache_bytes=MAX_BYTES) as storage:
            reads[size] = reads_of(storage, KEYS)
    assert reads[1 << 16] < 0.2 * reads[1 << 12], reads


@pytest.mark.parametrize("direct_io", [False, True])
def test_direct_io_bypasses_the_page_cache(tmp_path: Path, direct_io: bool) -> None:
    direct = getattr(os, "O_DIRECT", None)
    if direct is None or not Path("/proc/self/fdinfo").exists():
        pytest.skip("needs O_DIRECT and /proc/self/fdinfo")
    with written_out(tmp_path, direct_io=direct_io) as storage:
        storage.find(KEYS)
        is_direct = []
        for handle in Path("/proc/self/fd").iterdir():
            try:
                file = str(handle.readlink())
                information = Path(f"/proc/self/fdinfo/{handle.name}").read_text()
            except FileNotFoundError:
                continue  # reads of the listing itself
            if file.startswith(str(tmp_path)) and file.endswith(".sst"):
                (flags,) = (line for line in information.splitlines() if "flags" in line)
                is_direct.append(bool(int(flags.split()[1], 8) & direct))
    assert is_direct
    assert set(is_direct) == {direct_io}


# -- writes -------------------------------------------------------------------------


def test_a_rate_limit_slows_down_writes(tmp_path: Path) -> None:
    options = RocksdbOptions(path=tmp_path / "rows", rate_limit_bytes_per_second=2 << 20)
    with RocksdbStorage(TABLE, options) as storage:
        storage.upsert(KEYS, np.ones((NUM_ROWS, 16), np.float32))
        start = time.monotonic()
        storage.checkpoint(tmp_path / "written out")
        seconds = time.monotonic() - start
    # 1.5 MB of rows and keys, of which the limit's share of the first 0.1 s is written at once.
    # Without a limit, the write takes about 0.01 s.
    assert seconds > 0.4
