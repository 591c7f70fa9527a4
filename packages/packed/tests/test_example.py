"""A program in C++ that knows the header and the library alone, built as the README says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparring_packed
from sparring_packed.library import library_path

PACKAGE = Path(__file__).parents[1]


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_the_example_prints_the_rows_that_python_reads(trained: Any, tmp_path: Path) -> None:
    program = tmp_path / "lookup"
    includes = [PACKAGE / "include", PACKAGE.parent / "core/include"]
    command = ["c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", PACKAGE / "examples/lookup.cc"]
    library = library_path().resolve()
    command += [*(f"-I{each}" for each in includes), library, f"-Wl,-rpath,{library.parent}"]
    subprocess.run([*command, "-o", program], check=True)
    ids = [-1, 12345, 2**63 - 1]
    ran = subprocess.run(
        [program, trained.served, "item", *map(str, ids)],
        capture_output=True,
        text=True,
        check=True,
    )
    step, *lines = ran.stdout.splitlines()
    with sparring_packed.open(trained.served) as tables:
        rows, found = tables.lookup("item", ids), tables.find("item", ids).found
    assert step == "step 1"
    for line, key, row, is_found in zip(lines, ids, rows, found, strict=True):
        words = line.split()
        assert words[:2] == [str(key), str(int(is_found))]
        assert (np.array(words[2:], np.float32) == row).all()

    command = [program, tmp_path / "no", "item", "1"]
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "there is no serving snapshot" in failed.stderr
