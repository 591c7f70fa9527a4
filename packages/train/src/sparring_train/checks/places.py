"""Checks of the folders and URLs of a configuration: access, speed, free space and clock."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sparring.adapter import open_file_system
from sparring.errors import SparringError
from sparring_cli import JobCheck

__all__ = ["MAX_CLOCK_SECONDS", "check_clock", "check_folder"]

MAX_CLOCK_SECONDS = 5.0
"""Maximum difference between two clocks. Ages of versions and lags of streams are wrong by this much."""

_LOCAL_PROBE_BYTES = 32 << 20
_REMOTE_PROBE_BYTES = 1 << 20


def check_folder(
    setting: str, url: str, needed_bytes: int | None, seconds: float
) -> Iterator[JobCheck]:
    """Writes, renames, reads and deletes a file in a folder that a run will write.

    Args:
        setting: dotted key of the folder.
        url: path or URL of the folder. If a local folder is missing, its nearest parent is tested.
        needed_bytes: size of what the run writes there at once; None: unknown.
        seconds: maximum time for writing that.
    """
    try:
        system, path = open_file_system(url)
    except SparringError as error:
        yield JobCheck(
            f"open {setting}", "failed", str(error), "a reachable file system", "correct the URL"
        )
        return
    is_local = "file" in _protocols(system)
    if is_local:
        existing = _existing(Path(path))
        path = str(existing)
    probe = f"{path.rstrip('/')}/sparring-probe-{uuid.uuid4().hex}"
    content = os.urandom(_LOCAL_PROBE_BYTES if is_local else _REMOTE_PROBE_BYTES)
    renamed = f"{probe}-renamed"
    operation = "write a file"
    try:
        begin = time.perf_counter()
        with system.open(probe, "wb") as file:
            file.write(content)
            file.flush()
            if is_local:
                os.fsync(file.fileno())
        taken = time.perf_counter() - begin
        modified, now = _modified(system, probe), time.time()
        operation = "rename a file"
        system.mv(probe, renamed)
        operation = "read a file"
        if system.cat_file(renamed) != content:
            raise OSError("the content differs from what was written")
        operation = "delete a file"
        system.rm(renamed)
    except BaseException as error:  # Clients of object stores raise their own errors.
        for each in (probe, renamed):
            _remove(system, each)
        if not isinstance(error, Exception):
            raise  # Ctrl-C
        yield JobCheck(
            f"{operation} in {setting}",
            "failed",
            f"{url}: {_line(error)}",
            "permission to write, rename, read and delete files",
            "grant it to the user of the run, or choose another folder",
        )
        return
    yield JobCheck(f"write, rename, read and delete a file in {setting}", "ok", url)
    yield _speed(setting, len(content) / max(taken, 1e-9), needed_bytes, seconds)
    if is_local:
        yield _space(setting, path, needed_bytes)
    elif modified is not None:
        yield check_clock(setting, modified, now)


def check_clock(setting: str, there: float, here: float) -> JobCheck:
    """Compares the times of another clock and of this machine's, in seconds since 1970."""
    operation = f"compare the clock with {setting}"
    found = f"{abs(here - there):.1f} s difference"
    if abs(here - there) <= MAX_CLOCK_SECONDS:
        return JobCheck(operation, "ok", found)
    return JobCheck(
        operation,
        "failed",
        found,
        f"at most {MAX_CLOCK_SECONDS:g} s",
        "synchronize the clocks of both machines, for example with chrony",
    )


def _speed(
    setting: str, bytes_per_second: float, needed_bytes: int | None, seconds: float
) -> JobCheck:
    operation, found = f"measure writing to {setting}", f"{bytes_per_second / 1e6:,.0f} MB/s"
    if needed_bytes is None or needed_bytes / bytes_per_second <= seconds:
        return JobCheck(operation, "ok", found)
    return JobCheck(
        operation,
        "failed",
        f"{found}, so {needed_bytes / 1e9:,.1f} GB take {needed_bytes / bytes_per_second:,.0f} s",
        f"at most {seconds:,.0f} s",
        "choose a faster disk, or raise snapshots.deadline_seconds",
    )


def _space(setting: str, path: str, needed_bytes: int | None) -> JobCheck:
    free = shutil.disk_usage(path).free
    operation, found = f"find free space in {setting}", f"{free / 1e9:,.1f} GB free"
    if needed_bytes is None:
        return JobCheck(operation, "ok", f"{found}; --rows adds a comparison")
    if free >= needed_bytes:
        return JobCheck(operation, "ok", found)
    return JobCheck(
        operation,
        "failed",
        found,
        f"at least {needed_bytes / 1e9:,.1f} GB",
        "free space, choose another disk, or keep fewer snapshots",
    )


def _existing(path: Path) -> Path:
    return path if path.is_dir() else _existing(path.parent)


def _protocols(system: Any) -> tuple[str, ...]:
    return (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)


def _modified(system: Any, path: str) -> float | None:
    """Returns when the file system says that a file was written; None if it does not know."""
    try:
        found: datetime = system.modified(path)
    except (NotImplementedError, KeyError, AttributeError):
        return None
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()


def _remove(system: Any, path: str) -> None:
    try:
        system.rm(path)
    except Exception:
        return  # The file does not exist, or the reported failure also prevents its removal.


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
