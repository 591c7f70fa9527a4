"""Reads what comes next while what came is in use."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import TypeVar

from sparring.snapshot.daemon_threads import DaemonThreads

__all__ = ["read_ahead"]

_Item = TypeVar("_Item")


def read_ahead(items: Generator[_Item, None, None]) -> Iterator[_Item]:
    """The same items; each is made on a thread while the one before it is in use.

    Args:
        items: advanced by this alone, on that thread, and closed where this ends.
    """
    thread = _reading_thread()
    if thread is None:
        yield from items
        return
    try:
        coming = thread.submit(partial(_taken, items))
        while taken := coming.result():
            coming = thread.submit(partial(_taken, items))
            # What is held here cannot be read into.
            yield taken.pop()
    finally:
        thread.close()
        items.close()


def _taken(items: Iterator[_Item]) -> list[_Item]:
    """The next item; nothing at the end, because a future cannot hold a StopIteration."""
    for item in items:
        return [item]
    return []


def _reading_thread() -> DaemonThreads | None:
    """None where the interpreter ends, which a load may outlast, and starts no thread any more."""
    made = DaemonThreads(1, "sparring-snapshot-read")
    try:
        made.start()
    except RuntimeError:
        return None
    return made
