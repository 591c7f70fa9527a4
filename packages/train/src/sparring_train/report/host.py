"""Facts about this machine and process, for the report."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from sparring_cli import inspect_gpus, inspect_machine
from sparring_train.report.run_data import Host

__all__ = ["inspect_host", "peak_memory_bytes", "resident_memory_bytes"]


def inspect_host() -> Host:
    """Returns facts about this machine."""
    machine = inspect_machine()
    return Host(
        name=platform.node(),
        system=machine.system,
        processor=machine.processor or "unknown",
        usable_cores=machine.usable_cores,
        memory_bytes=machine.memory_bytes,
        gpus=[gpu.name for gpu in inspect_gpus().devices],
    )


def peak_memory_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Returns the maximum resident memory of this process, including mapped files; 0 if unknown.

    `resource.getrusage` is not used, because Linux also counts the memory of the process that started
    this one.
    """
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def resident_memory_bytes(statistics: Path = Path("/proc/self/statm")) -> int:
    """Returns the resident memory of this process, including mapped files; 0 if unknown."""
    try:
        pages = int(statistics.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
