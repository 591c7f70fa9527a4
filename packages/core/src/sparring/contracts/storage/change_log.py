"""Contract of the place where change notes of a table are kept, next to its backend.

A trainer appends a note when the backend is up to date; servers with caches in front of that backend
read them (`sparring_tiered.cache`). A backend offers such a place by `StorageDescriptor.change_log`;
for all others, sparring-tiered keeps the notes in a folder.

Threads
    One trainer appends; any number of readers, in other processes, read. An object is used by one
    thread at a time.
"""

from __future__ import annotations

from abc import abstractmethod

from sparring.runtime.lifecycle import Closable

__all__ = ["ChangeLog"]


class ChangeLog(Closable):
    """Notes of one table, by ascending numbers, and one base; all are opaque bytes.

    A call that raised may have done its work or not; a note or base is there whole or not at all.
    Errors are `StorageIOError` and `DeadlineError`.
    """

    @property
    @abstractmethod
    def place(self) -> str:
        """Where it is, for messages; it holds no secret."""

    @abstractmethod
    def append(self, sequence: int, note: bytes, keep: int) -> None:
        """Adds the note after the newest one, and removes all but the newest `keep`."""

    @abstractmethod
    def newest(self) -> int:
        """The number of the newest note; 0: there is none."""

    @abstractmethod
    def read(self, sequence: int) -> bytes | None:
        """A note; None where it was removed, or never was."""

    @abstractmethod
    def write_base(self, base: bytes) -> None:
        """Replaces the base."""

    @abstractmethod
    def read_base(self) -> bytes | None:
        """The base; None: there is none."""
