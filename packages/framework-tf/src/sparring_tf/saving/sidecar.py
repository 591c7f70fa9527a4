"""Snapshots next to files of Keras and checkpoints, for rows that are too many to be stored inside.

::

    m.keras                      names save-000002.0 and the hash of its manifest
    m.keras.rows/
    ├── save-000001.0/           of the save before; copies of m.keras may name it
    └── save-000002.0/           one for each container of the model
    checkpoint-1.index           names save-000001.0 of
    checkpoint-1.checkpoint.rows/
    └── save-000001.0/

A snapshot is committed before the file that names it is whole. It is never written twice, so a file
finds its own or none.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sparring import SaveOptions, Snapshot, StepContainer, open_snapshot
from sparring.adapter import open_root
from sparring.errors import DataError, SnapshotError

__all__ = [
    "SidecarRows",
    "SidecarSave",
    "begin_save",
    "parse_sidecar_rows",
    "open_sidecar",
    "get_prepared_save",
    "use_prepared_save",
]

_SAVE = re.compile(r"save-(\d{6,18})\.\d{1,6}\Z")
_STALE_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class SidecarRows:
    """Place of a table's rows, as the file next to them says."""

    folder: str
    """``m.keras.rows``"""
    name: str
    """``save-000002.0``"""
    manifest_hash: str
    table: str
    """Its name there."""

    def as_dict(self) -> dict[str, str]:
        """For JSON; `parse_sidecar_rows` reads it."""
        return asdict(self)


def parse_sidecar_rows(plain: Any, table: str) -> SidecarRows:
    """The `SidecarRows` of an `as_dict` result, from a file that anybody may have written.

    Raises:
        DataError: it is not that, or leads elsewhere than next to the file.
    """
    fields = SidecarRows.__dataclass_fields__
    is_whole = isinstance(plain, Mapping) and set(plain) == set(fields)
    if is_whole and all(isinstance(each, str) for each in plain.values()):
        found = SidecarRows(**plain)
        is_inside = found.folder not in {"", ".", ".."} and not {"/", "\0"} & set(found.folder)
        if is_inside and _SAVE.match(found.name):
            return found
    raise DataError(
        f"where the rows of table {table!r} lie was not saved rightly; the file is damaged",
        table=table,
    )


def open_sidecar(path: Path, rows: SidecarRows, table: str) -> Snapshot:
    """The snapshot that a file names.

    Args:
        path: of the file, which may have been renamed with its folder of rows.
        rows: as the file has it.
        table: that is loaded, for messages.

    Raises:
        SnapshotError: it is not there, or is another one.
        SnapshotDamagedError: it is not what was written.
    """
    places = dict.fromkeys([path.parent / rows.folder, _folder(path)])
    found: list[str] = []
    for place in places:
        try:
            snapshot = open_snapshot(place / rows.name)
        except SnapshotError as error:
            if type(error) is not SnapshotError:
                raise
            continue
        if snapshot.manifest_hash == rows.manifest_hash:
            return snapshot
        found.append(f"{snapshot.url}, which is another one (hash {snapshot.manifest_hash})")
    what = f"found {' and '.join(found)}" if found else "there is none"
    raise SnapshotError(
        f"{path} has the rows of table {table!r} in the snapshot {rows.folder}/{rows.name} next to it "
        f"(hash {rows.manifest_hash}), expected at {next(iter(places)) / rows.name}; {what}. Nothing "
        f"was loaded: copy the folder {rows.folder} that was saved with the file to where the file is",
        table=table,
        url=str(next(iter(places)) / rows.name),
    )


class SidecarSave:
    """The snapshots of one save of a file.

    Args:
        path: of the file.
        number: of the save; None: the next one.
    """

    def __init__(self, path: Path, number: int | None = None) -> None:
        self.number = 1 + max(_numbers(path), default=0) if number is None else number
        self.is_whole = True
        """Whether other tables of the file are of this save."""
        self.path = path
        """Of the file."""
        # Weakly: TensorFlow does not say when a checkpoint is written, and what stands for one stays.
        self._rows = weakref.WeakKeyDictionary[StepContainer, SidecarRows]()
        self._num_written = 0

    def write(self, container: StepContainer, place: int | None = None) -> None:
        """Saves a container, all of its ranks, once. All of its ranks call it.

        Args:
            container: to save.
            place: its number in this save, the same on all ranks; None: the next one, where one rank
                writes them all.

        Raises:
            SnapshotError: the file system failed.
        """
        if container in self._rows:
            return
        name = f"save-{self.number:06d}.{self._num_written if place is None else place}"
        folder = _folder(self.path)
        saved = container.save(str(folder / name), options=SaveOptions(share=1.0))
        manifest_hash = open_snapshot(saved.url).manifest_hash
        self._rows[container] = SidecarRows(folder.name, name, manifest_hash, "")
        self._num_written += 1

    def rows(self, container: StepContainer, table: str) -> SidecarRows | None:
        """Entry of the file for a table; None: its container was not written."""
        known = self._rows.get(container)
        return None if known is None else replace(known, table=table)

    def remove_older(self) -> None:
        """Leaves the snapshots of this save and of the one before."""
        if not self.is_whole:
            return
        place = open_root(_folder(self.path))
        numbers = sorted({each for each in _numbers(self.path) if each <= self.number})
        for name in place.names():
            match = _SAVE.match(name)
            if match and numbers and int(match[1]) < numbers[-2:][0]:
                place.remove(name)
        place.remove_stale(_STALE_SECONDS)


_prepared: ContextVar[SidecarSave | None] = ContextVar("get_prepared_save", default=None)
_saves: dict[int, SidecarSave] = {}
"""Those under way, by the identity of what is written."""


@contextmanager
def use_prepared_save(save: SidecarSave) -> Iterator[None]:
    """Layers that Keras saves meanwhile name the snapshots of `save`, and write none."""
    token = _prepared.set(save)
    try:
        yield
    finally:
        _prepared.reset(token)


def get_prepared_save() -> SidecarSave | None:
    """That of a `use_prepared_save`; None where Keras alone is at work."""
    return _prepared.get()


def begin_save(written: object, path: Callable[[], Path]) -> SidecarSave:
    """The save of a file that is under way, or a new one.

    Args:
        written: what lives as long as that file is written.
        path: of the file.

    Raises:
        UnsupportedError: what is written is not in a folder of this machine.
    """
    save = _saves.get(id(written))
    if save is None:
        save = SidecarSave(path())
        try:
            weakref.finalize(written, _saves.pop, id(written), None)
            _saves[id(written)] = save
        except TypeError:
            # None, or what cannot be referred to weakly. Each table is a save of its own then.
            save.is_whole = False
    return save


def _folder(path: Path) -> Path:
    return path.with_name(f"{path.name}.rows")


def _numbers(path: Path) -> list[int]:
    """Numbers of the saves next to a file."""
    folder = _folder(path)
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    return [int(match[1]) for match in map(_SAVE.match, names) if match]
