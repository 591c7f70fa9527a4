"""The monitor of the ranks of a machine, without MPI: where it is started, and where it cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

WAIT = 60.0  # seconds until a test that hangs is called failed

_RANK = """
import os, sys, time
from sparring.collective import failure_detector

class Alone:
    rank, size = 0, 2
    COMM_TYPE_SHARED = 0
    def Split_type(self, kind):
        return Here()

class Here:
    rank, size = 0, 1
    def bcast(self, value):
        return value
    def Barrier(self):
        time.sleep({pause})

{prepare}
connection = failure_detector._connect(Alone(), Alone())
print("connected", flush=True)
os._exit(0)
"""


def run_rank(folder: Path, *, prepare: str = "", pause: float = 0.0) -> tuple[str, str]:
    """Output and errors of a rank that ends without a notice, and of its monitor."""
    (folder / "program").mkdir()
    program = folder / "program" / "rank.py"
    program.write_text(textwrap.dedent(_RANK).format(prepare=prepare, pause=pause))
    here = folder / "here"
    here.mkdir()
    # Modules of the folder that a job is started in are none of Python's own.
    (here / "select.py").write_text("raise ImportError('the wrong module')")
    path = os.pathsep.join(each for each in sys.path if each)
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=here,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=True,
    )
    return done.stdout, done.stderr


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no PYTHONSAFEPATH")
def test_the_monitor_takes_no_module_from_the_current_folder(tmp_path: Path) -> None:
    output, errors = run_rank(tmp_path)
    assert output == "connected\n"
    assert "the wrong module" not in errors
    assert "rank 0 of 2" in errors
    assert "ended at" in errors


def test_the_monitor_finds_the_modules_of_its_rank(tmp_path: Path) -> None:
    # Only in the path of the rank, as where a program says at run time where its modules are.
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('found', flush=True)")
    prepare = f"sys.path.insert(0, {str(tmp_path / 'own')!r})"
    output, _ = run_rank(tmp_path, prepare=prepare)
    assert sorted(output.split()) == ["connected", "found"]


def test_a_job_goes_on_without_a_monitor(tmp_path: Path) -> None:
    output, _ = run_rank(tmp_path, prepare="sys.executable = '/bin/false'", pause=0.5)
    assert output == "connected\n"
