"""Runs a target in Python: with atheris, guided by coverage, or once for each input of a corpus."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

__all__ = ["Target", "run"]

Target = Callable[[bytes], None]
"""Runs one input. An exception is a finding."""


def run(
    arguments: Sequence[str],
    instrumented: Sequence[str],
    open_target: Callable[[], AbstractContextManager[Target]],
) -> int:
    """Fuzzes until the time is over, or replays inputs: ``--replay FOLDER …``.

    Args:
        arguments: arguments of libFuzzer, or of a replay.
        instrumented: packages whose coverage guides the fuzzer.
        open_target: imports the code to fuzz, and returns the target.
    """
    logging.disable(logging.WARNING)
    if arguments[:1] == ["--replay"]:
        with open_target() as target:
            for folder in map(Path, arguments[1:]):
                for path in sorted(folder.iterdir()) if folder.exists() else ():
                    target(path.read_bytes())
        return 0
    import atheris  # type: ignore[import-untyped]  # it ships no types

    with atheris.instrument_imports(include=list(instrumented)):
        opened = open_target()
        target = opened.__enter__()
        target(b"")  # imports what is imported when it is used
    atheris.Setup([sys.argv[0], *arguments], target)
    # Ends the process. The caller removes the temporary folder of the target.
    atheris.Fuzz()
    return 0
