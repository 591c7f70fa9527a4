"""Short programs in new processes, and functions in forked children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["ChildProcesses", "run_fork", "run_script", "wait_for"]


def run_script(
    source: str, *arguments: str, seconds: float = 60.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a Python program, which may be indented, in a new process; returns its output.

    Args:
        source: the program.
        arguments: arguments of the program.
        seconds: time after which the process is killed and the call raises.
        environment: more environment variables.
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, **environment},
    )


def run_fork(work: Callable[[], object], seconds: int = 20) -> int:
    """Runs a function in a fork of this process.

    Args:
        work: the function.
        seconds: time after which a signal ends the child.

    Returns:
        The wait status of the child, which is 0 if `work` did not raise.
    """
    child = os.fork()
    if not child:
        signal.alarm(seconds)
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def wait_for(path: Path, seconds: float) -> str:
    """Waits for a file that another process writes; returns its text."""
    limit = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < limit, f"no {path.name} within {seconds:g} s"
        time.sleep(0.01)
    return path.read_text()


class ChildProcesses:
    """Processes of a test, which are killed at its end; see the fixture `child_processes`."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[str]] = []

    def start(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts a process whose standard error the test can read.

        Args:
            command: program and arguments.
            environment: more environment variables.
        """
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        """Kills all processes."""
        for process in self.started:
            process.kill()
            process.communicate()
        self.started.clear()
