"""Export of the tables of a snapshot as Parquet files."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np

from sparring.contracts.results import ScanChunk
from sparring.errors import InvalidArgumentError, SnapshotIOError, UnsupportedError
from sparring.kernels import functions as kernels
from sparring.snapshot.chain import merged_chunks
from sparring.snapshot.format.manifest import TableDescription
from sparring.snapshot.reader import Snapshot

__all__ = ["export_parquet"]


def export_parquet(
    snapshot: Snapshot, output: str | os.PathLike[str], *, with_state: bool = False
) -> dict[str, Path]:
    """Streams each table into ``<output>/<table>.parquet``.

    Columns: ``key`` int64; ``embedding``, a fixed-size list of float32 or float64 (16-bit embeddings
    widened, exactly); ``score`` uint64 where the table has scores; on request ``state``.

    Args:
        snapshot: to read.
        output: a folder; made if it is missing.
        with_state: whether to write the optimizer's state too.

    Returns:
        Table → file.

    Raises:
        UnsupportedError: pyarrow is not installed.
        InvalidArgumentError: a file of that name exists.
        SnapshotDamagedError: a file of the snapshot is damaged.
        SnapshotIOError: the file system failed. After any failure no Parquet file stays behind.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise UnsupportedError(
            'export to Parquet needs pyarrow; install it: pip install "sparring[parquet]"'
        )
    folder = Path(output)
    targets = {name: folder / f"{name}.parquet" for name in snapshot.tables}
    for target in targets.values():
        if target.exists():
            raise InvalidArgumentError(
                f"export: {target} exists already; remove it, or name another folder"
            )
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, target in targets.items():
            _export(snapshot, name, target, with_state)
            written.append(target)
    except BaseException as error:
        for target in written:
            target.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        if isinstance(error, SnapshotIOError):
            raise
        raise SnapshotIOError(
            f"export of {snapshot.url} into {folder} failed: {error}; make room, or name another "
            "folder"
        ) from error
    return targets


def _export(snapshot: Snapshot, name: str, target: Path, with_state: bool) -> None:
    from pyarrow import parquet

    table = snapshot.tables[name]
    unfinished = target.with_name(f".{target.name}.unfinished")
    schema = _schema(table, with_state)
    try:
        with parquet.ParquetWriter(unfinished, schema) as writer:
            for chunk in merged_chunks(snapshot, name):
                writer.write_table(_arrow_table(table, chunk, schema))
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)


def _schema(table: TableDescription, with_state: bool) -> Any:
    import pyarrow

    number = pyarrow.float64() if table.dtype == "float64" else pyarrow.float32()
    fields = [
        pyarrow.field("key", pyarrow.int64(), nullable=False),
        pyarrow.field("embedding", pyarrow.list_(number, table.dim), nullable=False),
    ]
    if with_state and table.state_width:
        fields.append(pyarrow.field("state", pyarrow.list_(number, table.state_width)))
    if table.has_scores:
        fields.append(pyarrow.field("score", pyarrow.uint64(), nullable=False))
    return pyarrow.schema(fields)


def _arrow_table(table: TableDescription, chunk: ScanChunk, schema: Any) -> Any:
    import pyarrow

    config = table.config
    embeddings = config.embeddings(chunk.rows)
    if config.is_16_bit:
        embeddings = kernels.decode(embeddings)
    columns = {
        "key": pyarrow.array(chunk.keys),
        "embedding": _lists(embeddings, table.dim),
        "score": pyarrow.array(chunk.scores),
    }
    if "state" in schema.names:
        columns["state"] = _lists(config.state(chunk.rows), table.state_width)
    return pyarrow.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def _lists(values: np.ndarray[Any, Any], width: int) -> Any:
    import pyarrow

    flat = pyarrow.array(np.ascontiguousarray(values).reshape(-1))
    return pyarrow.FixedSizeListArray.from_arrays(flat, width)
