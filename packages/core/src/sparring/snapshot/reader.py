"""Reads committed snapshots: their manifests, chains of bases, segments and state.

The file is long because it also remembers opened snapshots, so that a save crosses one file less.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
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
    SnapshotNotFoundError,
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

__all__ = ["RememberedSnapshots", "Snapshot", "locate", "open_chain", "open_root", "open_snapshot"]

_MAX_REMEMBERED = 1024
"""More than the maximum length of a chain."""


def open_root(root_url: str | os.PathLike[str]) -> SnapshotRoot:
    """Opens a folder of snapshots.

    Args:
        root_url: A path or any fsspec URL; the folder does not need to exist.

    Raises:
        InvalidArgumentError: The URL's scheme is unknown, it does not name a folder, or it contains a
            password.
        SnapshotIOError: The file system cannot be reached.
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
    """Returns the opened folder that contains a snapshot, and the name of the snapshot in it.

    Args:
        url: URL of the snapshot's folder; the snapshot does not need to exist.

    Raises:
        InvalidArgumentError: The URL does not name a folder inside another one.
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
            f"snapshot {url} does not name a folder inside another one; pass a path such as "
            "runs/step-000000123"
        )
    return open_root(parent), name


def _check_names_a_folder(text: str) -> None:
    """Rejects an empty path, which would mean the current folder."""
    scheme, is_url, path = text.partition("://")
    if not scheme or (is_url and not path):
        raise InvalidArgumentError(
            f"{text!r} does not name a folder; pass a path such as runs/a, or a URL such as "
            "s3://bucket/runs/a",
            url=text,
        )


def _reject_password(url: str) -> None:
    """Rejects a URL with a password, because messages, metrics and other ranks show URLs."""
    if has_password(url):
        raise InvalidArgumentError(
            "the URL of a snapshot must not contain a password, because it is printed; pass the "
            "password in the environment or the configuration of the file system, for example in "
            "AWS_SECRET_ACCESS_KEY or in fsspec's configuration"
        )


_PIECE_BYTES = 4 << 20
_MANIFEST = re.compile(r"manifest(\.\d{1,9})?\.json\Z")


def open_snapshot(url: str | os.PathLike[str]) -> Snapshot:
    """Opens a committed snapshot and, if it is a delta, its chain of bases.

    Reads and checks the manifests and checks that the data files exist. It does not read data files.

    Args:
        url: URL of the snapshot's folder. If the folder contains several snapshots, for example the
            assets of a SavedModel, pass the URL of a manifest: ``assets/manifest.2.json``.

    Raises:
        InvalidArgumentError: The URL does not name a folder inside another one.
        SnapshotError: There is no such snapshot, or the base of a delta is missing or was replaced.
        SnapshotDamagedError: A manifest is damaged, or a file is missing.
        SnapshotIOError: The file system failed.

    Examples:
        >>> import tempfile
        >>> from sparring import StepContainer, TableConfig, open_snapshot
        >>> with tempfile.TemporaryDirectory() as folder, StepContainer() as container:
        ...     container.declare(TableConfig("user", dim=2))
        ...     container.assign("user", [1, 2, 3], [[0, 1], [2, 3], [4, 5]])
        ...     saved = container.save(f"{folder}/step-000000000")
        ...     snapshot = open_snapshot(saved.url)
        >>> snapshot.step, snapshot.tables["user"].dim
        (0, 2)
    """
    text = os.fspath(url)
    folder, _, last = text.rpartition("/")
    if folder and _MANIFEST.match(last):
        place, name = locate(folder)
        return open_chain(place, name, last)
    place, name = locate(text)
    return open_chain(place, name)


class Snapshot:
    """A committed snapshot. It never changes, so any number of threads and processes may read it.

    `open_snapshot` creates it. `scan_rows` reads its rows, `count_rows` counts them, and
    `verify_snapshot` checks all its files.

    Examples:
        >>> import tempfile
        >>> from sparring import StepContainer, open_snapshot
        >>> with tempfile.TemporaryDirectory() as folder, StepContainer() as container:
        ...     saved = container.save(f"{folder}/step-000000000")
        ...     snapshot = open_snapshot(saved.url)
        ...     snapshot.base is None, snapshot.world_size, list(snapshot.tables)
        (True, 1, [])
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
        """Folder that contains the snapshot."""
        self.name = name
        self.url = place.url_of(name)
        self.step: int = manifest.step
        """Step whose state the snapshot contains."""
        self.world_size: int = manifest.world_size
        """Number of ranks that wrote it. Any number of ranks may read it."""
        self.base = base
        """Base of a delta; None for a full snapshot."""
        self.full_name: str = base.full_name if base else name
        """Name of the last snapshot of the chain."""
        self.num_bases: int = base.num_bases + 1 if base else 0
        self.manifest_hash = manifest_hash
        """Hash by which a delta identifies its base."""
        self.own_tables: Mapping[str, TableDescription] = {
            table.name: table.description for table in manifest.tables
        }
        """Tables of this snapshot's own files, by name."""
        self.tables: Mapping[str, TableDescription] = {
            **({} if base is None else base.tables),
            **self.own_tables,
        }
        """Tables of the whole chain, by name."""
        self._files = {entry.name: entry for entry in manifest.files}

    def __repr__(self) -> str:
        return f"<Snapshot {self.url} of step {self.step}>"

    @property
    def chain(self) -> tuple[Snapshot, ...]:
        """This snapshot, its base, the base of its base, and so on. The last one is full."""
        found = [self]
        while found[-1].base is not None:
            found.append(found[-1].base)
        return tuple(found)

    def files(self, table: str | None = None, kind: str | None = None) -> list[FileEntry]:
        """Returns the manifest entries of this snapshot's own files.

        Args:
            table: Name of the table whose files are returned; None for all.
            kind: ``rows``, ``erased`` or ``state``; None for all.
        """
        return [
            entry
            for entry in self._files.values()
            if table in {None, entry.table} and kind in {None, entry.kind}
        ]

    def segments(
        self, entry: FileEntry, wanted: npt.NDArray[np.bool_] | None = None, every: int = 1
    ) -> Iterator[ScanChunk]:
        """Yields the verified rows or erased keys of one of this snapshot's own files.

        Args:
            entry: Manifest entry of the file.
            wanted: ``(4096,)``, True for each requested partition. Segments without requested
                partitions may be skipped. None reads all segments.
            every: Reads only every n-th of these segments, for a sample of the rows.

        Raises:
            SnapshotDamagedError: The file is damaged.
            SnapshotIOError: The file system failed.
        """
        with reading(self.url, entry.name):
            folder = self.place.open(self.name)
        with folder:
            table = self.own_tables[entry.table]
            yield from read_segments(self.url, folder, entry, table, wanted, every)

    def check_file(self, entry: FileEntry) -> None:
        """Compares the bytes of one of this snapshot's own files with the hashes in the manifest.

        Args:
            entry: Manifest entry of the file.

        Raises:
            SnapshotDamagedError: They differ; the error contains the offset of the first wrong block.
            SnapshotIOError: The file system failed.
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
                    f"it has {file.size_bytes:,} bytes, expected {entry.size_bytes:,} according to "
                    "manifest.json",
                )
            hashes = hash_blocks(file.read_into, file.size_bytes)
        for block in range(len(entry.blocks) // BLOCK_DIGITS):
            part = slice(block * BLOCK_DIGITS, (block + 1) * BLOCK_DIGITS)
            if hashes.blocks[part] != entry.blocks[part]:
                raise damaged_error(
                    self.url,
                    entry.name,
                    block * BLOCK_BYTES,
                    f"the block has the hash {hashes.blocks[part]}, expected {entry.blocks[part]} "
                    "according to manifest.json",
                )
        if hashes.whole != entry.hash:
            raise damaged_error(
                self.url,
                entry.name,
                0,
                f"the file has the hash {hashes.whole}, expected {entry.hash} according to "
                "manifest.json",
            )

    def unlisted_files(self) -> list[str]:
        """Returns the sorted names of files in this snapshot's folder that its manifest does not list.

        Raises:
            SnapshotIOError: The file system failed.
        """
        with reading(self.url, "the folder"), self.place.open(self.name) as folder:
            found = set(folder.names())
        return sorted(found - self._files.keys() - {MANIFEST_NAME})

    def state_names(self, rank: int | None = None) -> list[str]:
        """Returns the sorted names of the states that ranks wrote.

        Args:
            rank: Rank that wrote them; None for all ranks.
        """
        return sorted(
            {entry.state for entry in self.files(kind="state") if rank in {None, entry.rank}}
        )

    def state(self, name: str, rank: int = 0) -> SnapshotState:
        """Reads the state that a rank wrote under a name. A delta contains all of its state itself.

        Args:
            name: One of `state_names`.
            rank: Rank that wrote the state, at most ``world_size - 1``.

        Raises:
            SnapshotError: The rank wrote no such state.
            SnapshotDamagedError: The file is damaged.
            SnapshotIOError: The file system failed.
        """
        for entry in self.files(kind="state"):
            if (entry.state, entry.rank) == (name, rank):
                return self._read_state(entry)
        raise SnapshotError(
            f"snapshot {self.url} has no state {name!r} of rank {rank}; request one of the states of "
            f"this rank ({', '.join(self.state_names(rank)) or 'none'}) or of another rank "
            f"({', '.join(self.state_names()) or 'none'})",
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
        """Checks that the chain has a table.

        Args:
            table: Name of the table.

        Raises:
            UnknownTableError: The chain has no such table.
        """
        if table not in self.tables:
            raise UnknownTableError(
                f"snapshot {self.url} has no table {table!r}; choose one of its tables: "
                f"{', '.join(sorted(self.tables)) or 'none'}",
                table=table,
            )


class RememberedSnapshots:
    """The snapshots that were opened most recently. Any number of threads may use it.

    A run that saves a delta per second would otherwise read the manifests of its whole chain several
    times per second.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Folder and name → identity and snapshot.
        self._found: OrderedDict[tuple[str, str], tuple[tuple[int, ...], Snapshot]] = OrderedDict()
        self._num_added = 0
        """Number of snapshots since removed ones were forgotten."""

    def find(
        self, place: SnapshotRoot, name: str, known: Mapping[str, Snapshot]
    ) -> Snapshot | None:
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

    def add(self, snapshot: Snapshot, identity: tuple[int, ...] | None) -> None:
        """Remembers a snapshot.

        Args:
            snapshot: The opened snapshot.
            identity: Its identity before it was opened; see `SnapshotRoot.identity`.
        """
        if identity is None:
            return
        with self._lock:
            self._found[snapshot.place.url, snapshot.name] = identity, snapshot
            while len(self._found) > _MAX_REMEMBERED:
                self._found.popitem(last=False)
            self._num_added += 1
            # Otherwise, opening many snapshots would check each of them many times.
            is_due = self._num_added > len(self._found) // 2
            if is_due:
                self._num_added = 0
        if is_due:
            self._forget_removed(snapshot.place)

    def _forget_removed(self, place: SnapshotRoot) -> None:
        """Forgets snapshots that were removed, so that the memory of a long run does not increase."""
        with self._lock:
            names = [name for url, name in self._found if url == place.url]
        removed = [name for name in names if place.identity(name) is None]
        with self._lock:
            for name in removed:
                self._found.pop((place.url, name), None)

    def _get(self, url: str, name: str) -> tuple[tuple[int, ...] | None, Snapshot | None]:
        with self._lock:
            found = self._found.get((url, name))
            if found is None:
                return None, None
            self._found.move_to_end((url, name))
            return found


_remembered = RememberedSnapshots()


def open_chain(
    place: SnapshotRoot,
    name: str,
    manifest_name: str = MANIFEST_NAME,
    known: Mapping[str, Snapshot] | None = None,
) -> Snapshot:
    """Opens a snapshot and all snapshots of its chain, without recursion.

    Args:
        place: Folder of the snapshot.
        name: Name of the snapshot.
        manifest_name: Name of its manifest.
        known: Name → snapshot in the same folder that was opened just now, and is not opened again.
    """
    opened: list[tuple[str, tuple[int, ...] | None, Manifest, str]] = []
    expected: Base | None = None
    snapshot: Snapshot | None = None
    while True:
        delta = opened[-1][0] if opened else ""
        file_name = MANIFEST_NAME if opened else manifest_name
        if file_name == MANIFEST_NAME:
            snapshot = (known or {}).get(name) or _remembered.find(place, name, known or {})
            if snapshot is not None and expected in {
                None,
                Base(name=name, hash=snapshot.manifest_hash),
            }:
                break
            snapshot = None
        identity = place.identity(name) if file_name == MANIFEST_NAME else None
        manifest, found = _read_manifest(place, name, file_name, expected=expected, delta=delta)
        opened.append((name, identity, manifest, found))
        expected = manifest.base
        if expected is None:
            break
        if len(opened) > MAX_CHAIN or any(expected.name == each[0] for each in opened):
            raise _long_chain_error(place.url_of(opened[0][0]))
        name = expected.name
    for each, identity, manifest, found in reversed(opened):
        older = snapshot
        snapshot = Snapshot(place, each, manifest, found, older)
        if older is not None:
            _check_same_tables(snapshot, older)
        if snapshot.num_bases > MAX_CHAIN:  # Over a remembered chain.
            raise _long_chain_error(snapshot.url)
        _remembered.add(snapshot, identity)
    assert snapshot is not None
    return snapshot


def _long_chain_error(url: str) -> SnapshotError:
    text = f"its chain of bases does not end within {MAX_CHAIN} snapshots; load another snapshot"
    return SnapshotError(f"snapshot {url}: {text}", url=url)


def _check_same_tables(snapshot: Snapshot, base: Snapshot) -> None:
    known = base.tables
    for name, table in snapshot.own_tables.items():
        other = known.get(name)
        if other is not None and (other.config, other.has_scores) != (
            table.config,
            table.has_scores,
        ):
            raise SnapshotError(
                f"snapshot {snapshot.url}: table {name!r} is {table}, but in its base {base.url} it is "
                f"{other}; the tables of a delta and its base must be equal. Load another snapshot"
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
        raise SnapshotNotFoundError(
            f"there is no snapshot {url}{of_delta} ({error.__cause__}); list the existing ones with "
            f"`sparring inspect {place.url}`",
            url=url,
        ) from error
    with folder, reading(url, file_name):
        try:
            file = folder.open(file_name)
        except FileNotFoundError as error:
            raise SnapshotNotFoundError(
                f"{url}{of_delta} is not a committed snapshot, because it has no {file_name}; if it is "
                f"a folder of snapshots, list them with `sparring inspect {url}`",
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
        raise SnapshotError(f"reading snapshot {url}{of_delta} failed: {error}", url=url) from error
    except OtherFormatError as error:
        raise SnapshotError(
            f"{url}{of_delta} is not a training snapshot: {error}; pass a folder that a training run "
            "saved to. `sparring inspect` shows serving snapshots, too",
            url=url,
        ) from error
    except ValueError as error:
        raise damaged_error(url, file_name, 0, str(error)) from error
    for entry in manifest.files:
        if entry.name not in names:
            raise damaged_error(url, entry.name, 0, f"it is missing, but {file_name} lists it")
    if expected is not None and found != expected.hash:
        raise SnapshotError(
            f"snapshot {url}: {file_name} has the hash {found}, but its delta {place.url_of(delta)} "
            f"was saved over a base with the hash {expected.hash}, so the base was replaced; load "
            "another snapshot",
            url=url,
            file=file_name,
            offset=0,
        )
    return manifest, found
