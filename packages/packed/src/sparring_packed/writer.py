"""Writes serving snapshots from training snapshots: full ones, and deltas with a base.

    rows of a window of partitions → one file image, in memory → staged; synced and hashed by threads
    all files → manifest → rename

The size of a window depends on the maximum file size, so memory does not grow with the table.

The file is long because full snapshots and deltas share this code. They only differ in how a window is
read.
"""

from __future__ import annotations

import errno
import math
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import Snapshot, TableConfig, TableDescription, open_snapshot, scan_rows
from sparring.adapter import BloomFilter, FileHashes, locate, scan_own_rows
from sparring.contracts import Initializer, Keys, partition
from sparring.errors import InvalidArgumentError, SnapshotError, SnapshotIOError, UnknownTableError
from sparring_packed import library as native
from sparring_packed.filters import read_filter
from sparring_packed.manifest import (
    LEAST_HASHED_BYTES,
    InitialValueSpec,
    ModelFile,
    ServingBase,
    ServingFile,
    ServingManifest,
    ServingTable,
    encode_manifest,
    read_manifest,
)

__all__ = ["ComputedTable", "WriteOptions", "WriteResult", "write"]

_NUM_PARTITIONS = 4096
_SEALING_THREADS = 8
"""Syncs of many files at the same time take a fraction of the time of one after the other."""
_MAX_UNSEALED = 64
_DTYPES = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float64": "fp32",
    "int8": "int8",
}
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
        computed: name → table to write in addition to the tables of the training snapshot.
    """

    file_bytes: int = 256 << 20
    filter_rate: float | None = 0.01
    model: Mapping[str, bytes] = field(default_factory=dict)
    computed: Mapping[str, ComputedTable] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.file_bytes < 1 << 16:
            raise InvalidArgumentError(
                f"WriteOptions: file_bytes must be at least 65536, found {self.file_bytes}"
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


def write(
    snapshot_url: str | os.PathLike[str],
    out_url: str | os.PathLike[str],
    *,
    quantize: Mapping[str, str] | None = None,
    base: str | os.PathLike[str] | None = None,
    options: WriteOptions | None = None,
) -> WriteResult:
    """Writes a serving snapshot from a training snapshot.

    Args:
        snapshot_url: URL of the training snapshot. A delta is read with its chain.
        out_url: URL of the serving snapshot itself, for example ``served/step-000000123``.
        quantize: table → ``fp32``, ``fp16``, ``bf16``, ``int8`` or ``int4``. Other tables are stored
            as they were trained, or as in the base.
        base: URL of a serving snapshot in the same folder, written from a training snapshot of the same
            chain. Only changes since then are written. None writes a full serving snapshot.
        options: options for the files.

    Raises:
        InvalidArgumentError: a dtype is unknown or cannot represent the embeddings, or the base has
            other tables or belongs to another chain, so that a full serving snapshot must be written.
        UnknownTableError: `quantize` contains a table that does not exist.
        SnapshotError: the serving snapshot already exists, or the training snapshot does not exist.
        SnapshotDamagedError: the training snapshot is damaged.
        SnapshotIOError: the file system failed. Nothing was committed.

    Examples:
        >>> import sparring_packed
        >>> from tempfile import TemporaryDirectory
        >>> from sparring import StepContainer, TableConfig
        >>> with TemporaryDirectory() as folder, StepContainer() as container:
        ...     container.declare(TableConfig("item", dim=4))
        ...     _ = container.save(f"{folder}/trained")
        ...     result = sparring_packed.write(
        ...         f"{folder}/trained", f"{folder}/served/1", quantize={"item": "int8"}
        ...     )
        >>> result.row_bytes
        {'item': 8}
    """
    snapshot = open_snapshot(snapshot_url)
    place, name = locate(out_url)
    url = place.url_of(name)
    below = None if base is None else _find_base(snapshot, base, place.url)
    options = options or WriteOptions()
    described = {**snapshot.tables, **_described(snapshot, options.computed)}
    tables = [_serving_table(each, quantize or {}, below) for each in described.values()]
    _check_names(snapshot.url, set(described), quantize or {}, below)
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
    writer = _Writer(snapshot, url, folder, below, options, sealing)
    is_committed = False
    try:
        for table in sorted(tables, key=lambda each: each.name):
            writer.write_table(table)
        writer.write_model()
        writer.seal(0)
        manifest = ServingManifest(
            version=2 if writer.model else 1,
            step=snapshot.step,
            published=time.time(),
            source=ServingBase(name=snapshot.name, hash=snapshot.manifest_hash),
            base=None if below is None else below.entry,
            tables=tuple(sorted(tables, key=lambda each: each.name)),
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


@dataclass(frozen=True, slots=True)
class _Base:
    """The base of a delta, and the changes since then."""

    url: str
    manifest: ServingManifest
    entry: ServingBase
    newer: Sequence[Snapshot]
    """Training deltas since the base, newest first."""


def _find_base(snapshot: Snapshot, base: str | os.PathLike[str], root: str) -> _Base:
    place, name = locate(base)
    if place.url != root:
        raise InvalidArgumentError(
            f"base {base} must be in the folder of its delta, {root}; copy it there, or write a full "
            "serving snapshot"
        )
    manifest = read_manifest(base)
    hashes = [each.manifest_hash for each in snapshot.chain]
    if manifest.source.hash not in hashes:
        raise InvalidArgumentError(
            f"base {base} was written from snapshot {manifest.source.name}, which is not in the chain of "
            f"{snapshot.url} ({', '.join(each.name for each in snapshot.chain)}), so the changes since "
            "then are unknown. Write a full serving snapshot: leave base out"
        )
    newer = snapshot.chain[: hashes.index(manifest.source.hash)]
    if not newer:
        raise InvalidArgumentError(
            f"base {base} was written from {snapshot.url} itself, so there are no changes; publish a "
            "newer snapshot"
        )
    entry = ServingBase(name=name, hash=manifest.hash)
    return _Base(place.url_of(name), manifest, entry, newer)


def _described(
    snapshot: Snapshot, computed: Mapping[str, ComputedTable]
) -> dict[str, TableDescription]:
    """Returns descriptions of computed tables."""
    for name, each in computed.items():
        if name in snapshot.tables or each.source not in snapshot.tables:
            raise InvalidArgumentError(
                f"computed table {name!r} of source {each.source!r}: snapshot {snapshot.url} has the "
                f"tables {', '.join(sorted(snapshot.tables))}; choose another name than these, and one "
                "of them as the source"
            )
    return {
        name: TableDescription.of(TableConfig(name, each.rows.shape[1], initializer="zeros"))
        for name, each in computed.items()
    }


def _check_names(
    url: str, tables: set[str], quantize: Mapping[str, str], base: _Base | None
) -> None:
    unknown = sorted(set(quantize) - tables)
    if unknown:
        raise UnknownTableError(
            f"quantize: snapshot {url} has no table {unknown[0]!r}; it has "
            f"{', '.join(sorted(tables))}",
            table=unknown[0],
        )
    if base is not None and set(base.manifest.tables_by_name) != tables:
        raise InvalidArgumentError(
            f"base {base.url} has tables {', '.join(sorted(base.manifest.tables_by_name))}, but snapshot "
            f"{url} has {', '.join(sorted(tables))}; write a full serving snapshot: "
            "leave base out"
        )


def _serving_table(
    table: TableDescription, quantize: Mapping[str, str], base: _Base | None
) -> ServingTable:
    below = None if base is None else base.manifest.tables_by_name.get(table.name)
    dtype = quantize.get(table.name) or (below.dtype if below is not None else _DTYPES[table.dtype])
    if dtype not in native.DTYPES:
        raise InvalidArgumentError(
            f"quantize: table {table.name!r} cannot be stored as {dtype!r}; choose one of "
            f"{', '.join(native.DTYPES)}",
            table=table.name,
        )
    if table.dtype == "float64" and table.name not in quantize and below is None:
        raise InvalidArgumentError(
            f"table {table.name!r} was trained as float64, which serving snapshots do not support; "
            f"add {table.name!r}: 'fp32' to quantize",
            table=table.name,
        )
    seed, initializer = _initial_values(table)
    first, second = initializer.parameters(table.dim)
    made = ServingTable(
        name=table.name,
        dim=table.dim,
        dtype=dtype,  # type: ignore[arg-type]
        trained_dtype=_DTYPES[table.dtype],  # type: ignore[arg-type]
        seed=seed,
        initializer=InitialValueSpec(kind=initializer.kind, first=first, second=second),
    )
    if below is not None and made != below:
        raise InvalidArgumentError(
            f"table {table.name!r} is {made}, but in the base it is {below}; write a full serving "
            "snapshot: leave base out",
            table=table.name,
        )
    return made


def _initial_values(table: TableDescription) -> tuple[int, Initializer]:
    """Returns the seed and initializer that are stored in a snapshot."""
    try:
        seed, given = table.extra["seed"], table.extra["initializer"]
    except KeyError:
        raise InvalidArgumentError(
            f"the snapshot does not contain the initializer of table {table.name!r}, which ids without a "
            "row read as; save it again with this release, and publish the new snapshot",
            table=table.name,
        ) from None
    config = TableConfig(table.name, table.dim, table.dtype, initializer=given, seed=seed)
    assert isinstance(config.initializer, Initializer)  # TableConfig converts it
    return config.seed, config.initializer


@dataclass(frozen=True, slots=True)
class _Window:
    """Rows to store and ids to erase in a range of partitions."""

    keys: Keys
    embeddings: npt.NDArray[Any]
    erased: Keys


class _Writer:
    """Writes the files of one serving snapshot."""

    def __init__(
        self,
        snapshot: Snapshot,
        url: str,
        folder: Any,
        base: _Base | None,
        options: WriteOptions,
        sealing: Executor,
    ) -> None:
        self._snapshot, self._url, self._folder = snapshot, url, folder
        self._base, self._options, self._sealing = base, options, sealing
        self._unsealed: deque[tuple[Future[FileHashes], Callable[[FileHashes], None]]] = deque()
        self.files: list[ServingFile] = []
        self.model: list[ModelFile] = []
        self._errors: dict[str, tuple[float, float]] = {}

    def write_table(self, table: ServingTable) -> None:
        filters = self._filters(table.name)
        size = _NUM_PARTITIONS // self._num_windows(table)
        for begin in range(0, _NUM_PARTITIONS, size):
            window = (begin, begin + size)
            changed = self._read_window(table.name, window)
            if self._base is None or len(changed.keys):
                self._write_keys(table, "rows", window, changed.keys, changed.embeddings)
            if len(changed.erased):
                self._write_keys(table, "erased", window, changed.erased, None)
            for kind, each in filters.items():
                each.add(changed.keys)
                if kind == "changed":
                    each.add(changed.erased)
        for kind, each in filters.items():
            self._write_filter(table.name, kind, each)

    def _read_window(self, table: str, window: tuple[int, int]) -> _Window:
        computed = self._options.computed.get(table)
        description = self._snapshot.tables[table if computed is None else computed.source]
        if computed is None and self._base is None:
            return _full_window(self._snapshot, description, window)
        erased: Keys = np.empty(0, np.int64)
        if self._base is not None:
            changed = _changed_window(self._base.newer, description, window)
            if computed is None:
                return changed
            erased = changed.erased
        assert computed is not None
        place = partition(computed.keys)
        is_in = (window[0] <= place) & (place < window[1])
        keys = computed.keys[is_in]
        rows = np.ascontiguousarray(computed.rows[is_in])
        return _Window(keys, rows, np.setdiff1d(erased, keys))

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
            step=self._snapshot.step,
            num_rows=total("num_keys", "rows"),
            num_erased=total("num_keys", "erased"),
            size_bytes=total("size_bytes", "rows", "erased"),
            row_bytes=row_bytes,
            relative_error={
                name: math.sqrt(error / whole) if whole > 0 else 0.0
                for name, (error, whole) in self._errors.items()
            },
        )

    def _num_windows(self, table: ServingTable) -> int:
        snapshots = self._snapshot.chain if self._base is None else self._base.newer
        if table.name in self._options.computed:
            keys, trained = len(self._options.computed[table.name].keys), 4 * table.dim
        else:
            files = (file for each in snapshots for file in each.files(table.name, "rows"))
            keys = sum(entry.num_keys for entry in files)
            config = self._snapshot.tables[table.name].config
            trained = config.embedding_width * min(4, config.numpy_dtype.itemsize)
        wanted = keys * (trained + 16) / self._options.file_bytes
        return int(min(_NUM_PARTITIONS, 2 ** math.ceil(math.log2(max(wanted, 1.0)))))

    def _filters(self, table: str) -> dict[str, BloomFilter]:
        rate = self._options.filter_rate
        self._errors.setdefault(table, (0.0, 0.0))
        if rate is None:
            return {}
        computed = self._options.computed.get(table)
        source, all_keys = (table, 0) if computed is None else (computed.source, len(computed.keys))
        if self._base is None:
            rows = all_keys or sum(
                entry.num_keys
                for each in self._snapshot.chain
                for entry in each.files(source, "rows")
            )
            # Larger than necessary, because deltas add new ids.
            return {"existing": BloomFilter(max(1024, rows * 3 // 2), false_positive_rate=rate)}
        changed = all_keys + sum(
            entry.num_keys for each in self._base.newer for entry in each.files(source)
        )
        found = {"changed": BloomFilter(max(1024, changed), false_positive_rate=rate)}
        existing = read_filter(self._base.url, table, "existing")
        return found if existing is None else found | {"existing": existing}

    def _write_keys(
        self,
        table: ServingTable,
        kind: str,
        window: tuple[int, int],
        keys: Keys,
        embeddings: npt.NDArray[Any] | None,
    ) -> None:
        source = table.trained_dtype
        arguments = native.Pack(
            table=table.name.encode(),
            count=len(keys),
            ids=keys.ctypes.data,
            embeddings=None if embeddings is None else embeddings.ctypes.data,
            source_stride=0 if embeddings is None else embeddings.strides[0],
            source_dtype=native.DTYPES.index(source),
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
        whole = (0, _NUM_PARTITIONS)
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


def _full_window(snapshot: Snapshot, table: TableDescription, window: tuple[int, int]) -> _Window:
    config = table.config
    keys: list[Keys] = []
    embeddings: list[npt.NDArray[Any]] = []
    for chunk in scan_rows(snapshot, table.name, range(*window)):
        keys.append(chunk.keys.copy())
        embeddings.append(_to_stored(config.embeddings(chunk.rows)))
    return _create_window(table, keys, embeddings, [])


def _changed_window(
    newer: Sequence[Snapshot], table: TableDescription, window: tuple[int, int]
) -> _Window:
    """Returns the newest row or erasure of each key in the deltas."""
    config = table.config
    wanted = np.zeros(_NUM_PARTITIONS, np.bool_)
    wanted[window[0] : window[1]] = True
    keys: list[Keys] = []
    embeddings: list[npt.NDArray[Any]] = []
    erased: list[Keys] = []
    seen: Keys = np.empty(0, np.int64)
    for snapshot in newer:
        found: list[Keys] = []
        for chunk in scan_own_rows(snapshot, table.name, range(*window)):
            is_new = ~np.isin(chunk.keys, seen)
            found.append(chunk.keys[is_new])
            keys.append(found[-1])
            embeddings.append(_to_stored(config.embeddings(chunk.rows)[is_new]))
        # If a delta contains a key both as a row and as erased, the row is used.
        seen = np.unique(np.concatenate([seen, *found]))
        gone = [
            chunk.keys[wanted[partition(chunk.keys)] & ~np.isin(chunk.keys, seen)]
            for chunk in _scan_erased(snapshot, table.name, wanted)
        ]
        # Each block of columns lists an erased key, which is written once.
        erased.append(np.unique(np.concatenate([np.empty(0, np.int64), *gone])))
        seen = np.unique(np.concatenate([seen, erased[-1]]))
    return _create_window(table, keys, embeddings, erased)


def _scan_erased(snapshot: Snapshot, table: str, wanted: npt.NDArray[np.bool_]) -> Iterator[Any]:
    for entry in snapshot.files(table, "erased"):
        if wanted[entry.partitions[0] : entry.partitions[1]].any():
            yield from snapshot.segments(entry, wanted)


def _to_stored(embeddings: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns a contiguous copy, with float64 converted to float32."""
    narrow = embeddings.dtype == np.float64
    return np.array(embeddings, np.float32 if narrow else embeddings.dtype, order="C")


def _create_window(
    table: TableDescription,
    keys: Iterable[Keys],
    embeddings: Iterable[npt.NDArray[Any]],
    erased: Iterable[Keys],
) -> _Window:
    none = np.empty(0, np.int64)
    dtype = np.dtype(np.float32) if table.dtype == "float64" else table.numpy_dtype
    return _Window(
        np.concatenate([none, *keys]),
        np.concatenate([np.empty((0, table.config.embedding_width), dtype), *embeddings]),
        np.unique(np.concatenate([none, *erased])),
    )


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
