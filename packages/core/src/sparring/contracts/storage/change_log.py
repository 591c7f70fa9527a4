"""Contract of a changelog: the changed keys of a table, for caches in front of its backend.

A trainer appends a note after it has written to the backend; servers with caches in front of that
backend read the notes (`sparring_tiered.cache`). A backend that stores a changelog itself sets
`StorageDescriptor.change_log`; for all others, sparring-tiered stores it in a folder.

Threads
    One trainer appends; any number of readers in other processes read. One thread at a time uses an
    object.
"""

from __future__ import annotations

from abc import abstractmethod

from sparring.runtime.lifecycle import Closable

__all__ = ["ChangeLog"]


class ChangeLog(Closable):
    """Numbered notes of one table, in ascending order, and one base; all are opaque bytes.

    A call that raised may have succeeded or not, but it never leaves part of a note or base.
    Methods raise `StorageIOError` and `DeadlineError`.
    """

    @property
    @abstractmethod
    def place(self) -> str:
        """Location of the changelog, for messages. It contains no secret."""

    @abstractmethod
    def append(self, sequence: int, note: bytes, keep: int) -> None:
        """Appends a note, and removes old ones.

        Args:
            sequence: number of the note, above the number of the newest one.
            note: content of the note.
            keep: number of newest notes to keep, including this one.
        """

    @abstractmethod
    def newest(self) -> int:
        """Returns the number of the newest note, or 0 if there is none."""

    @abstractmethod
    def read(self, sequence: int) -> bytes | None:
        """Returns a note; None if it was removed or never written.

        Args:
            sequence: number of the note.
        """

    @abstractmethod
    def write_base(self, base: bytes) -> None:
        """Replaces the base.

        Args:
            base: content of the base.
        """

    @abstractmethod
    def read_base(self) -> bytes | None:
        """Returns the base, or None if there is none."""
