"""Versions of the tables of a run: the snapshots that led to the newest one, and which ones to keep."""

from __future__ import annotations

import re
import time
from collections import deque
from datetime import datetime, timezone
from typing import Any

from sparring import Snapshot, open_snapshot
from sparring.adapter import locate, open_snapshots
from sparring.errors import InvalidArgumentError, SnapshotError, SnapshotNotFoundError
from sparring_train.config.sections.snapshots import SnapshotsConfig
from sparring_train.run.same_run import RUN

__all__ = [
    "SAVED",
    "History",
    "describe_version",
    "find_version",
    "format_time",
    "list_versions",
    "measure_history",
    "read_time",
]

SAVED = "saved"
"""Key in the state `RUN`: the time of the save, and the name of the snapshot before it."""

_DAY_SECONDS = 86_400.0

_ENDING = re.compile(r"\.e[0-9]+\Z")
"""End of the name of a snapshot from which `sparring erase` has removed keys."""


class History:
    """Selects the snapshots that `snapshots.history` keeps.

    Args:
        chosen: settings of the snapshots.
    """

    def __init__(self, chosen: SnapshotsConfig) -> None:
        self._chosen = chosen.history
        self._known: deque[tuple[str, float]] = deque()

    def add(self, url: str) -> None:
        """Adds a snapshot that is saved now."""
        if self._chosen is not None:
            self._known.append((url, time.time()))

    def read(self, url: str) -> None:
        """Adds the earlier versions of the snapshot from which the run resumes."""
        if self._chosen is not None:
            has_age, now = self._chosen.days is not None, time.time()
            self._known.extend(
                (each.url, (read_time(each) if has_age else None) or now)
                for each in list_versions(url)
            )

    def urls(self) -> list[str]:
        """Returns the snapshots to keep, oldest first."""
        if self._chosen is None:
            return []
        known, oldest = self._known, time.time() - _DAY_SECONDS * (self._chosen.days or 0)
        while known and (
            (self._chosen.versions is not None and len(known) > self._chosen.versions)
            or (self._chosen.days is not None and known[0][1] < oldest)
        ):
            known.popleft()
        return [url for url, _ in known]


def measure_history(chosen: SnapshotsConfig) -> dict[str, Any]:
    """Returns the number and the bytes of all snapshots of a run, if `snapshots.history` is set.

    Raises:
        SnapshotError: the folder cannot be read.
    """
    if chosen.history is None or chosen.url is None:
        return {}
    found = open_snapshots(chosen.url)
    sizes = [entry.size_bytes for each in found for entry in each.files()]
    return {"history": {"snapshots": len(found), "size_bytes": sum(sizes)}}


def describe_version(previous: str | None) -> dict[str, Any]:
    """Returns the values by which later commands find the time of a version, and the version before it.

    Args:
        previous: name of the snapshot that the run saved or loaded last.
    """
    return {SAVED: {"time": time.time(), "previous": previous}}


def read_time(snapshot: Snapshot) -> float | None:
    """Returns the time of a save in seconds since 1970; None if the snapshot does not contain it."""
    found = _read_saved(snapshot).get("time")
    return float(found) if isinstance(found, (int, float)) else None


def _read_saved(snapshot: Snapshot) -> dict[str, Any]:
    if RUN not in snapshot.state_names(0):
        return {}
    found = snapshot.state(RUN).values.get(SAVED)
    return found if isinstance(found, dict) else {}


def list_versions(url: str) -> list[Snapshot]:
    """Returns a snapshot and the kept snapshots that led to it, oldest first.

    Each delta follows its base. A full snapshot names the one before it; if it does not, it follows the
    snapshot with the next lower step. Versions that were abandoned, because the run returned to an
    earlier one, are left out.

    Args:
        url: a snapshot, or a folder of snapshots, whose newest one is meant.

    Raises:
        SnapshotError: there is none, or it cannot be read.
    """
    try:
        newest: Snapshot | None = open_snapshot(url)
        root = locate(url)[0].url
    except SnapshotError:
        newest, root = None, url
        every = open_snapshots(root)
        if not every:
            raise
    else:
        every = open_snapshots(root)
    by_name = {_ENDING.sub("", each.name): each for each in every}
    by_name |= {each.name: each for each in every}
    found: dict[str, Snapshot] = {}
    last: Snapshot | None = newest or every[-1]
    while last is not None and last.name not in found:
        found[last.name] = last
        last = last.base or _find_previous(last, every, by_name)
    return [*reversed(found.values())]


def _find_previous(
    snapshot: Snapshot, every: list[Snapshot], by_name: dict[str, Snapshot]
) -> Snapshot | None:
    """Returns the snapshot before a full one."""
    saved = _read_saved(snapshot)
    if "previous" in saved:
        return by_name.get(saved["previous"])
    return next((each for each in reversed(every) if each.step < snapshot.step), None)


def find_version(url: str, at: str) -> Snapshot:
    """Returns the newest kept version at or before a step or a time.

    Args:
        url: see `list_versions`.
        at: a step, a time in ISO 8601 (UTC without an offset), or ``@`` and seconds since 1970.

    Raises:
        InvalidArgumentError: `at` is none of these, or no version contains its time.
        SnapshotNotFoundError: all versions are newer.
        SnapshotError: a snapshot cannot be read.
    """
    versions = list_versions(url)
    if re.fullmatch(r"[0-9]{1,18}", at):
        for version in reversed(versions):
            if version.step <= int(at):
                return version
        oldest = f"step {versions[0].step:,}"
    else:
        wanted, seconds = _parse_time(at), None
        for version in reversed(versions):
            found = read_time(version)
            if found is not None and found <= wanted:
                return version
            seconds = found or seconds
        if seconds is None:
            raise InvalidArgumentError(
                f"--at {at}: found no time in the {len(versions)} snapshots of {url}, because they were "
                "not saved by `sparring train`; give a step"
            )
        oldest = format_time(seconds)
    raise SnapshotNotFoundError(
        f"--at {at}: found no version of {url} at or before it, the oldest kept version is of {oldest}; "
        "give a later step or time, or keep more versions with snapshots.history"
    )


def _parse_time(at: str) -> float:
    try:
        if at.startswith("@"):
            return float(at[1:])
        # Python 3.10 does not accept Z.
        parsed = datetime.fromisoformat(re.sub(r"[zZ]\Z", "+00:00", at))
    except ValueError as error:
        raise InvalidArgumentError(
            f"--at {at}: expected a step, a time such as 2026-11-27T18:30 (UTC) or @1795804200; fix it"
        ) from error
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc)).timestamp()


def format_time(seconds: float) -> str:
    """Returns a time in ISO 8601, UTC, to the second."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
