"""Snapshots next to Keras files and checkpoints, for rows that are too large to be stored inside.

::

    m.keras                      refers to save-000002.0 and the hash of its manifest
    m.keras.rows/
    ├── save-000001.0/           previous save; copies of m.keras may refer to it
    └── save-000002.0/           one snapshot per container of the model
    checkpoint-1.index           refers to save-000001.0 in
    checkpoint-1.checkpoint.rows/
    └── save-000001.0/

A snapshot is committed before the file that refers to it is complete. It is never overwritten, so a file
finds either its own snapshot or none.
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
from sparring.errors import DataError, SnapshotError, SnapshotNotFoundError

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
    """Location of a table's rows, as stored in the file next to them."""

    folder: str
    """``m.keras.rows``"""
    name: str
    """``save-000002.0``"""
    manifest_hash: str
    table: str
    """Name of the table in the snapshot."""

    def as_dict(self) -> dict[str, str]:
        """Returns JSON values, which `parse_sidecar_rows` parses."""
        return asdict(self)


def parse_sidecar_rows(plain: Any, table: str) -> SidecarRows:
    """Parses the result of `as_dict` from an untrusted file.

    Raises:
        DataError: the value is invalid, or refers to a path that is not next to the file.
    """
    fields = SidecarRows.__dataclass_fields__
    is_whole = isinstance(plain, Mapping) and set(plain) == set(fields)
    if is_whole and all(isinstance(each, str) for each in plain.values()):
        found = SidecarRows(**plain)
        is_inside = found.folder not in {"", ".", ".."} and not {"/", "\0"} & set(found.folder)
        if is_inside and _SAVE.match(found.name):
            return found
    raise DataError(
        f"the location of the rows of table {table!r} is invalid; the file is damaged, load an older "
        "file",
        table=table,
    )


def open_sidecar(path: Path, rows: SidecarRows, table: str) -> Snapshot:
    """Opens the snapshot that a file refers to.

    Args:
        path: path of the file, which may have been renamed with its folder of rows.
        rows: the location in the file.
        table: name of the table to load, for error messages.

    Raises:
        SnapshotError: the snapshot does not exist, or belongs to another save.
        SnapshotDamagedError: the snapshot is damaged.
    """
    places = dict.fromkeys([path.parent / rows.folder, _folder(path)])
    found: list[str] = []
    for place in places:
        try:
            snapshot = open_snapshot(place / rows.name)
        except SnapshotNotFoundError:
            continue
        if snapshot.manifest_hash == rows.manifest_hash:
            return snapshot
        found.append(f"{snapshot.url} of another save (hash {snapshot.manifest_hash})")
    what = f"found {' and '.join(found)}" if found else "it does not exist"
    raise SnapshotError(
        f"{path} refers to the rows of table {table!r} in the snapshot {rows.folder}/{rows.name} next "
        f"to it (hash {rows.manifest_hash}), expected at {next(iter(places)) / rows.name}; {what}. "
        f"Nothing was loaded: copy the folder {rows.folder} that was saved with the file to the "
        "file's folder",
        table=table,
        url=str(next(iter(places)) / rows.name),
    )


class SidecarSave:
    """The snapshots of one save of a file.

    Args:
        path: path of the file.
        number: number of the save. Defaults to the next number.
    """

    def __init__(self, path: Path, number: int | None = None) -> None:
        self.number = 1 + max(_numbers(path), default=0) if number is None else number
        self.is_whole = True
        """Whether the other tables of the file belong to this save."""
        self.path = path
        """Path of the file."""
        # Weak, because TensorFlow does not report the end of a save, and keeps the object for it.
        self._rows = weakref.WeakKeyDictionary[StepContainer, SidecarRows]()
        self._num_written = 0

    def write(self, container: StepContainer, place: int | None = None) -> None:
        """Saves a container with all of its ranks, once. All of its ranks call it.

        Args:
            container: the container.
            place: number of the container in this save, the same on all ranks. Defaults to the next
                number, if one rank writes all containers.

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
        """Returns the location of a table's rows, or None if its container was not written."""
        known = self._rows.get(container)
        return None if known is None else replace(known, table=table)

    def remove_older(self) -> None:
        """Removes the snapshots of all saves except this one and the previous one."""
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
"""Saves in progress, by the `id` of the object that is written."""


@contextmanager
def use_prepared_save(save: SidecarSave) -> Iterator[None]:
    """Lets the layers that Keras saves refer to the snapshots of `save` instead of writing their own."""
    token = _prepared.set(save)
    try:
        yield
    finally:
        _prepared.reset(token)


def get_prepared_save() -> SidecarSave | None:
    """Returns the save of the active `use_prepared_save`, or None if there is none."""
    return _prepared.get()


def begin_save(written: object, path: Callable[[], Path]) -> SidecarSave:
    """Returns the save in progress of a file, or starts one.

    Args:
        written: an object that exists as long as the file is being written.
        path: returns the path of the file.

    Raises:
        UnsupportedError: the file is not in a folder of this machine.
    """
    save = _saves.get(id(written))
    if save is None:
        save = SidecarSave(path())
        try:
            weakref.finalize(written, _saves.pop, id(written), None)
            _saves[id(written)] = save
        except TypeError:
            # None, or an object without weak references. Each table is then a separate save.
            save.is_whole = False
    return save


def _folder(path: Path) -> Path:
    return path.with_name(f"{path.name}.rows")


def _numbers(path: Path) -> list[int]:
    """Returns the numbers of the saves next to a file."""
    folder = _folder(path)
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    return [int(match[1]) for match in map(_SAVE.match, names) if match]
