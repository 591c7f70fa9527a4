"""Facts of this machine and this process, for the report."""

from __future__ import annotations

import platform
import re
from pathlib import Path

from sparring_cli import inspect_gpus, inspect_machine
from sparring_train.report.run_data import Host

__all__ = ["inspect_host", "peak_memory_bytes"]


def inspect_host() -> Host:
    """Asks the system."""
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
    """The most memory that this process has had resident, files that it maps included.

    0 where the system does not tell. Not `resource.getrusage`: of a process that another one
    started, Linux counts the memory of that one too.
    """
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0
