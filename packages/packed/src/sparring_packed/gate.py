"""The file ``gate.json`` of a folder of serving snapshots: whether versions are withheld, and which one
is pinned. ``docs/format/packed.md`` describes it; the C library has a separate reader."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import fsspec  # type: ignore[import-untyped]  # it ships no types

from sparring.errors import InvalidArgumentError, SnapshotDamagedError, SnapshotIOError

__all__ = ["GATE_NAME", "Gate", "read_gate", "write_gate"]

GATE_NAME = "gate.json"

PinnedBy = Literal["", "gate", "operator"]

_MAX_BYTES = 64 << 10
_MAX_REASON = 500
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,254}")


@dataclass(frozen=True, slots=True)
class Gate:
    """State of the gate of a folder of serving snapshots.

    Args:
        is_closed: whether newer versions are withheld.
        reason: reason of the last change; empty if there is none.
        since: time of the last change, in seconds since 1970.
        pin: name of the serving snapshot that readers of the folder use; empty: the newest.
        pinned_by: who has pinned it; empty without a pin.
    """

    is_closed: bool = False
    reason: str = ""
    since: float = 0.0
    pin: str = ""
    pinned_by: PinnedBy = ""

    def __post_init__(self) -> None:
        if self.pin and not _NAME.fullmatch(self.pin):
            raise InvalidArgumentError(
                f"a pin must be the name of a serving snapshot without a path, found {self.pin!r}; list "
                "the names with sparring inspect"
            )
        if (self.pinned_by not in ("gate", "operator")) if self.pin else self.pinned_by:
            raise InvalidArgumentError(
                f"pinned_by must be gate or operator with a pin, and empty without, found pin "
                f"{self.pin!r} and pinned_by {self.pinned_by!r}"
            )


def read_gate(url: str | os.PathLike[str]) -> Gate:
    """Returns the state of the gate of a folder; an open gate without a pin if there is no file.

    Args:
        url: a path or any URL of fsspec, of a folder of serving snapshots.

    Raises:
        SnapshotDamagedError: the file is damaged, or was written by a later release.
        SnapshotIOError: the file system failed.
    """
    system, path = _locate(url)
    try:
        system.invalidate_cache(path)
        with system.open(f"{path}/{GATE_NAME}", "rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return Gate()
    except OSError as error:
        raise SnapshotIOError(
            f"reading {path}/{GATE_NAME} failed: {error}; check the file system", url=os.fspath(url)
        ) from error
    try:
        return _decode(text)
    except (ValueError, KeyError, TypeError, InvalidArgumentError) as error:
        raise SnapshotDamagedError(
            f"{path}/{GATE_NAME} is damaged: {error!r}; write it again with sparring publish --pin or "
            "--unpin",
            url=os.fspath(url),
            file=GATE_NAME,
            offset=0,
        ) from error


def _decode(text: bytes) -> Gate:
    if len(text) > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES:,} bytes")
    found = json.loads(text)
    if found["format"] != 1:
        raise ValueError(f"its format is {found['format']!r}, expected 1")
    if found["state"] not in ("open", "closed"):
        raise ValueError(f"its state is {found['state']!r}, expected 'open' or 'closed'")
    texts: list[Any] = [found[name] or "" for name in ("reason", "pin", "pinned_by")]
    if not all(isinstance(each, str) for each in texts):
        raise ValueError("reason, pin and pinned_by must be strings or null")
    reason, pin, pinned_by = texts
    return Gate(found["state"] == "closed", reason, float(found["since"]), pin, pinned_by)


def write_gate(url: str | os.PathLike[str], gate: Gate) -> None:
    """Replaces the state of the gate of a folder, which readers then obey.

    Args:
        url: a path or any URL of fsspec, of a folder of serving snapshots; created if it does not exist.
        gate: the state.

    Raises:
        SnapshotIOError: the file system failed.
    """
    content = {
        "format": 1,
        "state": "closed" if gate.is_closed else "open",
        "reason": gate.reason[:_MAX_REASON] or None,
        "since": gate.since,
        "pin": gate.pin or None,
        "pinned_by": gate.pinned_by or None,
    }
    text = json.dumps(content, indent=1).encode() + b"\n"
    system, path = _locate(url)
    try:
        system.makedirs(path, exist_ok=True)
        if "file" in (system.protocol if isinstance(system.protocol, tuple) else ()):
            unfinished = Path(path, f".{GATE_NAME}-{os.getpid()}")
            with unfinished.open("wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(Path(path, GATE_NAME))
        else:
            system.pipe_file(f"{path}/{GATE_NAME}", text)
    except OSError as error:
        raise SnapshotIOError(
            f"writing {path}/{GATE_NAME} failed: {error}; check the folder and its permissions",
            url=os.fspath(url),
        ) from error


def _locate(url: str | os.PathLike[str]) -> tuple[Any, str]:
    system, path = fsspec.core.url_to_fs(os.fspath(url))
    return system, path.rstrip("/") or "/"
