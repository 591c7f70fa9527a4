"""The log of pushes since the last save of a shard; docs/format/push-log.md describes the files.

    push ──► append(PushRequest) ──► queue ──► acknowledgement
    save ──► begin(url): a new segment ──► committed: older segments are deleted

If the process is killed, everything that it wrote remains in the files, because the operating system
keeps it. `fsync` only protects against power losses.

The file is long because replay, writing and reading for followers share the state of the segments.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import logging
import os
import secrets
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from sparring.errors import StorageIOError
from sparring_serve.replication.records import LostLogError
from sparring_serve.wire.fields import Buffer
from sparring_serve.wire.messages import Record

__all__ = [
    "LogStart",
    "PushLog",
    "RecordKind",
    "ResumeResult",
    "new_incarnation",
    "read_partitions",
]

_log = logging.getLogger(__name__)

_MAGIC = b"SPRPLOG1"
_RECORD = struct.Struct("<IQB")
"""Payload bytes, XXH3-64 of kind and payload, kind."""
_MAX_RECORD_BYTES = 1 << 27
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class RecordKind(IntEnum):
    """Kind of a record."""

    HEADER = 0
    PUSH = 1
    GAP = 2
    """Later pushes of this segment are not logged; the payload contains the reason."""
    END = 3
    """The server ended normally."""
    CHANGE = 4
    """A `MovedPart`: a change of the shard's rows that is not a push."""


@dataclass(frozen=True, slots=True)
class ResumeResult:
    """Result of `PushLog.resume`."""

    num_pushes: int
    """Number of replayed pushes."""
    lost: str
    """Reason why acknowledged pushes may be missing; empty if the state is complete."""


_RECENT_BYTES = 32 << 20
"""Size of the newest records that are kept in memory for followers."""
_BATCH_BYTES = 8 << 20
"""Size of records from which `PushLog.read` returns no more."""
_BATCH_RECORDS = 4096


@dataclass(slots=True)
class _Segment:
    number: int
    path: Path
    header: dict[str, Any]
    num_pushes: int = 0
    fault: str = ""
    """Reason why pushes are missing in the segment; empty if it is complete."""
    is_ended: bool = False

    @property
    def base(self) -> str | None:
        """Snapshot that the segment follows. Empty if there were no rows; None if the segment follows the
        previous one."""
        base: str | None = self.header["base"]
        return base

    @property
    def position(self) -> int:
        """Number of records in the history of the shard before the first push of the segment."""
        position: int = self.header.get("position", 0)
        return position


@dataclass(frozen=True, slots=True)
class LogStart:
    """A snapshot that a log follows, and the number of records before it."""

    base: str
    position: int


def new_incarnation() -> int:
    return secrets.randbits(62) + 1


class PushLog:
    """Log of one shard. The owner serializes all calls, so that records have the order of the queue.

    Args:
        folder: Folder of the log, on a local disk; created if it does not exist.
        shard: Number of the shard, from 0.
        num_shards: Number of shards of the service; 0 if it can change.
        max_bytes: Maximum size of all segments. Above it, pushes are not logged until the next save.
        sync_milliseconds: Interval of `fsync`; 0 calls it for each push, before the acknowledgement.

    Raises:
        StorageIOError: The folder is not writable, or another process uses this log.
    """

    def __init__(
        self, folder: Path, shard: int, num_shards: int, max_bytes: int, sync_milliseconds: float
    ) -> None:
        self.folder, self._shard, self._num_shards = folder, shard, num_shards
        self._max_bytes, self._sync_seconds = max_bytes, sync_milliseconds / 1000
        self._stem = _stem(shard, num_shards)
        self.incarnation = 0
        self.gap = ""
        """Reason why pushes are not logged; empty if they are."""
        self.num_bytes = 0
        self.position, self.epoch = 0, 0
        """Number of pushes, saves and loads in the history of the shard; epoch of the leader whose
        history it is, 0 if the shard has never had replicas, -1 if pushes are missing."""
        self.is_strict = False
        """Whether pushes that do not fit are rejected, instead of not being logged."""
        self._segments: list[tuple[int, str | None, int]] = []
        """Number, base and position of each segment."""
        self._recent: deque[Record] | None = None
        self._recent_bytes = 0
        self._read_on: tuple[int, Iterator[Record]] | None = None
        """Position after the last read from files, and the records that follow."""
        self.partitions: list[tuple[int, int]] | None = None
        """Ranges of partitions of the shard, for the headers of segments; None if they never change."""
        self._number = 0
        self._file: BinaryIO | None = None
        self._is_dirty = False
        self._file_lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / f"{self._stem}.lock").open("ab")
        except OSError as error:
            raise self._failed("cannot be opened", error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise self._failed("is used by another process", error) from error

    def _failed(self, what: str, error: OSError) -> StorageIOError:
        return StorageIOError(
            f"push log {self.folder}/{self._stem}: {what} ({error.strerror or error}); set "
            "parameters.push_log to a separate local folder per service, or parameters.push_log_bytes=0"
        )

    # -- at the start of a server

    def resume(
        self,
        base: str,
        apply: Callable[[bytes], None],
        *,
        start: str | None = "newest",
        change: Callable[[bytes], None] = lambda _: None,
    ) -> ResumeResult:
        """Replays the pushes since the snapshot that the shard started with, and starts a segment.

        The incarnation remains if no acknowledged push is missing, and changes otherwise.

        Args:
            base: URL of the snapshot; empty if there are no rows.
            apply: Applies a PushRequest, unless its token is known.
            start: `parameters.start`. If None, nothing is replayed.
            change: Applies a MovedPart.

        Raises:
            StorageIOError: The files cannot be read or written.
        """
        try:
            found = [self._read(path) for path in self._paths()]
            own = [each for each in found if each is not None]
            _add_positions(own)
            self._number = max((_number(path) for path in self._paths()), default=0)
            begin = None
            if start is not None:
                begin = next((i for i in reversed(range(len(own))) if own[i].base == base), None)
            lost = "" if own else self._other_shards(base)
            num_pushes = 0
            if begin is None:
                is_wanted = start != "newest" and bool(own) and own[-1].is_ended
                lost = lost or self._set_aside(own, base)
                if is_wanted:
                    # The server ended normally and now starts with another snapshot.
                    lost = ""
            else:
                num_pushes = _replay(own[begin:], apply, change)
                lost = self._missing(own[begin:])
            is_complete = bool(own) and begin is not None and not lost
            self.incarnation = own[-1].header["incarnation"] if is_complete else new_incarnation()
            if own and begin is not None:
                last = own[-1]
                self._segments = [(each.number, each.base, each.position) for each in own[begin:]]
                self.position = last.position + last.num_pushes
                self.epoch = last.header.get("epoch", 0)
            self.epoch = -1 if lost else self.epoch
            self.begin(base if begin is None else None)
        except OSError as error:
            raise self._failed("cannot be read or written", error) from error
        if begin is not None:
            for each in own[:begin]:
                each.path.unlink(missing_ok=True)
        self.num_bytes = sum(path.stat().st_size for path in self._paths())
        if self._sync_seconds:
            self._thread = threading.Thread(target=self._sync, name="push-log-sync", daemon=True)
            self._thread.start()
        return ResumeResult(num_pushes, lost)

    def _missing(self, chain: list[_Segment]) -> str:
        faults = [f"{each.path.name}: {each.fault}" for each in chain if each.fault]
        faults += [
            f"the rows of {each.base} replaced the rows while the log was written"
            for each in chain[1:]
            if each.header.get("is_load")
        ]
        last = chain[-1]
        milliseconds = last.header["sync_milliseconds"]
        if last.header["boot"] != _boot() and not last.is_ended and milliseconds:
            faults.append(
                f"the machine of {last.path.name} went down, so pushes of its last {milliseconds:g} ms "
                "may be missing (parameters.push_log_sync_milliseconds)"
            )
        return "; ".join(faults)

    def _set_aside(self, own: list[_Segment], base: str) -> str:
        """Renames segments that do not follow the snapshot; returns a description of the loss."""
        num_pushes = sum(each.num_pushes for each in own)
        faults = [each.fault for each in own if each.fault]
        bases = [each.base for each in own if each.base is not None]
        for each in own:
            if num_pushes or faults:
                each.path.rename(each.path.with_suffix(".unused"))
            else:
                each.path.unlink()
        if not (num_pushes or faults):
            return ""
        log_base = (bases[-1] if bases else "") or "no snapshot"
        return (
            f"the log of {num_pushes:,} pushes follows {log_base}, but the server started with "
            f"{base or 'no snapshot'}; its files were renamed to {self.folder}/{self._stem}.*.unused"
        )

    def _other_shards(self, base: str) -> str:
        """Describes pushes after the same snapshot in logs that another number of shards wrote."""
        for path in sorted(self.folder.glob("shard-*.*.log")):
            each = None if path.name.startswith(f"{self._stem}.") else self._read(path)
            is_other = each is not None and each.header["num_shards"] != self._num_shards
            if each is not None and is_other and each.base == base and each.num_pushes:
                return (
                    f"{path} contains {each.num_pushes:,} pushes of a service with another number of "
                    "shards, or with other replicas or parameters.replication, which are not replayed; "
                    "start it as before, and save before you change them"
                )
        return ""

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob(f"{self._stem}.*.log"))

    def _read(self, path: Path) -> _Segment | None:
        """Reads a whole segment; returns None if its header is incomplete, so nothing follows it."""
        segment: _Segment | None = None
        end = 0
        for kind, payload in _records(path):
            end += _RECORD.size + len(payload)
            if segment is None:
                if kind != RecordKind.HEADER:
                    break
                segment = _Segment(_number(path), path, json.loads(payload))
                continue
            segment.num_pushes += kind == RecordKind.PUSH
            segment.is_ended = kind == RecordKind.END
            if kind == RecordKind.GAP:
                segment.fault = payload.decode()
        fault = _damage(path, len(_MAGIC) + end)
        if segment is None and fault:
            header = {"incarnation": 0, "base": None, "boot": _boot(), "sync_milliseconds": 0}
            segment = _Segment(_number(path), path, header | {"num_shards": self._num_shards})
        if segment is not None and fault:
            segment.fault = fault
        return segment

    # -- while the server runs

    def append(self, content: Buffer) -> None:
        """Writes a PushRequest.

        Raises:
            StorageIOError: The disk is full or failed; the log is unchanged.
        """
        if self.gap:
            return
        if self.num_bytes + len(content) > self._max_bytes:
            if self.is_strict:
                raise StorageIOError(
                    f"the push log has {self.num_bytes:,} bytes, and the maximum is "
                    f"parameters.push_log_bytes={self._max_bytes:,}; save, for example at intervals with "
                    "parameters.save"
                )
            self.skip(
                f"pushes since the last save need more than parameters.push_log_bytes={self._max_bytes:,}"
            )
            return
        self._write(RecordKind.PUSH, content)
        self.position += 1
        self._remember(Record(RecordKind.PUSH, content))

    def _remember(self, record: Record) -> None:
        """Keeps a record in memory, because followers need it soon."""
        if self._recent is None:
            return
        self._recent.append(record)
        self._recent_bytes += len(record.payload)
        while self._recent_bytes > _RECENT_BYTES and len(self._recent) > 1:
            self._recent_bytes -= len(self._recent.popleft().payload)

    def append_change(self, content: Buffer) -> None:
        """Writes a MovedPart, like `append`. A log with followers has none."""
        if not self.gap and self.num_bytes + len(content) > self._max_bytes:
            self.skip(
                f"rows of a resize need more than parameters.push_log_bytes={self._max_bytes:,}"
            )
        if not self.gap:
            self._write(RecordKind.CHANGE, content)

    def has_space(self, num_bytes: int) -> bool:
        """Returns whether a record fits.

        Args:
            num_bytes: Size of the record.
        """
        return self.num_bytes + num_bytes <= self._max_bytes

    def sync(self) -> None:
        """Waits until all records are on the disk."""
        self._fsync()

    def skip(self, why: str) -> None:
        """Stops logging until the next save, and records the reason in the log."""
        if self.gap:
            return
        self.gap = why
        _log.warning("%s: until the next save, pushes are lost if this server is killed", why)
        self._write(RecordKind.GAP, why.encode())

    def begin(self, base: str | None, *, is_load: bool = False, is_record: bool = False) -> int:
        """Starts a segment: later pushes follow `base`. Returns its number, for `commit`.

        Args:
            base: URL of the snapshot; empty if there are no rows; None to follow the previous
                segment.
            is_load: Whether the rows of `base` replace all rows, so that the segment does not
                continue the previous one.
            is_record: Whether followers begin a segment at this position, too.
        """
        self._number += 1
        position = self.position + is_record
        path = self.folder / f"{self._stem}.{self._number:08d}.log"
        header: dict[str, Any] = {
            "incarnation": self.incarnation,
            "base": base,
            "is_load": is_load,
            "boot": _boot(),
            "shard": self._shard,
            "num_shards": self._num_shards,
            "sync_milliseconds": 1000 * self._sync_seconds,
            "position": position,
            "epoch": max(self.epoch, 0),
        }
        if self.partitions is not None:
            header["partitions"] = self.partitions
        payload = json.dumps(header).encode()
        content = _MAGIC + _head(RecordKind.HEADER, payload) + payload
        try:
            self._fsync()
            opened = path.open("xb", buffering=0)
            try:
                if opened.write(content) < len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(opened.fileno())
                _sync_folder(self.folder)
            except OSError:
                opened.close()
                path.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise self._failed("cannot be written", error) from error
        self.position = position
        with self._file_lock:
            before, self._file = self._file, opened
            if before is not None:
                before.close()
        self.num_bytes += opened.tell()
        if base is not None:
            self.gap = ""
        self._segments.append((self._number, base, self.position))
        if is_record:
            self._remember(Record(RecordKind.HEADER, payload))
        return self._number

    def commit(self, number: int) -> None:
        """Deletes segments before `number`, because the snapshot that it follows is complete."""
        for path in self._paths():
            if _number(path) < number:
                self.num_bytes -= path.stat().st_size
                path.unlink()
        self._segments = [each for each in self._segments if each[0] >= number]
        # `read` no longer returns older ones.
        while self._recent and len(self._recent) > self.position - self.start.position:
            self._recent_bytes -= len(self._recent.popleft().payload)

    # -- for followers

    def keep_recent(self) -> None:
        """Keeps the newest records in memory from now on."""
        self._recent = deque()

    @property
    def start(self) -> LogStart:
        """Snapshot that the oldest segment follows."""
        _, base, position = self._segments[0]
        return LogStart(base or "", position)

    def read(self, position: int) -> list[Record]:
        """Returns some of the records after a position; none at the end.

        Raises:
            LostLogError: The log does not contain them, because it has a gap or was truncated.
        """
        if self.gap or not self.start.position <= position <= self.position:
            raise LostLogError(self.gap or f"position {position}")
        count = self.position - position
        recent = self._recent if self._recent is not None else deque()
        if count <= len(recent):
            return _batch(recent[i] for i in range(len(recent) - count, len(recent)))
        found: list[Record] = []
        try:
            if self._read_on is not None and self._read_on[0] == position:
                found = _batch(self._read_on[1])
            if not found:
                records = self._read_files(position)
                found = _batch(records)
                self._read_on = position, records
        except OSError as error:
            raise LostLogError(str(error)) from error
        if not found or self._read_on is None:
            raise LostLogError(f"the files of the log end before position {self.position}")
        self._read_on = position + len(found), self._read_on[1]
        return found

    def _read_files(self, after: int) -> Iterator[Record]:
        for number, base, position in list(self._segments):
            first, end = position, position
            if base is not None and number != self._segments[0][0]:
                first -= 1  # its header is a record
            path = self.folder / f"{self._stem}.{number:08d}.log"
            for kind, payload in _records(path):
                if kind == RecordKind.HEADER:
                    if first < position and first >= after:
                        yield Record(RecordKind.HEADER, payload)
                elif kind == RecordKind.PUSH:
                    end += 1
                    if end > after:
                        yield Record(RecordKind.PUSH, payload)

    def begin_epoch(self, epoch: int) -> None:
        """Records that later records are of a new leader."""
        before, self.epoch = self.epoch, epoch
        try:
            self.begin(None)
        except StorageIOError:
            self.epoch = before
            raise

    def drop_before(self, position: int) -> None:
        """Deletes the segments before the one that follows the snapshot at a position."""
        for number, base, at in self._segments:
            if base is not None and at == position:
                self.commit(number)
                return

    def reset(self, base: str, position: int, epoch: int) -> None:
        """Replaces the log by an empty one that follows a snapshot of the leader of an epoch."""
        try:
            for path in self._paths():
                path.unlink()
        except OSError as error:
            raise self._failed("cannot be deleted", error) from error
        self._segments, self.num_bytes = [], 0
        if self._recent is not None:
            self._recent.clear()
            self._recent_bytes = 0
        self._read_on = None
        self.position, self.epoch = position, epoch
        self.begin(base)

    def close(self) -> None:
        """Records that the server ended normally, and closes the files."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._file is not None:
            try:
                self._write(RecordKind.END, b"")
                self._fsync()
            finally:
                self._file.close()
                self._file = None
        self._lock.close()

    def _write(self, kind: RecordKind, payload: Buffer) -> None:
        assert self._file is not None
        parts = [memoryview(_head(kind, payload)), memoryview(payload)]
        before = self._file.tell()
        try:
            for part in parts:
                written = 0
                while written < len(part):
                    written += self._file.write(part[written:])
            if not self._sync_seconds:
                self._fsync()
        except OSError as error:
            self._file.truncate(before)
            self._file.seek(before)
            raise self._failed("cannot be written", error) from error
        self.num_bytes += sum(map(len, parts))
        self._is_dirty = True

    def _fsync(self) -> None:
        with self._file_lock:
            self._is_dirty = False
            if self._file is not None:
                os.fsync(self._file.fileno())

    def _sync(self) -> None:
        while not self._stop.wait(self._sync_seconds):
            if self._is_dirty:
                try:
                    self._fsync()
                except OSError as error:
                    self._is_dirty = True
                    _log.warning(
                        "push log %s: fsync failed and will be repeated: %s; check the disk",
                        self.folder, error,
                    )  # fmt: skip


def _replay(
    segments: list[_Segment], apply: Callable[[bytes], None], change: Callable[[bytes], None]
) -> int:
    """Applies all records; returns the number of pushes."""
    num_pushes = 0
    for each in segments:
        for kind, payload in _records(each.path):
            if kind == RecordKind.PUSH:
                apply(payload)
                num_pushes += 1
            elif kind == RecordKind.CHANGE:
                change(payload)
    return num_pushes


def _add_positions(segments: list[_Segment]) -> None:
    """Adds the positions that older releases did not write."""
    for before, each in itertools.pairwise(segments):
        if "position" not in each.header:
            position = before.position + before.num_pushes + (each.base is not None)
            each.header["position"] = position


def _batch(records: Iterator[Record]) -> list[Record]:
    """Takes some records."""
    found, num_bytes = [], 0
    for each in records:
        found.append(each)
        num_bytes += len(each.payload)
        if num_bytes >= _BATCH_BYTES or len(found) == _BATCH_RECORDS:
            break
    return found


def _stem(shard: int, num_shards: int) -> str:
    of = f"-of-{num_shards:04d}" if num_shards else ""
    return f"shard-{shard + 1:04d}{of}"


def read_partitions(folder: Path, shard: int) -> dict[str, list[tuple[int, int]]]:
    """Returns, per snapshot that a segment of a shard follows, the ranges of partitions of the shard at
    that time.

    Args:
        folder: Folder of the log.
        shard: Number of the shard, from 0.
    """
    found = {}
    for path in sorted(folder.glob(f"{_stem(shard, 0)}.*.log")):
        kind, payload = next(_records(path), (None, b""))
        if kind == RecordKind.HEADER:
            header = json.loads(payload)
            if header["base"] is not None and "partitions" in header:
                found[header["base"]] = [(begin, end) for begin, end in header["partitions"]]
    return found


def _number(path: Path) -> int:
    return int(path.suffixes[-2][1:])


def _head(kind: RecordKind, payload: Buffer) -> bytes:
    """Returns the header of a record."""
    return _RECORD.pack(len(payload), _checksum(kind, payload), kind)


def _checksum(kind: int, payload: Buffer) -> int:
    check = xxhash.xxh3_64(bytes([kind]))
    check.update(payload)
    return check.intdigest()


def _records(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields records up to the first that is incomplete or damaged."""
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return
        while len(head := file.read(_RECORD.size)) == _RECORD.size:
            num_bytes, check, kind = _RECORD.unpack(head)
            if num_bytes > _MAX_RECORD_BYTES:
                return
            payload = file.read(num_bytes)
            if len(payload) < num_bytes or _checksum(kind, payload) != check:
                return
            yield kind, payload


def _damage(path: Path, end: int) -> str:
    """Describes why records after `end` cannot be read; empty if there are none, or only an
    incomplete record at the end.

    An incomplete record was never acknowledged. Only the last record can be incomplete, so it extends
    to the end of the file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(end)
        head = file.read(_RECORD.size)
    if len(head) < _RECORD.size:
        return ""
    num_bytes = _RECORD.unpack(head)[0]
    if num_bytes <= _MAX_RECORD_BYTES and end + _RECORD.size + num_bytes >= size:
        return ""
    return f"damaged at byte {end:,} of {size:,}"


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return "unknown"


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
