"""A committed snapshot, found by its URL, with its chain of bases: manifests, segments, state."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage.results import ScanChunk
from sparring.errors import (
    InvalidArgumentError,
    SnapshotDamagedError,
    SnapshotError,
    UnknownTableError,
)
from sparring.runtime.secrets import has_password
from sparring.snapshot.format.data_file import SnapshotState, decode_dtype, decode_state_values
from sparring.snapshot.format.manifest import (
    BLOCK_BYTES,
    BLOCK_DIGITS,
    MANIFEST_BYTES,
    MANIFEST_NAME,
    MAX_CHAIN,
    STATE_HEADER_BYTES,
    Base,
    FileEntry,
    Manifest,
    NewerFormatError,
    OtherFormatError,
    TableDescription,
    decode_text,
    hash_blocks,
)
from sparring.snapshot.format.rows_file import BlockReader, read_segments
from sparring.snapshot.place.place import SnapshotRoot, damaged_error, reading

__all__ = ["Snapshot", "locate", "open_root", "open_snapshot"]


def open_root(root_url: str | os.PathLike[str]) -> SnapshotRoot:
    """Opens the folder that holds snapshots.

    Raises:
        InvalidArgumentError: no file system goes by that URL, it names no folder, or
            it holds a password.
        SnapshotIOError: its file system cannot be reached.
    """
    from sparring.snapshot.place.local import LocalRoot

    text = os.fspath(root_url)
    _reject_password(text)
    _check_names_a_folder(text)
    scheme, is_url, path = text.partition("://")
    if not is_url:
        return LocalRoot(Path(os.path.realpath(text)))
    if scheme == "file":
        return LocalRoot(Path(os.path.realpath(path)))
    from sparring.snapshot.place.remote import open_remote_root

    return open_remote_root(text)


def locate(url: str | os.PathLike[str]) -> tuple[SnapshotRoot, str]:
    """The place that holds a snapshot, and its name there.

    Raises:
        InvalidArgumentError: the URL names no folder within another.
    """
    given = os.fspath(url)
    _reject_password(given)
    _check_names_a_folder(given)
    text = given.rstrip("/") or given
    scheme, is_url, path = text.partition("://")
    if not is_url or scheme == "file":
        local = Path(os.path.realpath(path if is_url else text))
        parent, name = str(local.parent), local.name
    else:
        parent, _, name = text.rpartition("/")
    if not name or parent.endswith(":/"):
        raise InvalidArgumentError(
            f"snapshot {url}: names no folder within another; give one like runs/step-000000123"
        )
    return open_root(parent), name


def _check_names_a_folder(text: str) -> None:
    """Refuses an empty path, which would mean the current folder."""
    scheme, is_url, path = text.partition("://")
    if not scheme or (is_url and not path):
        raise InvalidArgumentError(
            f"{text!r} names no folder; give a path as runs/a, or a URL as s3://bucket/runs/a",
            url=text,
        )


def _reject_password(url: str) -> None:
    """Refuses a URL with a password: messages, metrics and other ranks show it."""
    if has_password(url):
        raise InvalidArgumentError(
            "the URL of a snapshot must hold no password, because it is printed; give it by the "
            "variables or files of the file system, as AWS_SECRET_ACCESS_KEY or fsspec's "
            "configuration"
        )


_PIECE_BYTES = 4 << 20
_MANIFEST = re.compile(r"manifest(\.\d{1,9})?\.json\Z")


def open_snapshot(url: str | os.PathLike[str]) -> Snapshot:
    """Opens a committed snapshot, and the chain that it is a delta over.

    Reads and checks manifests, and that data files are there; it reads none of them.

    Args:
        url: of the snapshot's folder; or of its manifest, where several snapshots were put into one
            folder, as a SavedModel's assets are: ``assets/manifest.2.json``.

    Raises:
        InvalidArgumentError: the URL names no folder within another.
        SnapshotError: there is none, or it is a delta whose base is missing or another one.
        SnapshotDamagedError: a manifest is damaged, or a file is missing.
        SnapshotIOError: the file system failed.
    """
    text = os.fspath(url)
    folder, _, last = text.rpartition("/")
    if folder and _MANIFEST.match(last):
        place, name = locate(folder)
        return _open_chain(place, name, last)
    place, name = locate(text)
    return _open_chain(place, name)


class Snapshot:
    """A committed snapshot. It never changes, so it may be read by many at once.

    Made by `open_snapshot`. `scan_rows` reads its rows, `count_rows` counts them, `verify_snapshot`
    checks all its files.
    """

    def __init__(
        self,
        place: SnapshotRoot,
        name: str,
        manifest: Manifest,
        manifest_hash: str,
        base: Snapshot | None,
    ) -> None:
        self.place = place
        """The folder that holds it."""
        self.name = name
        self.url = place.url_of(name)
        self.step: int = manifest.step
        """The number of the step whose state this is."""
        self.world_size: int = manifest.world_size
        """The number of ranks that wrote it; any number may read it."""
        self.base = base
        """The snapshot that this is a delta over; None: it is full."""
        self.manifest_hash = manifest_hash
        """Hash by which a delta names its base."""
        self.own_tables: Mapping[str, TableDescription] = {
            table.name: table.description for table in manifest.tables
        }
        """The tables of which this snapshot itself has files."""
        self.tables: Mapping[str, TableDescription] = {
            **({} if base is None else base.tables),
            **self.own_tables,
        }
        """Name → table, over the whole chain."""
        self._files = {entry.name: entry for entry in manifest.files}

    def __repr__(self) -> str:
        return f"<Snapshot {self.url} of step {self.step}>"

    @property
    def chain(self) -> tuple[Snapshot, ...]:
        """This snapshot, its base, the base's base, …; the last one is full."""
        found = [self]
        while found[-1].base is not None:
            found.append(found[-1].base)
        return tuple(found)

    def files(self, table: str | None = None, kind: str | None = None) -> list[FileEntry]:
        """Manifest entries of this snapshot's own files, of one table or kind, or all."""
        return [
            entry
            for entry in self._files.values()
            if table in {None, entry.table} and kind in {None, entry.kind}
        ]

    def segments(
        self, entry: FileEntry, wanted: npt.NDArray[np.bool_] | None = None
    ) -> Iterator[ScanChunk]:
        """The rows or erased keys of one of this snapshot's own files, verified.

        Args:
            entry: of the file.
            wanted: ``(4096,)``: segments that hold none of these partitions may be left out;
                None: all of them.

        Raises:
            SnapshotDamagedError: the file is damaged.
            SnapshotIOError: the file system failed.
        """
        with reading(self.url, entry.name):
            folder = self.place.open(self.name)
        with folder:
            table = self.own_tables[entry.table]
            yield from read_segments(self.url, folder, entry, table, wanted)

    def check_file(self, entry: FileEntry) -> None:
        """Compares the bytes of one of this snapshot's own files with the hashes in the manifest.

        Raises:
            SnapshotDamagedError: they differ; the error contains the offset of the first wrong block.
            SnapshotIOError: the file system failed.
        """
        with (
            reading(self.url, entry.name),
            self.place.open(self.name) as folder,
            folder.open(entry.name) as file,
        ):
            if file.size_bytes != entry.size_bytes:
                raise damaged_error(
                    self.url,
                    entry.name,
                    min(file.size_bytes, entry.size_bytes),
                    f"it has {file.size_bytes:,} bytes, manifest.json says {entry.size_bytes:,}",
                )
            hashes = hash_blocks(file.read_into, file.size_bytes)
        for block in range(len(entry.blocks) // BLOCK_DIGITS):
            part = slice(block * BLOCK_DIGITS, (block + 1) * BLOCK_DIGITS)
            if hashes.blocks[part] != entry.blocks[part]:
                raise damaged_error(
                    self.url,
                    entry.name,
                    block * BLOCK_BYTES,
                    f"the block there hashes to {hashes.blocks[part]}, manifest.json says "
                    f"{entry.blocks[part]}",
                )
        if hashes.whole != entry.hash:
            raise damaged_error(
                self.url,
                entry.name,
                0,
                f"the file hashes to {hashes.whole}, manifest.json says {entry.hash}",
            )

    def unlisted_files(self) -> list[str]:
        """The names of files in this snapshot's folder that its manifest does not list; sorted.

        Raises:
            SnapshotIOError: the file system failed.
        """
        with reading(self.url, "the folder"), self.place.open(self.name) as folder:
            found = set(folder.names())
        return sorted(found - self._files.keys() - {MANIFEST_NAME})

    def state_names(self, rank: int | None = None) -> list[str]:
        """The names of state that a rank wrote, or any rank; sorted."""
        return sorted(
            {entry.state for entry in self.files(kind="state") if rank in {None, entry.rank}}
        )

    def state(self, name: str, rank: int = 0) -> SnapshotState:
        """The state that a rank wrote under a name; a delta holds all its state itself.

        Raises:
            SnapshotError: the rank wrote no such state.
            SnapshotDamagedError: the file is damaged.
            SnapshotIOError: the file system failed.
        """
        for entry in self.files(kind="state"):
            if (entry.state, entry.rank) == (name, rank):
                return self._read_state(entry)
        raise SnapshotError(
            f"snapshot {self.url} has no state {name!r} of rank {rank}; rank {rank} wrote "
            f"{', '.join(self.state_names(rank)) or 'none'}, all ranks "
            f"{', '.join(self.state_names()) or 'none'}",
            url=self.url,
        )

    def _read_state(self, entry: FileEntry) -> SnapshotState:
        with reading(self.url, entry.name):
            folder = self.place.open(self.name)
        with folder, BlockReader(self.url, folder, entry) as reader:
            header, begin = reader.header(STATE_HEADER_BYTES)
            try:
                values = decode_state_values(header)
            except ValueError as error:
                raise reader.damaged_error(8, str(error)) from error
            arrays: dict[str, npt.NDArray[Any]] = {}
            for tensor in header.tensors:
                data = np.empty(tensor.end - tensor.begin, np.uint8)
                for at in range(0, len(data), _PIECE_BYTES):
                    piece = data[at : at + _PIECE_BYTES]
                    first = begin + tensor.begin + at
                    piece[...] = reader.read(first, first + len(piece))
                arrays[tensor.name] = data.view(decode_dtype(tensor.code)).reshape(tensor.shape)
            return SnapshotState(values, arrays)

    def check_table(self, table: str) -> None:
        """Raises `UnknownTableError` if the chain has no such table."""
        if table not in self.tables:
            raise UnknownTableError(
                f"snapshot {self.url} has no table {table!r}; it has "
                f"{', '.join(sorted(self.tables)) or 'none'}",
                table=table,
            )


def _open_chain(place: SnapshotRoot, name: str, manifest_name: str = MANIFEST_NAME) -> Snapshot:
    """Opens the newest of a chain, and all below it, without recursion."""
    opened: list[tuple[str, Manifest, str]] = []
    expected: Base | None = None
    while True:
        delta = opened[-1][0] if opened else ""
        file_name = MANIFEST_NAME if opened else manifest_name
        manifest, found = _read_manifest(place, name, file_name, expected=expected, delta=delta)
        opened.append((name, manifest, found))
        expected = manifest.base
        if expected is None:
            break
        if len(opened) > MAX_CHAIN or any(expected.name == each[0] for each in opened):
            raise SnapshotError(
                f"snapshot {place.url_of(opened[0][0])}: its chain of bases does not end within "
                f"{MAX_CHAIN} snapshots; load another",
                url=place.url_of(opened[0][0]),
            )
        name = expected.name
    snapshot: Snapshot | None = None
    for each, manifest, found in reversed(opened):
        older = snapshot
        snapshot = Snapshot(place, each, manifest, found, older)
        if older is not None:
            _check_same_tables(snapshot, older)
    assert snapshot is not None
    return snapshot


def _check_same_tables(snapshot: Snapshot, base: Snapshot) -> None:
    known = base.tables
    for name, table in snapshot.own_tables.items():
        other = known.get(name)
        if other is not None and (other.config, other.has_scores) != (
            table.config,
            table.has_scores,
        ):
            raise SnapshotError(
                f"snapshot {snapshot.url}: table {name!r} is {table}, in its base {base.url} it is "
                f"{other}; a delta must be over a base of the same tables"
            )


def _read_manifest(
    place: SnapshotRoot, name: str, file_name: str, *, expected: Base | None, delta: str
) -> tuple[Manifest, str]:
    url = place.url_of(name)
    of_delta = f", the base of {place.url_of(delta)}" if delta else ""
    try:
        with reading(url, "the folder"):
            folder = place.open(name)
    except SnapshotDamagedError as error:
        raise SnapshotError(
            f"there is no snapshot {url}{of_delta} ({error.__cause__}); see `sparring snapshots "
            f"{place.url}` for those that there are",
            url=url,
        ) from error
    with folder, reading(url, file_name):
        try:
            file = folder.open(file_name)
        except FileNotFoundError as error:
            raise SnapshotError(
                f"{url}{of_delta} is no committed snapshot: it has no {file_name}; see `sparring "
                f"snapshots {url}` for those that it holds",
                url=url,
            ) from error
        with file:
            if file.size_bytes > MANIFEST_BYTES:
                raise damaged_error(url, file_name, 0, f"it has {file.size_bytes:,} bytes")
            text = bytearray(file.size_bytes)
            file.read_into(0, memoryview(text))
        names = set(folder.names())
    try:
        manifest, found = decode_text(bytes(text), Manifest)
    except NewerFormatError as error:
        raise SnapshotError(f"snapshot {url}{of_delta} cannot be read: {error}", url=url) from error
    except OtherFormatError as error:
        raise SnapshotError(
            f"{url}{of_delta} is no snapshot of a training: {error}; name the folder that a training "
            "saved to. `sparring inspect-served` shows serving snapshots",
            url=url,
        ) from error
    except ValueError as error:
        raise damaged_error(url, file_name, 0, str(error)) from error
    for entry in manifest.files:
        if entry.name not in names:
            raise damaged_error(url, entry.name, 0, f"it is missing, but {file_name} lists it")
    if expected is not None and found != expected.hash:
        raise SnapshotError(
            f"snapshot {url}: {file_name} has the hash {found}, its delta {place.url_of(delta)} "
            f"was made over {expected.hash}; the base is another snapshot than that",
            url=url,
            file=file_name,
            offset=0,
        )
    return manifest, found
