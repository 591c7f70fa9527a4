"""Writes serving snapshots from training snapshots: full ones, and deltas with a base."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import Snapshot, TableConfig, TableDescription, open_snapshot, scan_rows
from sparring.adapter import BloomFilter, locate, scan_own_rows
from sparring.contracts import Initializer, Keys, partition
from sparring.errors import InvalidArgumentError, UnknownTableError
from sparring_packed import library as native
from sparring_packed.filters import read_filter
from sparring_packed.manifest import (
    InitialValueSpec,
    ServingBase,
    ServingManifest,
    ServingTable,
    read_manifest,
)
from sparring_packed.version_files import (
    NUM_PARTITIONS,
    ComputedTable,
    Window,
    WriteOptions,
    WriteResult,
    commit,
)

__all__ = ["write"]

_DTYPES = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float64": "fp32",
    "int8": "int8",
}


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
    below = None if base is None else _find_base(snapshot, base, locate(out_url)[0].url)
    options = options or WriteOptions()
    described = {**snapshot.tables, **_described(snapshot, options.computed)}
    tables = [_serving_table(each, quantize or {}, below) for each in described.values()]
    _check_names(snapshot.url, set(described), quantize or {}, below)
    return commit(out_url, _TrainedRows(snapshot, below, options), tables, options)


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


class _TrainedRows:
    """Rows of a training snapshot, or the changes since the base."""

    def __init__(self, snapshot: Snapshot, base: _Base | None, options: WriteOptions) -> None:
        self._snapshot, self._base, self._computed = snapshot, base, options.computed
        least = 0 if base is None else base.manifest.generation
        self.generation, self.step = max(options.generation, least), snapshot.step
        self.source = ServingBase(name=snapshot.name, hash=snapshot.manifest_hash)
        self.base = None if base is None else base.entry

    def count_windows(self, table: ServingTable, file_bytes: int) -> int:
        snapshots = self._snapshot.chain if self._base is None else self._base.newer
        if table.name in self._computed:
            keys, trained = len(self._computed[table.name].keys), 4 * table.dim
        else:
            files = (file for each in snapshots for file in each.files(table.name, "rows"))
            keys = sum(entry.num_keys for entry in files)
            config = self._snapshot.tables[table.name].config
            trained = config.embedding_width * min(4, config.numpy_dtype.itemsize)
        wanted = keys * (trained + 16) / file_bytes
        return int(min(NUM_PARTITIONS, 2 ** math.ceil(math.log2(max(wanted, 1.0)))))

    def filters(self, table: ServingTable, rate: float) -> dict[str, BloomFilter]:
        computed = self._computed.get(table.name)
        source, all_keys = (
            (table.name, 0) if computed is None else (computed.source, len(computed.keys))
        )
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
        existing = read_filter(self._base.url, table.name, "existing", self._base.manifest)
        return found if existing is None else found | {"existing": existing}

    def read_window(self, table: ServingTable, window: tuple[int, int]) -> Window:
        computed = self._computed.get(table.name)
        description = self._snapshot.tables[table.name if computed is None else computed.source]
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
        return Window(keys, rows, np.setdiff1d(erased, keys))


def _full_window(snapshot: Snapshot, table: TableDescription, window: tuple[int, int]) -> Window:
    config = table.config
    keys: list[Keys] = []
    embeddings: list[npt.NDArray[Any]] = []
    for chunk in scan_rows(snapshot, table.name, range(*window)):
        keys.append(chunk.keys.copy())
        embeddings.append(_to_stored(config.embeddings(chunk.rows)))
    return _create_window(table, keys, embeddings, [])


def _changed_window(
    newer: Sequence[Snapshot], table: TableDescription, window: tuple[int, int]
) -> Window:
    """Returns the newest row or erasure of each key in the deltas."""
    config = table.config
    wanted = np.zeros(NUM_PARTITIONS, np.bool_)
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
) -> Window:
    none = np.empty(0, np.int64)
    dtype = np.dtype(np.float32) if table.dtype == "float64" else table.numpy_dtype
    return Window(
        np.concatenate([none, *keys]),
        np.concatenate([np.empty((0, table.config.embedding_width), dtype), *embeddings]),
        np.unique(np.concatenate([none, *erased])),
    )
