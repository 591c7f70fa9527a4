"""Metrics of this process: its memory, the limit of its memory, and its start."""

from __future__ import annotations

import re
import time
from functools import cache
from pathlib import Path

from sparring_cli.machine import inspect_machine

__all__ = ["process_metrics"]

_START_SECONDS = time.time()


def process_metrics(status: Path = Path("/proc/self/status")) -> dict[str, float]:
    """Returns name → value; values that the system does not report are missing.

    ``memory_bytes`` is resident memory without the pages of mapped files, which the system can reclaim.
    ``memory_limit_bytes`` is the limit of the container, or the memory of the machine if it is lower.
    ``start_seconds`` is the time since 1970 at which the process started, which shows restarts.
    """
    found: dict[str, float] = {"start_seconds": _START_SECONDS}
    try:
        sizes = re.findall(r"^Rss(?:Anon|Shmem):\s*(\d+) kB$", status.read_text(), re.MULTILINE)
    except OSError:
        sizes = []
    if sizes:
        found["memory_bytes"] = sum(map(int, sizes)) * 1024
    if (limit := _memory_limit()) is not None:
        found["memory_limit_bytes"] = limit
    return found


@cache
def _memory_limit() -> int | None:
    return inspect_machine().memory_bytes
