"""Remembers opened snapshots, and checks that they have not changed.

A run that saves a delta per second would otherwise read the manifests of its whole chain several times
per second.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from sparring.snapshot.place.place import SnapshotRoot

__all__ = ["RememberedSnapshots"]

_MAX_SNAPSHOTS = 1024
"""More than the maximum length of a chain."""


class _Opened(Protocol):
    """An opened snapshot."""

    place: SnapshotRoot
    name: str

    @property
    def chain(self) -> tuple[_Opened, ...]: ...


_Snapshot = TypeVar("_Snapshot", bound=_Opened)


class RememberedSnapshots(Generic[_Snapshot]):
    """The snapshots that were opened most recently. Any number of threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Folder and name → identity and snapshot.
        self._found: OrderedDict[tuple[str, str], tuple[tuple[int, ...], _Snapshot]] = OrderedDict()

    def find(
        self, place: SnapshotRoot, name: str, known: Mapping[str, _Snapshot]
    ) -> _Snapshot | None:
        """Returns a snapshot that was opened before, if its chain has not changed since then.

        Args:
            place: Folder of the snapshot.
            name: Name of the snapshot.
            known: Name → snapshot in this folder that is not checked again.
        """
        newest = self._get(place.url, name)[1]
        for each in () if newest is None else newest.chain:
            if known.get(each.name) is each:
                break
            identity, found = self._get(place.url, each.name)
            if found is not each or place.identity(each.name) != identity:
                return None
        return newest

    def add(self, snapshot: _Snapshot, identity: tuple[int, ...] | None) -> None:
        """Remembers a snapshot.

        Args:
            snapshot: The opened snapshot.
            identity: Its identity before it was opened; see `SnapshotRoot.identity`.
        """
        if identity is None:
            return
        with self._lock:
            self._found[snapshot.place.url, snapshot.name] = identity, snapshot
            while len(self._found) > _MAX_SNAPSHOTS:
                self._found.popitem(last=False)

    def _get(self, url: str, name: str) -> tuple[tuple[int, ...] | None, _Snapshot | None]:
        with self._lock:
            found = self._found.get((url, name))
            if found is None:
                return None, None
            self._found.move_to_end((url, name))
            return found
