"""The process that writes the logged requests of a server as Arrow streams.

Started by `start_writer` as ``python -m sparring_serve.server.log_writer DESCRIPTOR FOLDER MAX_BYTES``.
Rows are written at least once per second. A file is complete up to its last batch even if the process
is killed. While a file cannot be written, for example because the disk is full, the process does not
read from its socket, so the server drops and counts further entries.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from sparring.errors import SparringError
from sparring_serve.inference import read_infer_ids
from sparring_serve.request_log import HEAD, MAX_REQUEST_ID, RESERVED_NAMES, LoggedKind
from sparring_serve.status import StatusError
from sparring_serve.wire.fields import Buffer, decode
from sparring_serve.wire.messages import PullRequest, SampleColumn
from sparring_serve.wire.rows import read_ids

__all__ = ["LogWriter", "read_message"]

FLUSH_SECONDS = 1.0
_FLUSH_BYTES = 8 << 20
_MAX_MESSAGE = 64 << 20
_HAS_SAMPLE = {"sparring.has_sample": "1"}
"""Metadata of the schema of files with rows of samples."""
_MAX_OPEN, _MAX_FILES = 8, 1024
_FILES_PER_FOLDER = 16
"""A file is closed at this share of the size of the folder."""
_NAMES = f"{'[0-9]' * 8}T{'[0-9]' * 6}-*-{'[0-9]' * 6}*.arrows"
"""Names of the files that are removed. The folder may contain other ones."""


@dataclass(frozen=True, slots=True)
class LoggedRows:
    """Rows of one request."""

    columns: Mapping[str, Any]
    """Name → Arrow array."""
    num_bytes: int
    has_sample: bool = False
    """Whether they come from a sample; otherwise the row contains the ids per table."""


def read_message(message: bytes) -> LoggedRows:
    """Returns the rows of one message of a server.

    A request with a sample has the rows of the sample. Another one has one row, with the ids per table
    as a list.

    Raises:
        SparringError: The request is damaged, its id is too long, or its sample is not a table of rows.
    """
    kind, seconds, length = HEAD.unpack_from(message)
    version = message[HEAD.size : HEAD.size + length].decode()
    content = memoryview(message)[HEAD.size + length :]
    has_sample = False
    if kind == LoggedKind.INFER:
        request_id, tables = read_infer_ids(content)
        columns = {name: _one_list(ids) for name, ids in tables.items()}
    else:
        request: PullRequest = decode(PullRequest, content)
        request_id = request.request_id
        has_sample = bool(request.sample)
        if has_sample:
            columns = _sample_columns(request.sample)
        else:
            columns = {each.table: _one_list(read_ids(each.ids)) for each in request.tables}
    if len(request_id) > MAX_REQUEST_ID:
        raise SparringError(
            f"the request id has {len(request_id):,} characters, expected at most {MAX_REQUEST_ID}; "
            "shorten it"
        )
    counts = {len(each) for each in columns.values()}
    if len(counts) > 1:
        raise SparringError(
            f"columns of the sample have {min(counts)} to {max(counts)} rows; send one value per row"
        )
    num_rows = counts.pop() if counts else 0
    micros = pyarrow.scalar(round(seconds * 1e6), pyarrow.timestamp("us", "UTC"))
    fixed = {
        "request_id": pyarrow.scalar(request_id),
        "served_time": micros,
        "served_version": pyarrow.scalar(version),
    }
    added = {name: pyarrow.repeat(each, num_rows) for name, each in fixed.items()}
    num_bytes = len(message) + (64 + len(request_id)) * num_rows
    return LoggedRows(added | columns, num_bytes, has_sample)


def _one_list(ids: Any) -> Any:
    return pyarrow.ListArray.from_arrays(np.array([0, len(ids)], np.int32), pyarrow.array(ids))


def _sample_columns(sample: Sequence[SampleColumn]) -> dict[str, Any]:
    names = [each.name for each in sample]
    for name in names:
        if name in RESERVED_NAMES or names.count(name) > 1:
            raise SparringError(
                f"column {name!r}: its name occurs twice, or is one of {', '.join(RESERVED_NAMES)}, "
                "which the log adds; rename it"
            )
    return {each.name: _sample_column(each) for each in sample}


def _sample_column(column: SampleColumn) -> Any:
    if column.ids and column.numbers:
        raise SparringError(f"column {column.name!r}: found ids and numbers; set one of them")
    values = _view(
        column.name, column.numbers or column.ids, np.float32 if column.numbers else np.int64
    )
    if not column.lengths:
        return pyarrow.array(values)
    lengths = _view(column.name, column.lengths, np.int64)
    if lengths.min() < 0 or lengths.max() > len(values) or lengths.sum() != len(values):
        raise SparringError(
            f"column {column.name!r}: the lengths of its lists do not add up to {len(values)}; fix them"
        )
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return pyarrow.ListArray.from_arrays(offsets, pyarrow.array(values))


def _view(name: str, content: Buffer, dtype: Any) -> Any:
    if len(content) % np.dtype(dtype).itemsize:
        raise SparringError(
            f"column {name!r}: {len(content)} bytes are not a multiple of {np.dtype(dtype).itemsize}"
        )
    return np.frombuffer(bytes(content), dtype)


@dataclass(slots=True)
class _File:
    """An open file, and the rows that are not written yet."""

    path: Path
    descriptor: int
    size: int = 0
    waiting: list[Any] = field(default_factory=list)


class LogWriter:
    """Writes rows to files of Arrow streams; each file has one schema.

    Args:
        folder: Folder of the files.
        max_bytes: The oldest files are removed when the folder exceeds this size.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._file_bytes = max_bytes // _FILES_PER_FOLDER
        self._files: dict[Any, _File] = {}
        self._num_opened = 0
        self._waiting_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether so many rows wait that they should be written now."""
        return self._waiting_bytes >= min(_FLUSH_BYTES, self._file_bytes)

    def add(self, rows: LoggedRows) -> None:
        """Adds rows, which `flush` writes.

        Raises:
            OSError: A file cannot be opened or written.
        """
        metadata = _HAS_SAMPLE if rows.has_sample else None
        batch = pyarrow.RecordBatch.from_pydict(dict(rows.columns), metadata=metadata)
        if not batch.num_rows:
            return
        kind = (batch.schema, rows.has_sample)  # comparing schemas ignores their metadata
        file = self._files.get(kind)
        if file is None:
            if len(self._files) >= _MAX_OPEN:
                self._close(next(iter(self._files)))
            file = self._open(batch.schema)
        self._files.pop(kind, None)
        self._files[kind] = file  # the file that was used last comes last
        file.waiting.append(batch)
        self._waiting_bytes += rows.num_bytes

    def flush(self) -> None:
        """Writes all rows.

        Raises:
            OSError: A file cannot be written; the next call writes its rows.
        """
        self._leave_removed_files()
        for kind, file in list(self._files.items()):
            _write(file)
            if file.size >= self._file_bytes:
                self._close(kind)
        self._waiting_bytes = 0

    def close(self) -> None:
        """Writes all rows and closes the files.

        Raises:
            OSError: A file cannot be written.
        """
        self.flush()
        for kind in list(self._files):
            self._close(kind)

    def _open(self, schema: Any) -> _File:
        self._remove_old()
        self._num_opened += 1
        moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        path = self._folder / f"{moment}-{os.getpid()}-{self._num_opened:06}.arrows"
        file = _File(path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640))
        try:
            _append(file, schema.serialize())
        except OSError:
            os.close(file.descriptor)
            path.unlink(missing_ok=True)
            raise
        return file

    def _leave_removed_files(self) -> None:
        """Closes files that a person, or another server of this folder, has removed."""
        for kind, file in list(self._files.items()):
            if os.fstat(file.descriptor).st_nlink:
                continue
            if file.waiting:
                other = self._open(kind[0])
                other.waiting = file.waiting
                self._files[kind] = other
            else:
                del self._files[kind]
            os.close(file.descriptor)

    def _close(self, kind: Any) -> None:
        file = self._files[kind]
        _write(file)
        del self._files[kind]
        os.close(file.descriptor)

    def _remove_old(self) -> None:
        """Removes the oldest files, so that the folder has room for another one."""
        opened = {each.path for each in self._files.values()}
        sizes = {}
        for path in sorted(self._folder.glob(_NAMES)):
            try:
                size = path.stat().st_size
            except FileNotFoundError:  # another server has removed it
                continue
            # Open files have room to grow.
            sizes[path] = max(size, self._file_bytes) if path in opened else size
        room = self._max_bytes - self._file_bytes
        total = sum(sizes.values())
        for number, (path, size) in enumerate(sizes.items()):
            if total <= room and len(sizes) - number < _MAX_FILES:
                break
            if path not in opened:
                path.unlink(missing_ok=True)
                total -= size


def _write(file: _File) -> None:
    """Writes the waiting rows of a file as one batch."""
    if file.waiting:
        [batch] = pyarrow.Table.from_batches(file.waiting).combine_chunks().to_batches()
        _append(file, batch.serialize())
        file.waiting.clear()


def _append(file: _File, content: Any) -> None:
    rest = memoryview(content)
    try:
        while rest:
            rest = rest[os.write(file.descriptor, rest) :]
    except OSError:
        # Remove an incomplete batch, after which nothing could be read.
        os.ftruncate(file.descriptor, file.size)
        os.lseek(file.descriptor, file.size, os.SEEK_SET)
        raise
    file.size += len(memoryview(content))


def run(source: socket.socket, writer: LogWriter) -> None:
    """Writes messages until the server closes its socket.

    Args:
        source: Socket from which messages are read.
        writer: Receives the rows.
    """
    source.settimeout(FLUSH_SECONDS)
    flushed = time.monotonic()
    while True:
        try:
            message = source.recv(_MAX_MESSAGE)
        except TimeoutError:
            message = None
        if message:
            try:
                rows = read_message(message)
            except (SparringError, StatusError, pyarrow.ArrowException) as error:
                _warn(f"an entry was left out: {error}")
            else:
                _retry(source, partial(writer.add, rows))
        if message == b"":
            break
        if writer.is_full or time.monotonic() - flushed >= FLUSH_SECONDS:
            _retry(source, writer.flush)
            flushed = time.monotonic()
    _retry(source, writer.close)


def _retry(source: socket.socket, write: Callable[[], None]) -> None:
    """Calls a function until it succeeds, or the server has ended."""
    is_warned = False
    poll = select.poll()
    poll.register(source, 0)
    while True:
        try:
            return write()
        except OSError as error:
            if not is_warned:
                _warn(f"writing failed, entries are dropped until it succeeds: {error}")
            is_warned = True
        if poll.poll(1000 * FLUSH_SECONDS):  # the other end was closed
            return None
        time.sleep(FLUSH_SECONDS)


def _warn(message: str) -> None:
    print(f"warning: server.log: {message}", file=sys.stderr, flush=True)


def main(descriptor: str, folder: str, max_bytes: str) -> None:
    """Writes the log of one server, with the arguments of the command line."""
    # The server ends first, and closes its socket after the last call.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(descriptor)) as source:
        run(source, LogWriter(Path(folder), int(max_bytes)))


if __name__ == "__main__":
    main(*sys.argv[1:])
