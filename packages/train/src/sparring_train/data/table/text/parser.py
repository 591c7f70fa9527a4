"""Arrow's CSV parser over a file of Python.

Threads of Arrow read such a file ahead, and do so for a moment after the parser was closed or failed. A
thread that calls Python while the interpreter ends aborts the process. Therefore the end of the program
waits for these threads.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from pyarrow import csv

__all__ = ["CsvParser"]

_PATIENCE_SECONDS = 30.0
"""A file system that does not answer must not keep the process."""


class _ReadFile:
    """A stream that counts the lines that are read. Arrow holds it as long as its threads need it."""

    closed = False

    def __init__(self, stream: Any, on_broken: Callable[[Any], str]) -> None:
        self._stream, self._on_broken = stream, on_broken
        self._ended, self._last = 0, b"\n"
        self.is_over = False

    def read(self, size: int = -1) -> bytes:
        block: bytes = b"" if self.is_over else self._stream.read(size)
        self._ended += block.count(b"\n")
        self._last = block[-1:] or self._last
        return block

    def handle_broken_row(self, row: Any) -> str:
        return self._on_broken(row)

    @property
    def num_lines(self) -> int:
        return self._ended + (self._last != b"\n")


class CsvParser:
    """Yields the blocks of a CSV file.

    Args:
        stream: the file.
        on_broken: called for a row with a wrong number of fields; returns ``"skip"`` or ``"error"``.
        read: read options of Arrow.
        parse: arguments of Arrow's parse options.
        convert: convert options of Arrow.

    Raises:
        pyarrow.ArrowException, OSError: the beginning of the file cannot be read.
    """

    def __init__(
        self,
        stream: Any,
        on_broken: Callable[[Any], str],
        read: Any,
        parse: dict[str, Any],
        convert: Any,
    ) -> None:
        self._file: _ReadFile | None = _ReadFile(stream, on_broken)
        _ending.add(self, self._file)
        try:
            # Arrow's threads release the handler and the stream at different times.
            self._blocks: Any = csv.open_csv(
                self._file,
                read,
                csv.ParseOptions(**parse, invalid_row_handler=self._file.handle_broken_row),
                convert,
            )
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._blocks is None:
            raise StopIteration
        return next(self._blocks)

    @property
    def num_lines(self) -> int:
        """Number of lines that were read."""
        return 0 if self._file is None else self._file.num_lines

    def close(self) -> None:
        """Ends reading, without a wait for the threads."""
        if self._file is not None:
            self._file.is_over = True
        self._blocks = self._file = None


class _Ending:
    """Waits at the end of the program until no thread of Arrow needs a file."""

    def __init__(self) -> None:
        self.forget()
        atexit.register(self.wait)
        os.register_at_fork(after_in_child=self.forget)  # a forked child has none of the threads

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._parsers: weakref.WeakSet[CsvParser] = weakref.WeakSet()
        self._files: weakref.WeakSet[_ReadFile] = weakref.WeakSet()

    def add(self, parser: CsvParser, file: _ReadFile) -> None:
        with self._lock:
            self._parsers.add(parser)
            self._files.add(file)

    def wait(self) -> None:
        with self._lock:
            parsers = list(self._parsers)
            for file in list(self._files):
                file.is_over = True  # also of a parser that was deleted before its end
                del file
        for parser in parsers:
            parser.close()
        limit = time.monotonic() + _PATIENCE_SECONDS
        while len(self._files) and time.monotonic() < limit:
            time.sleep(0.001)


_ending = _Ending()
