"""Metrics as JSON, one object per line."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["JsonLines"]


class JsonLines:
    """Appends lines to a file, which is opened for each line, so that it may be moved meanwhile.

    Args:
        path: path of the file; its folder is created.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Appends one line, either completely or not at all.

        Raises:
            OSError: the file cannot be written.
        """
        line = json.dumps(metrics).encode() + b"\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+b", buffering=0) as file:
            before = file.seek(0, os.SEEK_END) if file.seekable() else 0
            if before and os.pread(file.fileno(), 1, before - 1) != b"\n":
                # A previous process was killed while it wrote a line.
                line = b"\n" + line
            try:
                _write_all(file.fileno(), line)
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(before)
                raise


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
