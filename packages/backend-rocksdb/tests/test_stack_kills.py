"""A process that is killed while rows are written to RocksDB keeps all flushed rows."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sparring import open_storage
from sparring.contracts import TableConfig

TABLE = TableConfig("item", 4)
OPTIONS = {"write_buffer_bytes": 1 << 16, "block_cache_bytes": 1 << 20}
NUM_KEYS = 2_000

PROGRAM = """\
import sys
from test_stack_kills import OPTIONS, TABLE, keys_of
from sparring import EventLoop, open_storage
import numpy as np

tiers = [
    {"backend": "memory", "options": {"capacity": 100}},
    {"backend": "rocksdb", "options": {"path": sys.argv[1], **OPTIONS}},
]
stack = open_storage("tiered", TABLE, tiers=tiers)
stack.use_background(EventLoop())
for step in range(1, 1_000_000):
    keys = keys_of(step)
    stack.upsert(keys, np.full((len(keys), TABLE.dim), step, np.float32))
    if step % 7 == 0:
        stack.flush()
        print(step, flush=True)
"""


def keys_of(step: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The keys whose rows a step sets to its number."""
    return np.random.default_rng(step).choice(NUM_KEYS, 150, replace=False)


@pytest.mark.parametrize("trial", [0, 1, pytest.param(2, marks=pytest.mark.long)])
def test_flushed_rows_outlive_a_kill_during_concurrent_writes(trial: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "rows")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent
    ) as process:
        assert process.stdout is not None
        told = [process.stdout.readline()]
        end = time.monotonic() + random.Random(trial).uniform(0, 0.3)
        while time.monotonic() < end:
            told.append(process.stdout.readline())
        process.kill()  # at once after a flush, while the steps that follow it run
        told += process.stdout.readlines()
    flushed = max(int(line) for line in told if line.endswith("\n"))
    written: dict[int, list[int]] = {}
    for step in range(1, flushed + 1):
        for key in keys_of(step).tolist():
            written.setdefault(key, []).append(step)
    with open_storage("rocksdb", TABLE, path=tmp_path / "rows", **OPTIONS) as storage:
        assert storage.size == sum(len(chunk) for chunk in storage.scan())
        result = storage.find(list(written))
    assert result.found.all()
    assert (result.rows == result.rows[:, :1]).all(), "a row is a mixture of two"
    for key, step in zip(written, result.rows[:, 0].astype(int).tolist(), strict=True):
        assert step >= written[key][-1], f"key {key} went back behind the flush of step {flushed}"
        assert key in keys_of(step)
