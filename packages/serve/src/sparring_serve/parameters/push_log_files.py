"""The files of a push log: segments of records, which docs/format/push-log.md describes."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import xxhash

from sparring import Snapshot, open_snapshot
from sparring.errors import SnapshotError
from sparring_serve.parameters.allowed_folders import resolved_url
from sparring_serve.wire.fields import Buffer

__all__ = [
    "MAGIC",
    "STATE",
    "Base",
    "RecordKind",
    "Segment",
    "add_positions",
    "base_in",
    "boot_id",
    "head_of",
    "number_of",
    "find_base",
    "read_followed",
    "read_partitions",
    "read_records",
    "read_segment",
    "replay",
    "stem_of",
    "sync_folder",
]

MAGIC = b"SPRPLOG1"
_RECORD = struct.Struct("<IQB")
"""Payload bytes, XXH3-64 of kind and payload, kind."""
_MAX_RECORD_BYTES = 1 << 27
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


STATE = "parameters"
"""Name of a shard's own state in snapshots: steps of tables, push tokens, and the token of the save."""


@dataclass(frozen=True, slots=True)
class Base:
    """A snapshot that pushes follow, independent of where it is stored now.

    Args:
        url: URL of the snapshot, or another description of the rows; empty if there are no rows.
        save: Token of the save that wrote it; empty for snapshots of ranks and of older releases.
        hash: Hash of its manifest; empty while it is being saved.
    """

    url: str
    save: str = ""
    hash: str = ""

    @classmethod
    def of(cls, snapshot: Snapshot) -> Base:
        """Returns the identity of a snapshot."""
        save = ""
        if STATE in snapshot.state_names(0):
            save = snapshot.state(STATE, rank=0).values.get("save", "")
        return cls(snapshot.url, save, snapshot.manifest_hash)

    def is_same(self, other: Base) -> bool:
        """Returns whether both are the same snapshot, which may have been copied to another path.

        The URLs are compared if an older release wrote the snapshot or the log.
        """
        if self.save and other.save:
            return self.save == other.save
        if self.hash and other.hash:
            return self.hash == other.hash
        return resolved_url(self.url) == resolved_url(other.url)


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


@dataclass(slots=True)
class Segment:
    """A file of a push log."""

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
    def identity(self) -> Base | None:
        """Snapshot that the segment follows, or None, like `base`."""
        return base_in(self.header)

    def has_base(self, base: Base) -> bool:
        """Returns whether the segment follows a snapshot."""
        return self.identity is not None and self.identity.is_same(base)

    @property
    def position(self) -> int:
        """Number of records in the history of the shard before the first push of the segment."""
        position: int = self.header.get("position", 0)
        return position


def base_in(header: Mapping[str, Any]) -> Base | None:
    """Returns the snapshot in the header of a segment, if there is one."""
    if header["base"] is None:
        return None
    return Base(header["base"], header.get("base_save", ""), header.get("base_hash", ""))


def read_segment(path: Path, num_shards: int) -> Segment | None:
    """Reads a whole segment; returns None if its header is incomplete, so nothing follows it.

    Args:
        path: Path of the segment.
        num_shards: Number of shards to assume if the header is damaged.
    """
    segment: Segment | None = None
    end = 0
    for kind, payload in read_records(path):
        end += _RECORD.size + len(payload)
        if segment is None:
            if kind != RecordKind.HEADER:
                break
            segment = Segment(number_of(path), path, json.loads(payload))
            continue
        segment.num_pushes += kind == RecordKind.PUSH
        segment.is_ended = kind == RecordKind.END
        if kind == RecordKind.GAP:
            segment.fault = payload.decode()
    fault = _damage(path, len(MAGIC) + end)
    if segment is None and fault:
        header = {"incarnation": 0, "base": None, "boot": boot_id(), "sync_milliseconds": 0}
        segment = Segment(number_of(path), path, header | {"num_shards": num_shards})
    if segment is not None and fault:
        segment.fault = fault
    return segment


def replay(
    segments: list[Segment], apply: Callable[[bytes], None], change: Callable[[bytes], None]
) -> int:
    """Applies all records; returns the number of pushes."""
    num_pushes = 0
    for each in segments:
        for kind, payload in read_records(each.path):
            if kind == RecordKind.PUSH:
                apply(payload)
                num_pushes += 1
            elif kind == RecordKind.CHANGE:
                change(payload)
    return num_pushes


def add_positions(segments: list[Segment]) -> None:
    """Adds the positions that older releases did not write."""
    for before, each in itertools.pairwise(segments):
        if "position" not in each.header:
            position = before.position + before.num_pushes + (each.base is not None)
            each.header["position"] = position


def stem_of(shard: int, num_shards: int) -> str:
    """Returns the beginning of the names of a log's files."""
    of = f"-of-{num_shards:04d}" if num_shards else ""
    return f"shard-{shard + 1:04d}{of}"


def read_partitions(folder: Path, shard: int) -> dict[Base, list[tuple[int, int]]]:
    """Returns, per snapshot that a segment of a shard follows, the ranges of partitions of the shard at
    that time.

    Args:
        folder: Folder of the log.
        shard: Number of the shard, from 0.
    """
    found = {}
    for path in sorted(folder.glob(f"{stem_of(shard, 0)}.*.log")):
        kind, payload = next(read_records(path), (None, b""))
        if kind == RecordKind.HEADER:
            header = json.loads(payload)
            base = base_in(header)
            if base is not None and "partitions" in header:
                found[base] = [(begin, end) for begin, end in header["partitions"]]
    return found


def read_followed(folder: Path, shard: int, num_shards: int) -> tuple[str, list[Base]]:
    """Returns the newest snapshot at the time when an older one was loaded, or an empty string; and the
    snapshots that segments of a shard follow, in their order.

    Args:
        folder: Folder of the log.
        shard: Number of the shard, from 0.
        num_shards: Number of shards of the service; 0 if it can change.
    """
    superseded = ""
    followed: list[Base] = []
    for path in sorted(folder.glob(f"{stem_of(shard, num_shards)}.*.log")):
        kind, payload = next(read_records(path), (None, b""))
        if kind == RecordKind.HEADER:
            header = json.loads(payload)
            superseded = resolved_url(header.get("superseded", ""))
            base = base_in(header)
            if base is not None and base.url:
                followed.append(base)
    return superseded, followed


def find_base(url: str, known: Iterable[Base]) -> Base | None:
    """Returns the snapshot of a log that a snapshot of the service is, at the same or another path.
    None: none of them.

    Args:
        url: URL of a snapshot; empty for no rows.
        known: Snapshots in the log.
    """
    # Only snapshots of the same name are opened.
    named = [each for each in known if _name(each.url) == _name(url)]
    own = Base(url)
    if named and url:
        with contextlib.suppress(SnapshotError):  # if it is damaged, only the URL is known
            own = Base.of(open_snapshot(url))
    return next((each for each in reversed(named) if own.is_same(each)), None)


def _name(url: str) -> str:
    return resolved_url(url).rpartition("/")[2]


def number_of(path: Path) -> int:
    """Returns the number of a segment."""
    return int(path.suffixes[-2][1:])


def head_of(kind: RecordKind, payload: Buffer) -> bytes:
    """Returns the header of a record."""
    return _RECORD.pack(len(payload), _checksum(kind, payload), kind)


def _checksum(kind: int, payload: Buffer) -> int:
    check = xxhash.xxh3_64(bytes([kind]))
    check.update(payload)
    return check.intdigest()


def read_records(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields records up to the first that is incomplete or damaged."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
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


def boot_id() -> str:
    """Returns an identifier that is new whenever the machine starts."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return "unknown"


def sync_folder(folder: Path) -> None:
    """Waits until the names of new files are on the disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
