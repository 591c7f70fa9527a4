"""A full disk raises errors, also in later calls; the process and the rows before it survive.

The disk is imitated by a limit of the size of files, so each test runs in its own process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from sparring import TableConfig, open_storage
from sparring.errors import StorageIOError

folder, calls = sys.argv[1], sys.argv[2].split()
table, rows = TableConfig("film", 16), np.ones((1000, 16), np.float32)

def open_table(table=table):
    # So large that the log exceeds the limit before a file of rows does.
    return open_storage("rocksdb", table, path=folder, write_buffer_bytes=1 << 26)

def fill():
    for first in range(0, 10**6, 1000):
        storage.upsert(np.arange(first, first + 1000), rows)

storage = open_table()
storage.upsert(np.arange(100), rows[:100])
storage.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
all_calls = {
    "fill": fill,
    "write": lambda: storage.upsert(np.arange(5), rows[:5]),
    "flush": storage.flush,
    "clear": storage.clear,
    "purge": storage.purge,
    "checkpoint": lambda: storage.checkpoint(folder + "-copy"),
    "other": lambda: open_table(TableConfig("other", 4)),
}
for call in calls:
    try:
        all_calls[call]()
    except StorageIOError as error:
        print(call, flush=True)
storage.close()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
with open_table() as storage:
    assert storage.find(np.arange(100)).found.all()
print("end")
"""


@pytest.mark.parametrize(
    "calls",
    [
        "fill",
        pytest.param("fill flush flush write checkpoint other", marks=pytest.mark.slow),
        pytest.param("fill purge clear flush", marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_raises_and_the_process_survives(calls: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "rows"), calls]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [*calls.split(), "end"]
