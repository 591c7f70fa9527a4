"""Imports embeddings from numpy and Parquet files as a snapshot with one table."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import ScanChunk, Snapshot, SnapshotWriter, TableConfig, TableDescription
from sparring.contracts import write_embeddings
from sparring.errors import DataError, InvalidArgumentError, UnsupportedError

__all__ = ["import_table"]

_CHUNK_ROWS = 65_536
_MAX_KEY = np.iinfo(np.int64).max

Chunks = Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]


def import_table(
    source: str,
    url: str,
    table: str,
    *,
    kind: str,
    ids: str | None = None,
    dtype: str = "float32",
    on_rows: Callable[[int], None] | None = None,
) -> Snapshot:
    """Writes a snapshot at `url` with the embeddings of a file, without optimizer state.

    Args:
        source: File. Kind ``npy``: ``(n, dim)`` numbers; kind ``parquet``: a column ``key`` of
            integers and a column ``embedding`` of lists of equal length, as written by
            `export_tables`.
        url: URL of the snapshot.
        table: Name of the table.
        kind: ``npy`` or ``parquet``.
        ids: For kind ``npy``: file of ``(n,)`` integers; None: ids are 0 to n - 1.
        dtype: Data type of the table.
        on_rows: Receives the number of rows after each chunk is read.

    Raises:
        DataError: The file does not have this format, or contains a key twice.
        UnsupportedError: pyarrow is not installed.
        SnapshotError: The snapshot already exists, or the file system failed.
    """
    if kind == "npy":
        dim, chunks = _npy(source, ids)
    elif ids is not None:
        raise InvalidArgumentError(
            "import: --ids requires --from npy; Parquet files have a column 'key'"
        )
    else:
        dim, chunks = _parquet(source)
    described = TableDescription.of(TableConfig(table, dim, dtype))
    keys: list[npt.NDArray[np.int64]] = []
    writer = SnapshotWriter(url, step=0)
    try:
        writer.write_table(described, _rows(chunks, described.config, source, keys, on_rows))
        found, counts = np.unique(
            np.concatenate([np.empty(0, np.int64), *keys]), return_counts=True
        )
        if len(counts) and counts.max() > 1:
            raise DataError(
                f"{source}: found key {int(found[np.argmax(counts)])} {int(counts.max())} times; remove "
                "duplicate keys"
            )
        writer.finish()
        return writer.commit()
    finally:
        writer.abandon()


def _rows(
    chunks: Chunks,
    table: TableConfig,
    source: str,
    seen: list[npt.NDArray[np.int64]],
    on_rows: Callable[[int], None] | None,
) -> Iterator[ScanChunk]:
    for keys, embeddings in chunks:
        if keys.ndim != 1 or keys.dtype.kind not in "iu" or (keys > _MAX_KEY).any():
            raise DataError(
                f"{source}: keys must be int64, found {keys.dtype}; convert them so that they remain "
                "distinct"
            )
        values = np.ascontiguousarray(embeddings, table.computing_dtype)
        if not np.isfinite(values).all():
            raise DataError(
                f"{source}: found NaN or infinity, embeddings must be finite; remove these rows"
            )
        rows = np.zeros((len(keys), table.width), table.numpy_dtype)
        write_embeddings(table, rows, values)
        checked = keys.astype(np.int64)
        seen.append(checked)
        yield ScanChunk(checked, rows, np.zeros(len(keys), np.uint64))
        if on_rows is not None:
            on_rows(len(keys))


def _npy(source: str, ids: str | None) -> tuple[int, Chunks]:
    embeddings = _map_file(source)
    if embeddings.ndim != 2 or embeddings.dtype.kind not in "fiu":
        raise DataError(
            f"{source}: expected numbers of shape (n, dim), found shape {embeddings.shape} of "
            f"{embeddings.dtype}; reshape the array"
        )
    keys = np.arange(len(embeddings)) if ids is None else _map_file(ids)
    if keys.shape != (len(embeddings),):
        raise DataError(
            f"{ids}: expected one id for each of {len(embeddings)} embeddings, found shape "
            f"{keys.shape}; save a matching array"
        )
    starts = range(0, len(keys), _CHUNK_ROWS)
    parts = (slice(begin, begin + _CHUNK_ROWS) for begin in starts)
    return embeddings.shape[1], ((keys[part], embeddings[part]) for part in parts)


def _map_file(path: str) -> npt.NDArray[Any]:
    try:
        found: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror or error}; check the path and its permissions"
        ) from error
    except (ValueError, EOFError) as error:
        raise DataError(
            f"{path} is not an array of numbers that numpy.save wrote; write it with "
            "numpy.save(path, embeddings), or use --from parquet"
        ) from error
    if not isinstance(found, np.ndarray):
        raise DataError(f"{path} contains several arrays (.npz); save one with numpy.save")
    return found


def _parquet(source: str) -> tuple[int, Chunks]:
    if importlib.util.find_spec("pyarrow") is None:
        raise UnsupportedError(
            'import from Parquet needs pyarrow; install it: pip install "sparring[parquet]"'
        )
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(source)
        missing = {"key", "embedding"} - set(file.schema_arrow.names)
        if missing:
            raise DataError(
                f"{source} has no column {sorted(missing)[0]!r}, found "
                f"{', '.join(file.schema_arrow.names)}; rename one"
            )
        first = next(file.iter_batches(1, columns=["embedding"]), None)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"cannot read {source} as Parquet: {error}; check the file") from error
    kind = file.schema_arrow.field("embedding").type
    if not (pyarrow.types.is_list(kind) or pyarrow.types.is_fixed_size_list(kind)):
        raise DataError(
            f"{source}: column 'embedding' must contain lists of numbers, found {kind}; convert it"
        )
    dim = len(first["embedding"][0]) if first is not None and len(first) else 1

    def chunks() -> Chunks:
        for batch in file.iter_batches(_CHUNK_ROWS, columns=["key", "embedding"]):
            flat = batch["embedding"].flatten().to_numpy(zero_copy_only=False)
            if batch["embedding"].null_count or len(flat) != len(batch) * dim:
                raise DataError(
                    f"{source}: all lists in 'embedding' must have {dim} numbers, like the first; "
                    "correct the file"
                )
            yield batch["key"].to_numpy(zero_copy_only=False), flat.reshape(len(batch), dim)

    return dim, chunks()
