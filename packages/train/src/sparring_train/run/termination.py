"""Termination of a run by SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["describe_sigterm", "note_sigterm"]


@contextmanager
def note_sigterm() -> Iterator[threading.Event]:
    """Sets the yielded event on SIGTERM during the block, instead of ending the process.

    A second SIGTERM ends the process. In a thread other than the main one, to which Python delivers no
    signals, the event remains clear.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    # None stands for a handler of a native library, which Python cannot restore.
    before = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL

    def note(*_: Any) -> None:
        signal.signal(signal.SIGTERM, before)
        stop.set()

    signal.signal(signal.SIGTERM, note)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


def describe_sigterm(step: int, snapshot_url: str | None) -> str:
    """Returns a message for the user after a run was stopped and possibly saved."""
    how = "nothing was saved, because snapshots.url is null; set it, so that --resume can continue"
    if snapshot_url is not None:
        how = f"its snapshot is {snapshot_url}; continue with --resume"
    return f"stopped by SIGTERM after step {step:,}; {how}"
