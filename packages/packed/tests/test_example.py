"""C++ programs that only use the header and the library, built as described in the documentation."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

import sparring_packed
from sparring_packed.library import library_path
from sparring_testing.processes.compilers import compile_program

PACKAGE = Path(__file__).parents[1]


def built(name: str, folder: Path) -> Path:
    """Compiles an example."""
    library = library_path().resolve()
    options = [f"-I{each / 'include'}" for each in (PACKAGE, PACKAGE.parent / "core")]
    options += [str(library), f"-Wl,-rpath,{library.parent}", "-pthread"]
    return compile_program(PACKAGE / f"examples/{name}.cc", folder / name, *options)


def test_the_example_prints_the_rows_that_python_reads(trained: Any, tmp_path: Path) -> None:
    program = built("lookup", tmp_path)
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

    for text in (str(2**63), str(2**64 - 1), str(-(2**63) - 1), "abc", "7x", "1.5", ""):
        command = [program, trained.served, "item", text]
        failed = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (failed.returncode, failed.stdout) == (2, "")
        assert f'found id "{text}", expected an integer' in failed.stderr
    command = [program, tmp_path / "no", "item", "1"]
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "there is no serving snapshot" in failed.stderr


def test_a_program_switches_to_newer_versions_and_reports_errors(
    training: Any, tmp_path: Path
) -> None:
    program = built("refreshing", tmp_path)
    training.save(training.draw(range(100), 0))
    training.publish()
    command = [program, training.served, "item", "100"]
    wrong = subprocess.run(command, input="7\nabc\n", capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert len(wrong.stdout.splitlines()) == 1
    assert 'found id "abc"' in wrong.stderr
    command = [program, training.served, "item", "0.02"]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, bufsize=1, **streams) as running:

        def ask(key: int) -> tuple[int, np.float32]:
            assert running.stdin is not None
            assert running.stdout is not None
            running.stdin.write(f"{key}\n")
            step, element = running.stdout.readline().split()
            return int(step), np.float32(element)

        def await_step(step: int) -> None:
            begin = time.monotonic()
            while ask(7)[0] != step:
                assert time.monotonic() - begin < 30

        assert ask(7) == (1, training.rows[7][0])
        base = training.served_url()
        training.save(training.draw(range(20), 1))
        training.publish(base=base)
        await_step(2)
        assert ask(7) == (2, training.rows[7][0])
        elsewhere = tmp_path / "elsewhere/step-9"
        sparring_packed.write(training.url(), str(elsewhere))
        (elsewhere / "manifest.json").write_bytes(b"{}")
        elsewhere.rename(training.served / "step-9")
        assert running.stderr is not None
        line = running.stderr.readline()
        assert line.startswith("refused: ")
        assert "step-9" in line
        assert ask(7)[0] == 2
        assert running.stdin is not None
        running.stdin.close()
        assert running.wait(timeout=60) == 0
