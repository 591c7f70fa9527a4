"""Who must know of every write to a storage, as a snapshot that is being taken must."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from sparring.storage.results import Evicted, Keys

__all__ = ["UNWATCHED", "Watcher", "Write"]


class Write(Protocol):
    """One write that is watched."""

    def note_evicted(self, evicted: Evicted) -> None:
        """What left to make room for it."""


class Watcher(Protocol):
    """Is told of writes, by the thread that writes. It must not raise."""

    def writing(self, keys: Keys) -> AbstractContextManager[Write]:
        """Surrounds a write to rows of `keys`: entered before the first of them changes."""

    def clearing(self) -> None:
        """All rows are about to be removed."""


class _Unwatched:
    def note_evicted(self, evicted: Evicted) -> None:
        """Nobody wants to know."""


UNWATCHED: AbstractContextManager[Write] = nullcontext(_Unwatched())
"""Surrounds a write that nobody watches."""
