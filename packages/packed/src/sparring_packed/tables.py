"""Mapped tables of a serving snapshot: lookups, pooling, and concurrent refresh to newer versions.

The file is long because one class contains the whole interface of a reader.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sparring.adapter import BloomFilter, find_closest_name
from sparring.contracts import NUM_PARTITIONS, Closable, FindResult, Keys
from sparring.errors import (
    ClosedError,
    InvalidArgumentError,
    SnapshotIOError,
    SparringError,
    UnknownTableError,
)
from sparring_packed import library as native
from sparring_packed.filters import read_filter
from sparring_packed.manifest import ModelFile
from sparring_packed.mirror import Mirror
from sparring_packed.top_k_search import BLOCK_ROWS, Jagged, Metric, TopK, TopKSearch
from sparring_packed.warm_up import WarmUp, WarmUpResult, warm

__all__ = ["ModelContent", "PackedTable", "PackedTables", "PackedVersion", "PullResult", "open"]

Verify = Literal["all", "open"]
Missing = Literal["initial", "zeros"]
RowDtype = Literal["fp32", "stored"]
Mode = Literal["sum", "mean"]

Floats = npt.NDArray[np.float32]
Stored = npt.NDArray[Any]
"""``(n, dim)`` float32, or ``(n, row_bytes)`` uint8 if stored rows were requested."""

_VERIFY = {"all": 0, "open": 1}
_MISSING = {"initial": 0, "zeros": 1}
_ROW_DTYPES = {"fp32": 0, "stored": native.STORED}


@dataclass(frozen=True, slots=True)
class PackedVersion:
    """The version that a reply is from, identified by the hash of its manifest.

    Args:
        hash: hash of the manifest, 32 hexadecimal digits.
        step: training step of the rows.
        published: time of writing, in seconds since 1970.
    """

    hash: str
    step: int
    published: float

    @property
    def age_seconds(self) -> float:
        """Age of the version in seconds."""
        return max(0.0, time.time() - self.published)


@dataclass(frozen=True, slots=True)
class PackedTable:
    """Description of a table.

    Args:
        name: name of the table.
        number: number of the table in the C library.
        dim: number of elements of an embedding.
        dtype: dtype of stored rows: ``fp32``, ``fp16``, ``bf16``, ``int8`` or ``int4``.
        trained_dtype: dtype of embeddings in training: ``fp32``, ``fp16``, ``bf16`` or ``int8``.
        row_bytes: size of a stored row, including its scale and bias.
        num_rows: number of ids that have a row; an upper bound for a chain of deltas.
    """

    name: str
    number: int
    dim: int
    dtype: str
    trained_dtype: str
    row_bytes: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class PullResult:
    """Rows of several tables, all of one version.

    Args:
        rows: table → ``(n, dim)`` float32, or ``(n, row_bytes)`` uint8 for stored rows.
        found: table → ``(n,)``, whether an id has a row. Other ids have initial values or zeros.
        version: version of the rows.
    """

    rows: Mapping[str, Stored]
    found: Mapping[str, npt.NDArray[np.bool_]]
    version: PackedVersion


def open(  # noqa: A001 - used as sparring_packed.open
    url: str | os.PathLike[str],
    *,
    verify: Verify = "all",
    keep_versions: int = 2,
    partitions: tuple[int, int] | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> PackedTables:
    """Maps a serving snapshot.

    Args:
        url: a path or any URL of fsspec, of a serving snapshot or of a folder of serving snapshots, of
            which the newest is used.
        verify: ``all`` hashes every byte before the first lookup. ``open`` checks the manifest, sizes and
            headers, in a time that does not depend on the size; `PackedTables.verify` hashes the rest.
            Undetected damage causes wrong values, but never a crash.
        keep_versions: number of versions that a call may request, 1 to 8.
        partitions: half-open range of the 4,096 partitions of ids to look up. Defaults to all.
        cache: a local folder for copies if `url` is on another file system: files are copied and hashed
            before they are mapped. Processes may share it.

    Raises:
        InvalidArgumentError: an argument is out of range, or a URL was given without `cache`.
        SnapshotDamagedError: the snapshot is damaged; the message contains the file.
        SnapshotIOError: there is no snapshot, or the file system failed.

    Examples:
        >>> import sparring_packed
        >>> from tempfile import TemporaryDirectory
        >>> from sparring import StepContainer, TableConfig
        >>> with TemporaryDirectory() as folder, StepContainer() as container:
        ...     container.declare(TableConfig("item", dim=4))
        ...     _ = container.save(f"{folder}/trained")
        ...     _ = sparring_packed.write(f"{folder}/trained", f"{folder}/served/1")
        ...     with sparring_packed.open(f"{folder}/served") as tables:
        ...         tables.lookup("item", [7, -1]).shape
        (2, 4)
    """
    return PackedTables(
        url, verify=verify, keep_versions=keep_versions, partitions=partitions, cache=cache
    )


@dataclass(frozen=True, slots=True)
class ScannedRows:
    """A chunk of a scan."""

    ids: Keys
    """``(n,)``"""
    rows: Stored
    cursor: tuple[int, int] | None
    """Start of the next chunk, or None after the last chunk."""


@dataclass(frozen=True, slots=True)
class ModelContent:
    """Files of the model in one version, and a part of one of them.

    Args:
        version: hash of the version.
        files: all files; empty if the version contains only rows.
        content: the bytes that were read.
    """

    version: str
    files: tuple[ModelFile, ...]
    content: bytes


class PackedTables(Closable):
    """Mapped tables, created by `open`. Any number of threads may use them.

    Each call returns rows of a single version. `refresh` replaces the version while other calls are in
    progress, and these complete with the version that they started with.

    `url`, `verify`, `keep_versions`, `partitions` and `cache` are those of `open`.

    Raises:
        InvalidArgumentError, SnapshotDamagedError, SnapshotIOError: see `open`.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        verify: Verify = "all",
        keep_versions: int = 2,
        partitions: tuple[int, int] | None = None,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        self.partitions = partitions or (0, NUM_PARTITIONS)
        self._mirror: Mirror | None = None
        if cache is not None and _is_remote(url):
            self._mirror = Mirror(os.fspath(url), Path(cache), self.partitions, keep_versions)
        self.url = _local_path(url if self._mirror is None else self._mirror.path)
        self.warmed_up: WarmUpResult | None = None
        """Result of the warm-up of the newest version, if there was one."""
        begin, end = partitions or (0, 0)
        arguments = native.Open(
            path=os.fsencode(self.url),
            verify=_choice("verify", verify, _VERIFY),
            keep_versions=keep_versions,
            partition_begin=begin,
            partition_end=end,
        )
        if not 1 <= keep_versions <= 8:
            raise InvalidArgumentError(f"keep_versions must be from 1 to 8, found {keep_versions}")
        native.call("open", arguments)
        self._handle: _Handle | None = _Handle(arguments.packed)
        self._verify: Verify = verify
        self._warmed_names: list[str] = []
        described = native.Version()
        self._call("version", described)
        self._tables = tuple(self._describe_table(number) for number in range(described.num_tables))
        self._numbers = {table.name: table.number for table in self._tables}

    # -- properties -----------------------------------------------------------

    @property
    def tables(self) -> Mapping[str, PackedTable]:
        """Name → table of the newest version."""
        return MappingProxyType(
            {table.name: self._describe_table(table.number) for table in self._tables}
        )

    @property
    def version(self) -> PackedVersion:
        """The newest version."""
        return self.versions[0]

    @property
    def versions(self) -> Sequence[PackedVersion]:
        """The versions that a call may request, newest first."""
        return [_to_version(each) for each in self._all_versions()]

    @property
    def num_layers(self) -> int:
        """Number of snapshots that the newest version consists of: deltas and the full one."""
        return int(self._all_versions()[0].num_layers)

    @property
    def mapped_bytes(self) -> int:
        """Size of the mapped files of the newest version. Processes share their memory pages."""
        return int(self._all_versions()[0].mapped_bytes)

    @property
    def snapshot_url(self) -> str:
        """Path of the serving snapshot of the newest version.

        Raises:
            SnapshotIOError: its folder was removed; the rows are still mapped.
        """
        name = os.fsdecode(self._all_versions()[0].name)
        real = Path(self.url).resolve()
        for at in (real / name, real.parent / name):
            if at.is_dir():
                return str(at)
        raise SnapshotIOError(
            f"serving snapshot {name} was opened in {self.url}, but its folder no longer exists; "
            "open the newest one",
            url=self.url,
        )

    # -- reading ----------------------------------------------------------------

    def lookup(self, table: str, ids: npt.ArrayLike, *, out: Floats | None = None) -> Floats:
        """Looks up the embeddings of ids. As in training, an id without a row has its initial value.

        Args:
            table: name of the table.
            ids: ``(n,)`` integers in any order, possibly repeated.
            out: ``(n, dim)`` float32, C-contiguous, receives the result.

        Returns:
            ``(n, dim)`` float32.

        Raises:
            UnknownTableError: there is no such table.
            InvalidArgumentError: an argument is invalid.
            SnapshotDamagedError: a directory is damaged.
            ClosedError: the tables were closed.

        Example:
            Look up two embeddings::

                with sparring_packed.open("served") as tables:
                    rows = tables.lookup("item", [7, -1])
        """
        rows, _, _ = self._look_up(table, ids, "initial", out)
        return rows

    def find(self, table: str, ids: npt.ArrayLike) -> FindResult:
        """Returns rows of ids and whether they exist. Missing rows are zeros. Raises like `lookup`.

        Args:
            table: name of the table.
            ids: ``(n,)`` integers in any order, possibly repeated.
        """
        rows, found, _ = self._look_up(table, ids, "zeros", None)
        return FindResult(rows, found)

    def pull(
        self,
        ids: Mapping[str, npt.ArrayLike],
        *,
        dtype: RowDtype = "fp32",
        missing: Missing = "initial",
        version: str | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> PullResult:
        """Returns rows of several tables, all of one version.

        Args:
            ids: table → ``(n,)`` integers.
            dtype: ``fp32``; or ``stored`` for the bytes that ``docs/format/packed.md`` describes.
            missing: value of ids without a row.
            version: the hash of one of `versions`. Defaults to the newest.
            out: table → C-contiguous array for its rows, which need not be aligned: ``(n, dim)``
                float32, or ``(n, row_bytes)`` uint8 for ``stored``. Defaults to new arrays.

        Raises:
            InvalidArgumentError: an argument is invalid, or the version is no longer kept.
            UnknownTableError, SnapshotDamagedError, ClosedError: see `lookup`.
        """
        code = _choice("dtype", dtype, _ROW_DTYPES)
        rows: dict[str, Stored] = {}
        found: dict[str, npt.NDArray[np.bool_]] = {}
        kept: list[Keys] = []
        requests = (native.Request * max(1, len(ids)))()
        for request, (name, given) in zip(requests, ids.items(), strict=False):
            number = self._number(name)
            keys = _validate_ids(given, name)
            table = self._tables[number]
            shape = (len(keys), table.dim if code == 0 else table.row_bytes)
            kind = np.float32 if code == 0 else np.uint8
            if out is not None:
                rows[name] = _validate_out("pull", name, out[name], shape, kind)
            else:
                rows[name] = _aligned(shape) if code == 0 else np.empty(shape, kind)
            found[name] = np.empty(len(keys), np.bool_)
            kept.append(keys)
            request.table, request.count = number, len(keys)
            request.ids, request.rows = keys.ctypes.data, rows[name].ctypes.data
            request.found = found[name].ctypes.data
        arguments = native.Lookup(
            dtype=code,
            missing=_choice("missing", missing, _MISSING),
            version=None if version is None else version.encode(),
            num_requests=len(ids),
            requests=requests,
        )
        self._call("lookup", arguments)
        return PullResult(rows, found, _to_version(arguments))

    def pool(
        self,
        table: str,
        ids: npt.ArrayLike,
        offsets: npt.ArrayLike,
        weights: npt.ArrayLike | None = None,
        *,
        mode: Mode = "sum",
    ) -> Floats:
        """Returns sums or means of the embeddings of bags, added in the order of the ids.

        Args:
            table: name of the table.
            ids: ``(n,)`` integers.
            offsets: ``(b + 1,)``: bag i is ``ids[offsets[i]:offsets[i + 1]]``.
            weights: ``(n,)``, one weight per id. Defaults to 1.
            mode: ``mean`` divides each sum by the number of ids in the bag.

        Returns:
            ``(b, dim)`` float32; zeros for an empty bag.

        Raises:
            SparringError: see `lookup`.
        """
        number = self._number(table)
        keys = _validate_ids(ids, table)
        ends = _validate_ids(offsets, table, "offsets")
        if not len(ends):
            raise InvalidArgumentError(
                f"pool of table {table!r}: offsets must have one more element than there are bags, "
                "found none"
            )
        scales = None if weights is None else np.ascontiguousarray(weights, np.float32)
        if scales is not None and scales.shape != keys.shape:
            raise InvalidArgumentError(
                f"pool of table {table!r}: weights must have the shape of ids, {keys.shape}, found "
                f"{scales.shape}"
            )
        sums = np.empty((len(ends) - 1, self._tables[number].dim), np.float32)
        request = native.Request(
            table=number,
            is_mean=_choice("mode", mode, {"sum": 0, "mean": 1}),
            count=len(keys),
            ids=keys.ctypes.data,
            rows=sums.ctypes.data,
            num_bags=len(sums),
            offsets=ends.ctypes.data,
            weights=None if scales is None else scales.ctypes.data,
        )
        self._call("pool", native.Lookup(num_requests=1, requests=ctypes.pointer(request)))
        return sums

    def scan(
        self,
        table: str,
        chunk_rows: int = 65_536,
        *,
        dtype: RowDtype = "fp32",
        version: str | None = None,
    ) -> Iterator[tuple[Keys, Stored]]:
        """Yields all rows of a table in one version: ``(n,)`` ids and their rows.

        Args:
            table: name of the table.
            chunk_rows: maximum number of rows per chunk.
            dtype: see `pull`.
            version: see `pull`. It must be kept until the end of the scan.
        """
        pinned = self.version.hash if version is None else version
        cursor: tuple[int, int] | None = (0, 0)
        while cursor is not None:
            chunk = self.scan_chunk(table, cursor, chunk_rows, dtype=dtype, version=pinned)
            cursor = chunk.cursor
            if len(chunk.ids):
                yield chunk.ids, chunk.rows

    def scan_chunk(
        self,
        table: str,
        cursor: tuple[int, int],
        chunk_rows: int,
        *,
        dtype: RowDtype = "fp32",
        version: str,
    ) -> ScannedRows:
        """Returns the next chunk of rows of a table in one version.

        Args:
            table: name of the table.
            cursor: the cursor of the previous chunk, or ``(0, 0)`` for the first chunk.
            chunk_rows: maximum number of rows.
            dtype: see `pull`.
            version: see `pull`.

        Raises:
            InvalidArgumentError: the version is no longer kept, or `cursor` is invalid.
            UnknownTableError, SnapshotDamagedError, ClosedError: see `lookup`.
        """
        number, code = self._number(table), _choice("dtype", dtype, _ROW_DTYPES)
        ids = np.empty(chunk_rows, np.int64)
        of_table = self._tables[number]
        if code == native.STORED:
            rows: Stored = np.empty((chunk_rows, of_table.row_bytes), np.uint8)
        else:
            rows = np.empty((chunk_rows, of_table.dim), np.float32)
        arguments = native.Scan(
            version=version.encode(),
            table=number,
            dtype=code,
            capacity=chunk_rows,
            ids=ids.ctypes.data,
            rows=rows.ctypes.data,
        )
        arguments.cursor[:] = cursor
        self._call("scan", arguments)
        count, (first, second) = arguments.count, arguments.cursor
        following = None if arguments.is_done else (int(first), int(second))
        return ScannedRows(ids[:count], rows[:count], following)

    def read_model(
        self, kind: str, begin: int = 0, max_bytes: int | None = None, *, version: str | None = None
    ) -> ModelContent:
        """Lists the files of the model in one version, and reads a part of one of them.

        Args:
            kind: ``parameters`` or ``preprocessing``; empty to read nothing.
            begin: offset of the first byte.
            max_bytes: maximum number of bytes. None reads up to the end of the file.
            version: see `pull`.

        Raises:
            InvalidArgumentError: the version is no longer kept, it has no such file, or `begin` is after
                the end of the file.
            ClosedError: see `lookup`.
        """
        given = native.Model(version=(version or self.version.hash).encode())
        self._call("model", given)
        files: list[ModelFile] = []
        for number in range(given.num_files):
            given.file = number
            self._call("model", given)
            files.append(
                ModelFile(
                    name=given.name.decode(),
                    kind=given.kind.decode(),
                    size_bytes=given.size_bytes,
                    hash=given.hash.decode(),
                )
            )
        content = np.empty(0, np.uint8)
        if kind:
            kinds = [each.kind for each in files]
            if kind not in kinds:
                raise InvalidArgumentError(
                    f"the version has no file of the model of kind {kind!r}; it has "
                    f"{', '.join(kinds) or 'only rows'}"
                )
            given.file = kinds.index(kind)
            rest = max(0, files[given.file].size_bytes - begin)
            content = np.empty(rest if max_bytes is None else min(rest, max_bytes), np.uint8)
            given.begin, given.capacity, given.bytes = begin, len(content), content.ctypes.data
            self._call("model", given)
        return ModelContent(given.version.decode(), tuple(files), content.tobytes())

    def top_k(
        self,
        table: str,
        queries: npt.ArrayLike,
        k: int,
        *,
        exclude: Jagged | None = None,
        metric: Metric = "dot",
        version: str | None = None,
    ) -> TopK:
        """Returns the ids of the k best rows for each query, among all rows of a table in one version.

        Args:
            table: name of the table.
            queries: ``(q, dim)``.
            k: number of rows per query, at least 1.
            exclude: ids to exclude for each query, ``(ids, offsets)``.
            metric: see `sparring_packed.top_k`.
            version: see `pull`. It must be kept until the end of the call.

        Raises:
            SparringError: see `lookup` and `sparring_packed.top_k`.
        """
        search = TopKSearch(queries, k, exclude=exclude, metric=metric)
        search.check_dim(self._tables[self._number(table)].dim, f"rows of table {table!r}")
        for keys, rows in self.scan(table, BLOCK_ROWS, version=version):
            search.add(keys, rows)
        return search.result()

    # -- newer versions -----------------------------------------------------------

    def refresh(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        verify: Verify | None = None,
        warm_up: WarmUp | None = None,
    ) -> bool:
        """Loads a newer version. For a delta, only its own files are mapped.

        If the newer version is invalid, the current version remains in use.

        Args:
            url: URL of a serving snapshot or of a folder of serving snapshots. Defaults to the URL that
                was opened.
            verify: as in `open`, for the newly mapped files. Defaults to the value that was passed to
                `open`.
            warm_up: reads parts of the version before it is used; the result is in `warmed_up`. It is
                skipped if every byte is hashed, because that reads all files.

        Returns:
            Whether there was a newer version.

        Raises:
            InvalidArgumentError: the version is a delta with another base, or has other tables.
            SnapshotDamagedError: the version is damaged; the message contains the file.
            SnapshotIOError: there is no snapshot, its base is missing, or the file system failed.
            ClosedError: the tables were closed.
        """
        self._check_open()
        if url is None and self._mirror is not None:
            self._mirror.refresh()
        path = self.url if url is None else _local_path(url)
        arguments = native.Refresh(
            path=os.fsencode(path), verify=_choice("verify", verify or self._verify, _VERIFY)
        )
        is_read = arguments.verify == _VERIFY["all"]
        warmed_up = None if warm_up is None or is_read else self._warm(path, warm_up)
        self._call("refresh", arguments)
        if arguments.is_changed:
            self.warmed_up = warmed_up
        return bool(arguments.is_changed)

    def verify(self) -> None:
        """Hashes all bytes of the newest version.

        Raises:
            SnapshotDamagedError: the version is damaged; the message contains the file.
        """
        self._call("verify", native.Verify())

    def existing_filter(self, table: str) -> BloomFilter | None:
        """Returns the Bloom filter of ids that may have a row in the newest version, or None.

        It may still contain erased ids. It is None if the snapshot was written without filters.

        Args:
            table: name of the table.

        Raises:
            UnknownTableError: there is no such table.
            ClosedError: the tables were closed.
        """
        return read_filter(self.snapshot_url, self._tables[self._number(table)].name, "existing")

    def changed_filter(self, table: str) -> BloomFilter | None:
        """Returns the Bloom filter of ids that the newest delta changed or erased, or None.

        It is None for a full snapshot, or if the snapshot was written without filters.

        Args:
            table: name of the table.

        Raises:
            UnknownTableError: there is no such table.
            ClosedError: the tables were closed.
        """
        return read_filter(self.snapshot_url, self._tables[self._number(table)].name, "changed")

    def close(self) -> None:
        """Unmaps all files after calls in progress have completed. A second call does nothing."""
        self._handle = None

    # -- internal -------------------------------------------------------------------

    def _check_open(self) -> _Handle:
        if self._handle is None:
            raise ClosedError(f"the serving snapshot {self.url} is closed; open it again")
        return self._handle

    def _call(self, function: str, arguments: Any) -> None:
        handle = self._check_open()
        native.call(function, arguments, handle.pointer)

    def _warm(self, path: str, wanted: WarmUp) -> WarmUpResult | None:
        """Reads parts of the version at `path` into the page cache if it is newer."""
        hashes = {each.hash for each in self.versions}
        names = sorted(each.name for each in Path(path).glob("*"))
        if names == self._warmed_names:
            return None  # nothing was published, because snapshots are never overwritten
        try:
            newer = PackedTables(path, verify="open", partitions=self.partitions)
        except SparringError:
            return None  # the refresh that follows reports the error
        self._warmed_names = names
        return None if newer.version.hash in hashes else warm(newer, hashes, wanted)

    def _all_versions(self) -> list[native.Version]:
        found = [native.Version()]
        self._call("version", found[0])
        for back in range(1, found[0].num_versions):
            found.append(native.Version(back=back))
            self._call("version", found[-1])
        return found

    def _describe_table(self, number: int) -> PackedTable:
        table = native.Table(table=number)
        self._call("table", table)
        return PackedTable(
            name=table.name.decode(),
            number=number,
            dim=table.dim,
            dtype=native.DTYPES[table.dtype],
            trained_dtype=native.DTYPES[table.trained_dtype],
            row_bytes=table.row_bytes,
            num_rows=table.num_rows,
        )

    def _number(self, table: str) -> int:
        number = self._numbers.get(table)
        if number is None:
            near = find_closest_name(table, self._numbers)
            hint = f"did you mean {near!r}?" if near else f"it has {', '.join(self._numbers)}"
            raise UnknownTableError(
                f"serving snapshot {self.url} has no table {table!r}; {hint}", table=table
            )
        return number

    def _look_up(
        self, table: str, ids: npt.ArrayLike, missing: Missing, out: Floats | None
    ) -> tuple[Floats, npt.NDArray[np.bool_], native.Lookup]:
        number = self._number(table)
        keys = _validate_ids(ids, table)
        shape = (len(keys), self._tables[number].dim)
        if out is None:
            out = _aligned(shape)
        else:
            _validate_out("lookup", table, out, shape, np.float32)
        found = np.empty(len(keys), np.bool_)
        request = native.Request(
            table=number,
            count=len(keys),
            ids=keys.ctypes.data,
            rows=out.ctypes.data,
            found=found.ctypes.data,
        )
        arguments = native.Lookup(
            missing=_MISSING[missing], num_requests=1, requests=ctypes.pointer(request)
        )
        self._call("lookup", arguments)
        return out, found, arguments


class _Handle:
    """An open handle of the library, which is closed after the last call that refers to it."""

    def __init__(self, pointer: int) -> None:
        self.pointer = ctypes.c_void_p(pointer)

    def __del__(self) -> None:
        native.library().sparring_packed_close(self.pointer)


def _to_version(arguments: native.Version | native.Lookup) -> PackedVersion:
    return PackedVersion(arguments.hash.decode(), arguments.step, arguments.published)


def _choice(name: str, value: str, choices: Mapping[str, int]) -> int:
    if not isinstance(value, str) or value not in choices:
        raise InvalidArgumentError(f"{name} must be {' or '.join(choices)}, found {value!r}")
    return choices[value]


def _aligned(shape: tuple[int, int]) -> Floats:
    """Returns an array that starts at a cache line, so that large results can bypass the caches."""
    size = shape[0] * shape[1]
    room = np.empty(size + 15, np.float32)
    begin = -room.ctypes.data % 64 // 4
    return room[begin : begin + size].reshape(shape)


def _validate_out(
    operation: str, table: str, out: Stored, shape: tuple[int, int], dtype: npt.DTypeLike
) -> Stored:
    if (
        out.shape != shape
        or out.dtype != dtype
        or not (out.flags.c_contiguous and out.flags.writeable)
    ):
        raise InvalidArgumentError(
            f"{operation}: out for table {table!r} must be a writable C-contiguous {shape} array of "
            f"{np.dtype(dtype)}, found {out.dtype} {out.shape}"
        )
    return out


def _validate_ids(ids: npt.ArrayLike, table: str, what: str = "ids") -> Keys:
    given = np.asarray(ids)
    if given.ndim == 1 and not given.size:
        given = given.astype(np.int64)
    if given.ndim != 1 or given.dtype.kind not in "iu" or given.dtype == np.uint64:
        raise InvalidArgumentError(
            f"{what} of table {table!r} must be a (n,) array of int64, found {given.dtype} "
            f"{given.shape}"
        )
    return np.ascontiguousarray(given, np.int64)


def _is_remote(url: str | os.PathLike[str]) -> bool:
    scheme, is_url, _ = os.fspath(url).partition("://")
    return bool(is_url) and scheme != "file"


def _local_path(url: str | os.PathLike[str]) -> str:
    text = os.fspath(url)
    scheme, is_url, path = text.partition("://")
    if not is_url:
        return text
    if scheme != "file":
        raise InvalidArgumentError(
            f"serving snapshot {text} is not on a local file system and cannot be mapped; specify a "
            "folder for copies: cache=…, or server.cache in the configuration of a service"
        )
    return path
