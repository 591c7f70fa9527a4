"""C++ programs that measure: built from a package's sources, and controlled over a pipe."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["build_program", "run_program"]


def build_program(target: str, package: Path, folder: Path, settings: Sequence[str]) -> Path:
    """Builds one target of a package's CMake project.

    Args:
        target: name of the target and of its program.
        package: folder with ``CMakeLists.txt``.
        folder: build folder.
        settings: settings of CMake, for example ``-DNAME=value``.
    """
    configure = ["cmake", "-G", "Ninja", "-S", str(package), "-B", str(folder), *settings]
    for each in (configure, ["cmake", "--build", str(folder), "--target", target]):
        subprocess.run(each, check=True, capture_output=True)
    return folder / target


@contextmanager
def run_program(program: Path, *arguments: object) -> Iterator[Callable[[str], list[float]]]:
    """Runs the program; yields a function that sends a workload and returns the numbers of the reply."""
    command = [str(program), *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        answers, questions = process.stdout, process.stdin
        assert answers is not None
        assert questions is not None
        assert answers.readline() == "ready\n"

        def run(work: str) -> list[float]:
            questions.write(f"{work}\n")
            questions.flush()
            return list(map(float, answers.readline().split()))

        yield run
        questions.close()
