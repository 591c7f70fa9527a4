"""Reads the records of a push log for followers: the newest ones from memory, others from the files."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from sparring_serve.parameters.push_log_files import RecordKind, Segment, read_records
from sparring_serve.replication.records import LostLogError
from sparring_serve.wire.messages import Record

__all__ = ["LogReader"]

_RECENT_BYTES = 32 << 20
"""Maximum size of the records in memory."""
_BATCH_BYTES = 8 << 20
"""Size of records from which `LogReader.read` returns no more."""
_BATCH_RECORDS = 4096


class LogReader:
    """Records of a log that followers need. The owner of the log serializes all calls."""

    def __init__(self) -> None:
        self.keeps_recent = False
        """Whether new records are kept in memory."""
        self._recent: deque[Record] = deque()
        self._recent_bytes = 0
        self._read_on: tuple[int, Iterator[Record]] | None = None
        """Position after the last read from files, and the records that follow."""

    def remember(self, record: Record) -> None:
        """Keeps the newest record of the log in memory."""
        if not self.keeps_recent:
            return
        self._recent.append(record)
        self._recent_bytes += len(record.payload)
        while self._recent_bytes > _RECENT_BYTES and len(self._recent) > 1:
            self._recent_bytes -= len(self._recent.popleft().payload)

    def forget_all_but(self, count: int) -> None:
        """Keeps only the newest records in memory.

        Args:
            count: Maximum number of records that remain.
        """
        while len(self._recent) > count:
            self._recent_bytes -= len(self._recent.popleft().payload)

    def clear(self) -> None:
        """Forgets all records, because the log is replaced."""
        self.forget_all_but(0)
        self._read_on = None

    def read(self, begin: int, end: int, segments: Sequence[Segment]) -> list[Record]:
        """Returns some of the records between two positions; none if these are equal.

        Args:
            begin: Position of the first record.
            end: Position at the end of the log.
            segments: Segments of the log.

        Raises:
            LostLogError: The files do not contain them.
        """
        count = end - begin
        if count <= len(self._recent):
            length = len(self._recent)
            return _batch(self._recent[i] for i in range(length - count, length))
        found: list[Record] = []
        try:
            if self._read_on is not None and self._read_on[0] == begin:
                found = _batch(self._read_on[1])
            if not found:
                records = _read_files(list(segments), begin)
                found = _batch(records)
                self._read_on = begin, records
        except OSError as error:
            raise LostLogError(str(error)) from error
        if not found or self._read_on is None:
            raise LostLogError(f"the files of the log end before position {end}")
        self._read_on = begin + len(found), self._read_on[1]
        return found


def _read_files(segments: Sequence[Segment], after: int) -> Iterator[Record]:
    for each in segments:
        first, end = each.position, each.position
        if each.base is not None and each is not segments[0]:
            first -= 1  # its header is a record
        for kind, payload in read_records(each.path):
            if kind == RecordKind.HEADER:
                if first < each.position and first >= after:
                    yield Record(RecordKind.HEADER, payload)
            elif kind == RecordKind.PUSH:
                end += 1
                if end > after:
                    yield Record(RecordKind.PUSH, payload)


def _batch(records: Iterable[Record]) -> list[Record]:
    """Takes some records."""
    found, num_bytes = [], 0
    for each in records:
        found.append(each)
        num_bytes += len(each.payload)
        if num_bytes >= _BATCH_BYTES or len(found) == _BATCH_RECORDS:
            break
    return found
