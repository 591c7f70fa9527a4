"""Checks of exported programs: their run without Python, as the examples do it, and damaged files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["Ask", "check_run_without_python", "damage_files"]

Ask = Callable[[str], str]
"""Writes a line to the program, and returns the line that it answers."""


def damage_files(bundle: Path) -> Iterator[Path]:
    """Damages one file of a bundle after the other: a bit, the end, the whole file.

    Args:
        bundle: a copy; each file is as before when the next one is damaged.
    """
    for path in sorted(each for each in bundle.rglob("*") if each.is_file()):
        content = path.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        for damaged in (bytes(flipped), content[:-1], None):
            path.unlink()  # a library may be mapped
            if damaged is not None:
                path.write_bytes(damaged)
            yield path
        path.write_bytes(content)


def check_run_without_python(
    program: Path,
    bundle: Path,
    served: Path,
    publish: Callable[[], int],
    check_run: Callable[[Ask], None],
) -> None:
    """Checks a compiled program: it needs no Python, runs, takes newer tables, refuses a wrong folder.

    Args:
        program: that was compiled.
        bundle: that it runs.
        served: the serving snapshots.
        publish: trains, writes the next of them, and returns its step.
        check_run: lets the program run, and compares what it answers with the model.
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
