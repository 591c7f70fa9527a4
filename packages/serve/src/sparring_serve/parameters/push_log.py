"""The log of pushes since the last save of a shard; docs/format/push-log.md describes the files.

    push ──► append(PushRequest) ──► queue ──► acknowledgement
    save ──► begin(url): a new segment ──► committed: older segments are deleted

If the process is killed, everything that it wrote remains in the files, because the operating system
keeps it. `fsync` only protects against power losses.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sparring.errors import StorageIOError
from sparring_serve.parameters.incarnations import new_incarnation
from sparring_serve.parameters.push_log_files import (
    MAGIC,
    Base,
    RecordKind,
    Segment,
    add_positions,
    boot_id,
    head_of,
    number_of,
    read_segment,
    replay,
    stem_of,
    sync_folder,
)
from sparring_serve.parameters.push_log_reader import LogReader
from sparring_serve.replication.records import LostLogError
from sparring_serve.wire.fields import Buffer
from sparring_serve.wire.messages import Record

__all__ = [
    "LogStart",
    "PushLog",
    "ResumeResult",
]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResumeResult:
    """Result of `PushLog.resume`."""

    num_pushes: int
    """Number of replayed pushes."""
    lost: str
    """Reason why acknowledged pushes may be missing; empty if the state is complete."""


@dataclass(frozen=True, slots=True)
class LogStart:
    """A snapshot that a log follows, and the number of records before it."""

    base: Base
    position: int


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
        self._stem = stem_of(shard, num_shards)
        self.incarnation = new_incarnation()
        """Incarnation of the rows; at the start, the one to use if the log does not continue another."""
        self.gap = ""
        """Reason why pushes are not logged; empty if they are."""
        self.num_bytes = 0
        self.position, self.epoch = 0, 0
        """Number of pushes, saves and loads in the history of the shard; epoch of the leader whose
        history it is, 0 if the shard has never had replicas, -1 if pushes are missing."""
        self.is_strict = False
        """Whether pushes that do not fit are rejected, instead of not being logged."""
        self._segments: list[Segment] = []
        self.reader = LogReader()
        self._renamed: list[Path] = []
        """Files of a log that did not follow the snapshot at the start."""
        self.superseded = ""
        """Newest snapshot when an older one was loaded; `parameters.start: newest` does not choose it."""
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
            raise StorageIOError(
                f"push log {folder}/{self._stem} is used by another process; if that is a server of the "
                "same shard, use or stop it, otherwise set parameters.push_log to another folder"
            ) from error

    def _failed(self, what: str, error: OSError) -> StorageIOError:
        return StorageIOError(
            f"push log {self.folder}/{self._stem}: {what} ({error.strerror or error}); set "
            "parameters.push_log to a separate local folder per service, or parameters.push_log_bytes=0"
        )

    # -- at the start of a server

    def resume(
        self,
        base: Base,
        apply: Callable[[bytes], None],
        *,
        start: str | None = "newest",
        change: Callable[[bytes], None] = lambda _: None,
    ) -> ResumeResult:
        """Replays the pushes since the snapshot that the shard started with, and starts a segment.

        The incarnation remains if no acknowledged push is missing, and changes otherwise.

        Args:
            base: The snapshot.
            apply: Applies a PushRequest, unless its token is known.
            start: `parameters.start`. If None, nothing is replayed.
            change: Applies a MovedPart.

        Raises:
            StorageIOError: The files cannot be read or written.
        """
        try:
            found = [read_segment(path, self._num_shards) for path in self._paths()]
            own = [each for each in found if each is not None]
            add_positions(own)
            self._number = max((number_of(path) for path in self._paths()), default=0)
            begin = None
            if start is not None:
                begin = next((i for i in reversed(range(len(own))) if own[i].has_base(base)), None)
            lost = "" if own else self._other_shards(base)
            num_pushes = 0
            if begin is None:
                is_wanted = start != "newest" and bool(own) and own[-1].is_ended
                lost = lost or self._set_aside(own, base)
                if is_wanted:
                    # The server ended normally and now starts with another snapshot.
                    lost = ""
            else:
                num_pushes = replay(own[begin:], apply, change)
                lost = self._missing(own[begin:])
            is_complete = bool(own) and begin is not None and not lost
            if is_complete:
                self.incarnation = own[-1].header["incarnation"]
            if own and begin is not None:
                last = own[-1]
                self._segments = own[begin:]
                # The service may have been restored at another path, which followers can read.
                self._segments[0].header |= {
                    "base": base.url,
                    "base_save": base.save,
                    "base_hash": base.hash,
                }
                self.position = last.position + last.num_pushes
                self.epoch = last.header.get("epoch", 0)
                self.superseded = last.header.get("superseded", "")
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

    def _missing(self, chain: list[Segment]) -> str:
        faults = [f"{each.path.name}: {each.fault}" for each in chain if each.fault]
        faults += [
            f"the rows of {each.base} replaced the rows while the log was written"
            for each in chain[1:]
            if each.header.get("is_load")
        ]
        last = chain[-1]
        milliseconds = last.header["sync_milliseconds"]
        if last.header["boot"] != boot_id() and not last.is_ended and milliseconds:
            faults.append(
                f"the machine of {last.path.name} went down, so pushes of its last {milliseconds:g} ms "
                "may be missing (parameters.push_log_sync_milliseconds)"
            )
        return "; ".join(faults)

    def _set_aside(self, own: list[Segment], base: Base) -> str:
        """Renames segments that do not follow the snapshot; returns a description of the loss."""
        num_pushes = sum(each.num_pushes for each in own)
        faults = [each.fault for each in own if each.fault]
        bases = [each.base for each in own if each.base is not None]
        for each in own:
            if num_pushes or faults:
                self._renamed.append(each.path.rename(each.path.with_suffix(".unused")))
            else:
                each.path.unlink()
        if not (num_pushes or faults):
            return ""
        log_base = (bases[-1] if bases else "") or "no snapshot"
        return (
            f"the log of {num_pushes:,} pushes follows {log_base}, but the server started with "
            f"{base.url or 'no snapshot'}; its files were renamed to {self.folder}/{self._stem}.*.unused"
        )

    def _other_shards(self, base: Base) -> str:
        """Describes pushes after the same snapshot in logs that another number of shards wrote."""
        for path in sorted(self.folder.glob("shard-*.*.log")):
            if path.name.startswith(f"{self._stem}."):
                continue
            each = read_segment(path, self._num_shards)
            is_other = each is not None and each.header["num_shards"] != self._num_shards
            if each is not None and is_other and each.has_base(base) and each.num_pushes:
                return (
                    f"{path} contains {each.num_pushes:,} pushes of a service with another number of "
                    "shards, or with other replicas or parameters.replication, which are not replayed; "
                    "start it as before, and save before you change them"
                )
        return ""

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob(f"{self._stem}.*.log"))

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
        self.reader.remember(Record(RecordKind.PUSH, content))

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

    def begin(self, base: Base | None, *, is_load: bool = False, is_record: bool = False) -> int:
        """Starts a segment: later pushes follow `base`. Returns its number, for `commit`.

        Args:
            base: The snapshot; None to follow the previous segment.
            is_load: Whether the rows of `base` replace all rows, so that the segment does not
                continue the previous one.
            is_record: Whether followers begin a segment at this position, too.
        """
        self._number += 1
        position = self.position + is_record
        path = self.folder / f"{self._stem}.{self._number:08d}.log"
        header: dict[str, Any] = {
            "incarnation": self.incarnation,
            "base": None if base is None else base.url,
            "is_load": is_load,
            "boot": boot_id(),
            "shard": self._shard,
            "num_shards": self._num_shards,
            "sync_milliseconds": 1000 * self._sync_seconds,
            "position": position,
            "epoch": max(self.epoch, 0),
        }
        if base is not None:
            header |= {"base_save": base.save, "base_hash": base.hash}
        if self.partitions is not None:
            header["partitions"] = self.partitions
        if self.superseded:
            header["superseded"] = self.superseded
        payload = json.dumps(header).encode()
        content = MAGIC + head_of(RecordKind.HEADER, payload) + payload
        try:
            self._fsync()
            opened = path.open("xb", buffering=0)
            try:
                if opened.write(content) < len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(opened.fileno())
                sync_folder(self.folder)
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
        self._segments.append(Segment(self._number, path, header))
        if is_record:
            self.reader.remember(Record(RecordKind.HEADER, payload))
        return self._number

    def commit(self, number: int) -> None:
        """Deletes segments before `number`, because the snapshot that it follows is complete."""
        for path in self._paths():
            if number_of(path) < number:
                self.num_bytes -= path.stat().st_size
                path.unlink()
        self._segments = [each for each in self._segments if each.number >= number]
        # `read` no longer returns older ones.
        self.reader.forget_all_but(self.position - self.start.position)

    # -- for followers

    @property
    def start(self) -> LogStart:
        """Snapshot that the oldest segment follows."""
        oldest = self._segments[0]
        return LogStart(oldest.identity or Base(""), oldest.position)

    def read(self, position: int) -> list[Record]:
        """Returns some of the records after a position; none at the end.

        Raises:
            LostLogError: The log does not contain them, because it has a gap or was truncated.
        """
        if self.gap or not self.start.position <= position <= self.position:
            raise LostLogError(self.gap or f"position {position}")
        return self.reader.read(position, self.position, self._segments)

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
        for each in self._segments:
            if each.base is not None and each.position == position:
                self.commit(each.number)
                return

    def reset(self, base: Base, position: int, epoch: int) -> None:
        """Replaces the log by an empty one that follows a snapshot of the leader of an epoch.

        The leader has all acknowledged pushes.
        """
        try:
            for path in [*self._paths(), *self._renamed]:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise self._failed("cannot be deleted", error) from error
        self._segments, self._renamed, self.num_bytes = [], [], 0
        self.reader.clear()
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
        parts = [memoryview(head_of(kind, payload)), memoryview(payload)]
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
