"""Changes of the gate of a folder of serving snapshots."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import sparring_packed
from sparring.errors import SnapshotDamagedError

__all__ = ["open_gate", "read_gate", "unpin", "update_gate", "without_pin_of_gate"]

_log = logging.getLogger(__name__)


def open_gate(out_url: str | os.PathLike[str], reason: str) -> None:
    """Allows newer versions again. The next publication removes the pin of the gate.

    Args:
        out_url: URL of the folder of serving snapshots.
        reason: Reason for which the gate opens.
    """
    update_gate(
        out_url, lambda gate: replace(gate, is_closed=False, reason=reason, since=time.time())
    )


def unpin(out_url: str | os.PathLike[str]) -> sparring_packed.Gate:
    """Opens the gate of a folder and removes its pin, so that readers use the newest serving snapshot.

    Args:
        out_url: URL of the folder of serving snapshots.
    """
    return update_gate(
        out_url,
        lambda _: sparring_packed.Gate(reason="opened by the operator", since=time.time()),
    )


def without_pin_of_gate(gate: sparring_packed.Gate) -> sparring_packed.Gate:
    """Returns the gate without a pin that it has set itself, if it is open."""
    if gate.pinned_by != "gate" or gate.is_closed:
        return gate
    return replace(gate, pin="", pinned_by="")


def update_gate(
    out_url: str | os.PathLike[str],
    change: Callable[[sparring_packed.Gate], sparring_packed.Gate],
) -> sparring_packed.Gate:
    """Changes the gate of a folder. In a local folder, processes do so one after the other: otherwise, a
    publication that removes a pin could open a gate that the trainer closes meanwhile."""
    with ExitStack() as stack:
        path = os.fspath(out_url)
        if os.path.isdir(path):  # noqa: PTH112 (a path or a URL)
            folder = os.open(path, os.O_RDONLY)
            stack.callback(os.close, folder)
            fcntl.flock(folder, fcntl.LOCK_EX)
        before = read_gate(out_url)
        gate = change(before)
        if gate != before:
            sparring_packed.write_gate(out_url, gate)
    return gate


def read_gate(out_url: str | os.PathLike[str]) -> sparring_packed.Gate:
    """Returns the gate of a folder, which is open if its file is damaged."""
    try:
        return sparring_packed.read_gate(out_url)
    except SnapshotDamagedError as error:
        _log.warning("the gate is ignored: %s", error)
        return sparring_packed.Gate()
