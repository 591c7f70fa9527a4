"""Writes the files of a serving snapshot, whatever its rows are read from.

    rows of a window of partitions → one file image, in memory → staged; synced and hashed by threads
    all files → manifest → rename

The size of a window depends on the maximum file size, so memory does not grow with the table.
"""

from __future__ import annotations

import errno
import math
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sparring.adapter import BloomFilter, FileHashes, locate
from sparring.contracts import Keys
from sparring.errors import InvalidArgumentError, SnapshotError, SnapshotIOError
from sparring_packed import library as native
from sparring_packed.manifest import (
    LEAST_HASHED_BYTES,
    ModelFile,
    ServingBase,
    ServingFile,
    ServingManifest,
    ServingTable,
    encode_manifest,
    read_manifest,
)

__all__ = [
    "FILE_BYTES",
    "NUM_PARTITIONS",
    "ComputedTable",
    "RowSource",
    "Window",
    "WriteOptions",
    "WriteResult",
    "commit",
]

NUM_PARTITIONS = 4096
_SEALING_THREADS = 8
"""Syncs of many files at the same time take a fraction of the time of one after the other."""
_MAX_UNSEALED = 64
FILE_BYTES = 256 << 20
_MODEL_FILES = {"parameters": "parameters.safetensors", "preprocessing": "preprocessing.json"}


@dataclass(frozen=True, slots=True)
class ComputedTable:
    """A table that is computed from a training snapshot, such as the vectors of all items.

    Args:
        source: table of the snapshot with the same keys. A delta erases the keys that it erases.
        keys: ``(n,)`` int64, all keys, also for a delta.
        rows: ``(n, dim)`` float32. A key without a row reads as zeros.

    Examples:
        >>> import numpy as np
        >>> from sparring_packed import ComputedTable
        >>> vectors = ComputedTable("item", np.array([7, 8]), np.ones((2, 4), np.float32))
        >>> vectors.rows.shape
        (2, 4)
    """

    source: str
    keys: npt.NDArray[np.int64]
    rows: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        shape, dtypes = self.rows.shape, [str(each.dtype) for each in (self.keys, self.rows)]
        if len(shape) != 2 or self.keys.shape != shape[:1] or dtypes != ["int64", "float32"]:
            raise InvalidArgumentError(
                f"ComputedTable: found keys {self.keys.shape} of {dtypes[0]} and rows {shape} of "
                f"{dtypes[1]}, expected (n,) of int64 and (n, dim) of float32; convert them"
            )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options for the files of a serving snapshot.

    Args:
        file_bytes: approximate maximum size of a data file. Writing requires three times as much memory.
        filter_rate: false positive rate of the Bloom filters of existing and changed ids, or None to
            write no filters.
        model: contents of the files of the model: ``parameters``, a safetensors file, and
            ``preprocessing``, JSON. Each has at least 241 bytes; pad JSON with spaces.
        generation: readers of a folder use the highest generation, and in it the highest step. A delta
            has at least the generation of its base.
        computed: name → table to write in addition to the tables of the training snapshot.
    """

    file_bytes: int = FILE_BYTES
    filter_rate: float | None = 0.01
    model: Mapping[str, bytes] = field(default_factory=dict)
    computed: Mapping[str, ComputedTable] = field(default_factory=dict)
    generation: int = 0

    def __post_init__(self) -> None:
        if self.file_bytes < 1 << 16:
            raise InvalidArgumentError(
                f"WriteOptions: file_bytes must be at least 65536, found {self.file_bytes}"
            )
        if self.generation < 0:
            raise InvalidArgumentError(
                f"WriteOptions: generation must be at least 0, found {self.generation}"
            )
        for kind, data in self.model.items():
            if kind not in _MODEL_FILES or len(data) < LEAST_HASHED_BYTES:
                raise InvalidArgumentError(
                    f"WriteOptions: model must contain at least {LEAST_HASHED_BYTES} bytes for "
                    f"{' or '.join(_MODEL_FILES)}, found {len(data)} bytes for {kind!r}"
                )


@dataclass(frozen=True, slots=True)
class WriteResult:
    """A committed serving snapshot.

    Args:
        url: URL of the serving snapshot.
        hash: hash of its manifest, which identifies the version.
        step: training step.
        num_rows: table → number of rows in this serving snapshot, without its bases.
        num_erased: table → number of ids that it erases.
        size_bytes: table → size of its mapped files.
        row_bytes: table → size of a stored row, including its scale and bias.
        relative_error: table → root mean square of the rounding errors, divided by the root mean
            square of the embeddings; 0 if rows are stored as they were trained.
    """

    url: str
    hash: str
    step: int
    num_rows: Mapping[str, int]
    num_erased: Mapping[str, int]
    size_bytes: Mapping[str, int]
    row_bytes: Mapping[str, int]
    relative_error: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Window:
    """Rows to store and ids to erase in a range of partitions."""

    keys: Keys
    embeddings: npt.NDArray[Any]
    """``(n, dim)`` as trained, or ``(n, row_bytes)`` uint8 as stored in another serving snapshot."""
    erased: Keys
    is_stored: bool = False


class RowSource(Protocol):
    """Rows of a new serving snapshot."""

    @property
    def generation(self) -> int:
        """Generation of the new serving snapshot."""

    @property
    def step(self) -> int:
        """Training step."""

    @property
    def source(self) -> ServingBase:
        """Training snapshot with these rows."""

    @property
    def base(self) -> ServingBase | None:
        """Base of a delta; None for a full serving snapshot."""

    def count_windows(self, table: ServingTable, file_bytes: int) -> int:
        """Returns the number of files of a table, a power of two up to 4,096."""

    def filters(self, table: ServingTable, rate: float) -> dict[str, BloomFilter]:
        """Returns new or inherited filters by kind, to which all written ids are added."""

    def read_window(self, table: ServingTable, window: tuple[int, int]) -> Window:
        """Returns the rows of a table in a range of partitions."""


def commit(
    out_url: str | os.PathLike[str],
    rows: RowSource,
    tables: Sequence[ServingTable],
    options: WriteOptions,
) -> WriteResult:
    """Writes a serving snapshot, and commits it when all its files are durable.

    Args:
        out_url: URL of the serving snapshot itself.
        rows: where the rows are read from.
        tables: all tables.
        options: options for the files.

    Raises:
        SnapshotError: the serving snapshot already exists.
        SnapshotIOError: the file system failed. Nothing was committed.
    """
    place, name = locate(out_url)
    url = place.url_of(name)
    tables = sorted(tables, key=lambda each: each.name)
    with _writing(url, "the staging folder"):
        if place.exists(name):
            raise SnapshotError(
                f"serving snapshot {url} already exists and is never overwritten; choose another "
                "name, or remove it first",
                url=url,
            )
        token = secrets.token_hex(8)
        folder = place.stage(name, token)
    sealing = ThreadPoolExecutor(_SEALING_THREADS, "sparring-packed")
    writer = _Writer(rows, url, folder, options, sealing)
    is_committed = False
    try:
        for table in tables:
            writer.write_table(table)
        writer.write_model()
        writer.seal(0)
        manifest = ServingManifest(
            version=3 if rows.generation else 2 if writer.model else 1,
            generation=rows.generation,
            step=rows.step,
            published=time.time(),
            source=rows.source,
            base=rows.base,
            tables=tuple(tables),
            files=tuple(writer.files),
            model=tuple(writer.model),
        )
        text = encode_manifest(manifest)
        with _writing(url, "the manifest"):
            place.publish(folder, name, text)
        is_committed = True
    finally:
        sealing.shutdown()
        folder.close()
        if not is_committed:
            with _writing(url, "the staging folder"):
                place.abandon(name, token)
    return writer.written(read_manifest(url).hash, {each.name: each.row_bytes for each in tables})


class _Writer:
    """Writes the files of one serving snapshot."""

    def __init__(
        self, rows: RowSource, url: str, folder: Any, options: WriteOptions, sealing: Executor
    ) -> None:
        self._rows, self._url, self._folder = rows, url, folder
        self._options, self._sealing = options, sealing
        self._unsealed: deque[tuple[Future[FileHashes], Callable[[FileHashes], None]]] = deque()
        self.files: list[ServingFile] = []
        self.model: list[ModelFile] = []
        self._errors: dict[str, tuple[float, float]] = {}

    def write_table(self, table: ServingTable) -> None:
        rate, is_full = self._options.filter_rate, self._rows.base is None
        filters = {} if rate is None else self._rows.filters(table, rate)
        self._errors.setdefault(table.name, (0.0, 0.0))
        size = NUM_PARTITIONS // self._rows.count_windows(table, self._options.file_bytes)
        for begin in range(0, NUM_PARTITIONS, size):
            window = (begin, begin + size)
            found = self._rows.read_window(table, window)
            if is_full or len(found.keys):
                self._write_keys(table, "rows", window, found.keys, found)
            if len(found.erased):
                self._write_keys(table, "erased", window, found.erased, None)
            for kind, each in filters.items():
                each.add(found.keys)
                if kind == "changed":
                    each.add(found.erased)
        for kind, each in filters.items():
            self._write_filter(table.name, kind, each)

    def write_model(self) -> None:
        for kind, data in self._options.model.items():
            self._write_bytes(_MODEL_FILES[kind], memoryview(data), partial(self._add_model, kind))

    def _add_model(self, kind: str, name: str, hashes: FileHashes) -> None:
        self.model.append(
            ModelFile(
                name=name,
                kind=kind,  # type: ignore[arg-type]
                size_bytes=hashes.size_bytes,
                hash=hashes.whole,
            )
        )

    def written(self, manifest_hash: str, row_bytes: Mapping[str, int]) -> WriteResult:
        def total(what: str, *kinds: str) -> dict[str, int]:
            sums = dict.fromkeys(self._errors, 0)
            for file in self.files:
                if file.kind in kinds:
                    sums[file.table] += getattr(file, what)
            return sums

        return WriteResult(
            url=self._url,
            hash=manifest_hash,
            step=self._rows.step,
            num_rows=total("num_keys", "rows"),
            num_erased=total("num_keys", "erased"),
            size_bytes=total("size_bytes", "rows", "erased"),
            row_bytes=row_bytes,
            relative_error={
                name: math.sqrt(error / whole) if whole > 0 else 0.0
                for name, (error, whole) in self._errors.items()
            },
        )

    def _write_keys(
        self,
        table: ServingTable,
        kind: str,
        window: tuple[int, int],
        keys: Keys,
        rows: Window | None,
    ) -> None:
        is_stored = rows is not None and rows.is_stored
        source = native.STORED if is_stored else native.DTYPES.index(table.trained_dtype)
        arguments = native.Pack(
            table=table.name.encode(),
            count=len(keys),
            ids=keys.ctypes.data,
            embeddings=None if rows is None else rows.embeddings.ctypes.data,
            source_stride=0 if rows is None else rows.embeddings.strides[0],
            source_dtype=source,
            dtype=native.DTYPES.index(table.dtype),
            dim=table.dim,
            partition_begin=window[0],
            partition_end=window[1],
        )
        native.call("pack", arguments)
        image = np.empty(arguments.file_bytes, np.uint8)
        arguments.file = image.ctypes.data
        native.call("pack", arguments)
        error, whole = self._errors[table.name]
        self._errors[table.name] = (
            error + arguments.square_error,
            whole + arguments.square_sum,
        )
        stem = f"{kind}.{table.name}.{window[0]:04d}-{window[1]:04d}.packed"
        self._write_file(stem, memoryview(image.data), kind, table.name, window, len(keys))

    def _write_filter(self, table: str, kind: str, keys: BloomFilter) -> None:
        data = keys.to_bytes()
        name = f"{kind}.{table}.bloom"
        whole = (0, NUM_PARTITIONS)
        self._write_file(name, memoryview(data), kind, table, whole, keys.num_added)

    def _write_file(
        self,
        name: str,
        data: memoryview,
        kind: str,
        table: str,
        window: tuple[int, int],
        num_keys: int,
    ) -> None:
        def add(stored: str, hashes: FileHashes) -> None:
            self.files.append(
                ServingFile(
                    name=stored,
                    kind=kind,  # type: ignore[arg-type]
                    table=table,
                    partitions=window,
                    num_keys=num_keys,
                    size_bytes=hashes.size_bytes,
                    hash=hashes.whole,
                )
            )

        self._write_bytes(name, data, add)

    def _write_bytes(
        self, name: str, data: memoryview, add: Callable[[str, FileHashes], None]
    ) -> None:
        """Writes a file. Calls `add` with its stored name, its size and its hash when it is sealed."""
        stored = self._folder.stored_name(name)
        with _writing(self._url, stored):
            file = self._folder.create(stored)
            try:
                file.append([data])
            except BaseException:
                file.close()
                raise
        future = self._sealing.submit(_seal, self._url, stored, file)
        self._unsealed.append((future, partial(add, stored)))
        self.seal(_MAX_UNSEALED)

    def seal(self, most: int) -> None:
        """Waits until at most `most` files are not durable."""
        while len(self._unsealed) > most:
            future, add = self._unsealed.popleft()
            add(future.result())


def _seal(url: str, name: str, file: Any) -> FileHashes:
    with _writing(url, name), file:
        hashes: FileHashes = file.seal(_no_pause)
        return hashes


def _no_pause() -> None:
    """Does not pause."""


@contextmanager
def _writing(url: str, file: str) -> Iterator[None]:
    """Converts errors of the file system to `SnapshotIOError`."""
    try:
        yield
    except SnapshotError:
        raise
    except FileExistsError as error:
        raise SnapshotError(
            f"serving snapshot {url} was committed by another process in the meantime and is never "
            "overwritten; choose another name",
            url=url,
        ) from error
    except OSError as error:
        advice = "free space" if error.errno == errno.ENOSPC else "repair the file system"
        raise SnapshotIOError(
            f"serving snapshot {url}: writing {file} failed: {error}; nothing was committed. "
            f"{advice.capitalize()}, then publish again",
            url=url,
            file=file,
        ) from error
