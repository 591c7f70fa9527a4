"""Checks that exported programs run without Python, as in the examples, and reject damaged
files."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["Ask", "check_run_without_python", "check_versions_are_not_mixed", "damage_files"]

Ask = Callable[[str], str]
"""Writes a line to the program and returns the line with which it replies."""


def damage_files(bundle: Path) -> Iterator[Path]:
    """Yields after damaging each file of a bundle: one flipped bit, a truncated end, a missing file.

    Args:
        bundle: a copy of a bundle. Each file is restored before the next one is damaged.
    """
    for path in sorted(each for each in bundle.rglob("*") if each.is_file()):
        content = path.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        for damaged in (bytes(flipped), content[:-1], None):
            path.unlink()  # not overwritten, because a library may be mapped
            if damaged is not None:
                path.write_bytes(damaged)
            yield path
        path.write_bytes(content)


def check_versions_are_not_mixed(
    run: Callable[[], bytes], refresh: Callable[[], bool], publish: Callable[[], object]
) -> None:
    """Checks that runs in several threads read rows and parameters of one version, while another thread
    refreshes the program.

    Args:
        run: runs the program with the same inputs each time, and returns its outputs as bytes.
        refresh: loads the newest version, and returns whether there was one.
        publish: writes the next version, with other rows and other parameters.
    """
    expected = {run()}
    found: set[bytes] = set()
    stop = threading.Event()
    counts: list[int] = []
    failures: list[Exception] = []

    def run_repeatedly() -> None:
        count = 0
        try:
            while not stop.is_set() or count < 20:
                found.add(run())
                count += 1
                time.sleep(0.001)  # leaves time for the other threads
        except Exception as error:
            failures.append(error)
        counts.append(count)

    threads = [threading.Thread(target=run_repeatedly) for _ in range(2)]
    for each in threads:
        each.start()
    for _ in range(4):
        publish()
        assert refresh()
        expected.add(run())  # no other thread refreshes, so this is the newest version
    stop.set()
    for each in threads:
        each.join()
    assert not failures
    assert len(expected) == 5
    assert sum(counts) >= 40
    assert len(found) > 1
    assert found <= expected


def check_run_without_python(
    program: Path,
    bundle: Path,
    served: Path,
    publish: Callable[[], int],
    check_run: Callable[[Ask], None],
) -> None:
    """Checks a compiled program: it runs without Python, loads newer tables and rejects a wrong folder.

    Args:
        program: the compiled program.
        bundle: the bundle that it runs.
        served: the folder of serving snapshots.
        publish: trains, writes the next serving snapshot and returns its step.
        check_run: runs the program and compares its replies with the model.
    """
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    assert "libpython" not in linked
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with subprocess.Popen(
        [program, bundle, served],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    ) as running:
        to, back = running.stdin, running.stdout
        assert to is not None
        assert back is not None

        def ask(line: str) -> str:
            to.write(line + "\n")
            to.flush()
            return back.readline().strip()

        check_run(ask)
        step = publish()
        assert ask("refresh") == "refreshed"
        assert ask("refresh") == "newest already"
        assert ask("version").split()[1] == str(step)
        check_run(ask)
        to.close()
        assert running.wait(60) == 0
    refused = subprocess.run([program, bundle, program.parent], capture_output=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr
