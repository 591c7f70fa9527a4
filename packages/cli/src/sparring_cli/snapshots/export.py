"""Exports the tables of a snapshot to files for other programs: Parquet, numpy, Faiss."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import (
    EMBEDDING_PARTS,
    ScanChunk,
    Snapshot,
    TableDescription,
    count_rows,
    scan_rows,
)
from sparring.contracts import read_embeddings, read_state
from sparring.errors import InvalidArgumentError, SnapshotError, SnapshotIOError, UnsupportedError

__all__ = ["read_embedding_parts", "export_tables"]

Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class _Format:
    suffixes: Callable[[_Table], Sequence[str]]
    """Suffixes of the files of a table."""
    write: Callable[[_Table, dict[str, Path]], None]
    """Writes the files, by suffix."""
    module: str = "numpy"
    install: str = ""


def export_tables(
    snapshot: Snapshot,
    output: str | os.PathLike[str],
    *,
    to: str = "parquet",
    with_state: bool = False,
    on_rows: Callable[[int], None] | None = None,
) -> dict[str, list[Path]]:
    """Writes each table of a snapshot into files of `output`.

    If the snapshot has the state `EMBEDDING_PARTS`, for example of a matrix factorization, the parts of
    an embedding are separate columns: ``embedding`` and ``bias``.

    ======= ============================ ===========================================================
    to      files                        contents
    ======= ============================ ===========================================================
    parquet ``<table>.parquet``          ``key`` int64; ``embedding`` and other parts, lists of fixed
                                         size, or numbers if the size is 1; ``state`` on request;
                                         ``score`` uint64 if the table has scores
    npy     ``<table>.key.npy`` …        the same columns, an array each
    faiss   ``<table>.faiss``            an `IndexIDMap` over `IndexFlatIP` of ``embedding`` as float32
    ======= ============================ ===========================================================

    16-bit embeddings are widened without loss. Rows are streamed, except to Faiss, which keeps all rows
    in memory.

    Args:
        snapshot: Snapshot to read.
        output: Folder; created if it does not exist.
        to: Format.
        with_state: Whether to write the optimizer state.
        on_rows: Receives the number of rows after each chunk is read.

    Returns:
        Table → files.

    Raises:
        UnsupportedError: The library of the format is not installed, or the format does not support
            state.
        InvalidArgumentError: The format is unknown, or a file already exists.
        SnapshotDamagedError: A file of the snapshot is damaged.
        SnapshotIOError: The file system failed. After a failure, no files remain.
    """
    chosen = _FORMATS.get(to)
    if chosen is None:
        raise InvalidArgumentError(f"export: to must be one of {', '.join(_FORMATS)}, found {to!r}")
    if importlib.util.find_spec(chosen.module) is None:
        raise UnsupportedError(
            f"export to {to} needs {chosen.module}; install it: pip install {chosen.install}"
        )
    if with_state and to == "faiss":
        raise UnsupportedError(
            "export: a Faiss index cannot contain state; choose --to npy or parquet"
        )
    folder = Path(output)
    tables = [_Table(snapshot, name, with_state, on_rows) for name in snapshot.tables]
    files = {
        table.name: {each: folder / f"{table.name}{each}" for each in chosen.suffixes(table)}
        for table in tables
    }
    for target in (each for made in files.values() for each in made.values()):
        if target.exists():
            raise InvalidArgumentError(
                f"export: {target} already exists; remove it, or use another folder"
            )
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for table in tables:
            written += _written(table, files[table.name], chosen)
    except BaseException as error:
        for target in written:
            target.unlink(missing_ok=True)
        if not isinstance(error, OSError) or isinstance(error, SnapshotIOError):
            raise
        raise SnapshotIOError(
            f"export of {snapshot.url} to {folder} failed: {error}; free disk space, or use another "
            "folder"
        ) from error
    return {name: list(made.values()) for name, made in files.items()}


def _written(table: _Table, files: dict[str, Path], chosen: _Format) -> list[Path]:
    unfinished = {
        suffix: target.with_name(f".{target.name}.unfinished") for suffix, target in files.items()
    }
    try:
        chosen.write(table, unfinished)
        for suffix, target in files.items():
            unfinished[suffix].rename(target)
    finally:
        for each in unfinished.values():
            each.unlink(missing_ok=True)
    return list(files.values())


class _Table:
    """A table of a snapshot as columns."""

    def __init__(
        self,
        snapshot: Snapshot,
        name: str,
        with_state: bool,
        on_rows: Callable[[int], None] | None,
    ) -> None:
        self.snapshot, self.name, self._on_rows = snapshot, name, on_rows
        self.described: TableDescription = snapshot.tables[name]
        self.has_state = with_state and self.described.state_width > 0
        self.parts = read_embedding_parts(snapshot, name, self.described.dim)

    @property
    def columns(self) -> Columns:
        """Empty columns, for their names and types."""
        empty = np.empty((0, self.described.width), self.described.numpy_dtype)
        nothing = np.empty(0, np.int64)
        return self._columns_of(ScanChunk(nothing, empty, nothing.astype(np.uint64)))

    def chunks(self) -> Iterator[Columns]:
        for chunk in scan_rows(self.snapshot, self.name):
            yield self._columns_of(chunk)
            if self._on_rows is not None:
                self._on_rows(len(chunk))

    def _columns_of(self, chunk: ScanChunk) -> Columns:
        config = self.described.config
        embeddings = read_embeddings(config, chunk.rows)
        columns: Columns = {"key": chunk.keys}
        for name, part in self.parts.items():
            is_number = name != "embedding" and part.stop - part.start == 1
            columns[name] = embeddings[:, part.start] if is_number else embeddings[:, part]
        if self.has_state:
            columns["state"] = read_state(config, chunk.rows)
        if self.described.has_scores:
            columns["score"] = chunk.scores
        return {name: np.ascontiguousarray(column) for name, column in columns.items()}


def read_embedding_parts(snapshot: Snapshot, name: str, dim: int) -> dict[str, slice]:
    """Returns the columns of the parts of an embedding; ``embedding`` is first."""
    if EMBEDDING_PARTS not in snapshot.state_names(0):
        return {"embedding": slice(0, dim)}
    values = snapshot.state(EMBEDDING_PARTS).values
    said: Any = values.get(name, {"embedding": [0, dim]}) if isinstance(values, dict) else None
    try:
        parts = {str(part): slice(*map(int, said[part])) for part in said}
        are_known = "embedding" in parts and not parts.keys() & {"key", "state", "score"}
        are_known &= all(0 <= each.start < each.stop <= dim for each in parts.values())
    except (TypeError, ValueError):
        are_known = False
    if not are_known:
        raise SnapshotError(
            f"snapshot {snapshot.url}: the state {EMBEDDING_PARTS!r} must map parts to [begin, end] "
            f"within {dim} elements for table {name!r}, with a part 'embedding', found {said!r}; save "
            "the model again",
            url=snapshot.url,
        )
    return {"embedding": parts["embedding"], **parts}


def _write_parquet(table: _Table, files: dict[str, Path]) -> None:
    import pyarrow
    from pyarrow import parquet

    def array(column: npt.NDArray[Any]) -> Any:
        flat = pyarrow.array(column.reshape(-1))
        if column.ndim == 1:
            return flat
        return pyarrow.FixedSizeListArray.from_arrays(flat, column.shape[1])

    schema = pyarrow.schema(
        [
            pyarrow.field(name, array(column).type, nullable=name == "state")
            for name, column in table.columns.items()
        ]
    )
    with parquet.ParquetWriter(files[".parquet"], schema) as writer:
        for columns in table.chunks():
            arrays = [array(column) for column in columns.values()]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))


def _write_npy(table: _Table, files: dict[str, Path]) -> None:
    count, begin = count_rows(table.snapshot, table.name), 0
    open_file = partial(np.lib.format.open_memmap, mode="w+")
    arrays = {
        name: open_file(files[f".{name}.npy"], dtype=column.dtype, shape=(count, *column.shape[1:]))
        for name, column in table.columns.items()
    }
    for columns in table.chunks():
        for name, column in columns.items():
            arrays[name][begin : begin + len(column)] = column
        begin += len(columns["key"])
    for each in arrays.values():
        each.flush()


def _write_faiss(table: _Table, files: dict[str, Path]) -> None:
    import faiss

    index = faiss.IndexIDMap(faiss.IndexFlatIP(table.columns["embedding"].shape[1]))
    for columns in table.chunks():
        index.add_with_ids(columns["embedding"].astype(np.float32), columns["key"])
    faiss.write_index(index, str(files[".faiss"]))


_FORMATS = {
    "parquet": _Format(lambda _: [".parquet"], _write_parquet, "pyarrow", '"sparring[parquet]"'),
    "npy": _Format(lambda table: [f".{name}.npy" for name in table.columns], _write_npy),
    "faiss": _Format(lambda _: [".faiss"], _write_faiss, "faiss", "faiss-cpu"),
}
