"""Threads of Arrow that read a CSV file ahead end before the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# The second read of a file takes until the program has ended.
PROGRAM = """
import sys, time
from sparring.errors import DataError
from sparring_train.config.sections.table import TableData
from sparring_train.data.table.text import rows as csv_rows
from sparring_train.data.table.files import TableFile, find_files

class Slow:
    def __init__(self, file):
        self.file, self.is_late = file, False

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def read(self, size=-1):
        if self.is_late:
            time.sleep(0.25)
        self.is_late = True
        return self.file.read(size)

csv_rows._BLOCK_BYTES = csv_rows.HEADER_BYTES = 64
open_file = TableFile.open
TableFile.open = lambda self: Slow(open_file(self))

def read():
    data = TableData(kind="table", path=sys.argv[1], label="y", categorical=["a"])
    return csv_rows.CsvRows(find_files(sys.argv[1]), data, ["a", "y"]).read(["a", "y"])

"""
ENDS = {
    "bad row": ("1,1\n2\n", "try:\n    read()\nexcept DataError:\n    sys.exit(2)\n", 2),
    "abandoned": ("", "rows = read()\nnext(rows)\n", 0),
    "other error": ("", "rows = read()\nnext(rows)\nraise ValueError\n", 1),
}


@pytest.mark.parametrize(
    "how",
    [
        "bad row",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("abandoned", "other error")),
    ],
)
def test_end_of_program_waits_for_threads_that_read_ahead(tmp_path: Path, how: str) -> None:
    first, end, expected = ENDS[how]
    path = tmp_path / "rows.csv"
    path.write_text("a,y\n" + first + "7,1\n" * 200)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + end, str(path)],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == expected, done.stderr
    assert "Fatal" not in done.stderr
