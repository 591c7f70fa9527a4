"""A change note and the base of a table's notes; ``docs/format/change-notes.md`` describes the bytes."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparring.adapter import BloomFilter, GrowingBloomFilter
from sparring.contracts import Keys, TableConfig, parse_initializer
from sparring.errors import CorruptDataError, InvalidArgumentError, VersionError

__all__ = ["CHANGED_RATE", "ChangeNote", "NotesBase"]

CHANGED_RATE = 0.0001
"""False positive rate: share of unchanged cached keys that are read again unnecessarily."""

_MAGIC = b"SPARnote"
_HEAD = struct.Struct("<8sIII")
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ChangeNote:
    """Keys that changed in a backend since the previous note."""

    sequence: int
    """One more than the previous note. A gap means that some changes are in no note."""
    session: str
    """Identifies the trainer's process. The first note of a session reports that any row may have
    changed."""
    lineage: str
    """Identifies the filter of existing keys. It changes when the filter was rebuilt; see `NotesBase`."""
    run: str
    step: int
    published: float
    """Time of publication, in seconds since 1970."""
    changed: BloomFilter | None
    """Keys whose rows were written or erased; None if any row may have changed."""
    num_changed: int
    new: Keys
    """Keys that were not in the filter of existing keys before this note."""
    erased: Keys
    """Keys that no longer have a row."""

    def to_bytes(self) -> bytes:
        changed = b"" if self.changed is None else self.changed.to_bytes()
        about = {
            "kind": "note",
            "sequence": self.sequence,
            "session": self.session,
            "lineage": self.lineage,
            "run": self.run,
            "step": self.step,
            "published": self.published,
            "num_changed": self.num_changed,
        }
        return _pack(about, [changed, _as_bytes(self.new), _as_bytes(self.erased)])

    @classmethod
    def from_bytes(cls, data: bytes, place: str) -> ChangeNote:
        """Decodes a note.

        Args:
            data: Bytes of the note.
            place: Location of the notes, for messages.

        Raises:
            CorruptDataError: The bytes are damaged, or not a note.
            VersionError: Another version of sparring wrote them.
        """
        about, parts = _unpack(data, "note", place)
        try:
            changed, new, erased = parts
            return cls(
                int(about["sequence"]),
                str(about["session"]),
                str(about["lineage"]),
                str(about["run"]),
                int(about["step"]),
                float(about["published"]),
                BloomFilter.from_bytes(changed) if changed else None,
                int(about["num_changed"]),
                np.frombuffer(new, "<i8").astype(np.int64),
                np.frombuffer(erased, "<i8").astype(np.int64),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged_error(place, str(error)) from error


@dataclass(frozen=True, slots=True)
class NotesBase:
    """The table and the filter of its existing keys, from which a reader starts."""

    sequence: int
    """Number of the last note whose new keys are certainly in the filter; the reader applies later
    ones."""
    session: str
    lineage: str
    table: TableConfig
    existing: GrowingBloomFilter

    def to_bytes(self) -> bytes:
        table = self.table
        about = {
            "kind": "base",
            "sequence": self.sequence,
            "session": self.session,
            "lineage": self.lineage,
            "planned_keys": self.existing.planned_keys,
            "rate": self.existing.false_positive_rate,
            "table": {
                "name": table.name,
                "dim": table.dim,
                "dtype": table.dtype,
                "initializer": parse_initializer(table.initializer).as_dict(),
                "seed": table.seed,
            },
        }
        return _pack(about, self.existing.to_parts())

    @classmethod
    def from_bytes(cls, data: bytes, place: str) -> NotesBase:
        """Decodes a base; arguments and errors as for `ChangeNote.from_bytes`."""
        about, parts = _unpack(data, "base", place)
        try:
            existing = GrowingBloomFilter.from_parts(
                int(about["planned_keys"]), float(about["rate"]), parts
            )
            table = TableConfig(**about["table"])
            return cls(
                int(about["sequence"]),
                str(about["session"]),
                str(about["lineage"]),
                table,
                existing,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged_error(place, str(error)) from error


def _as_bytes(keys: Keys) -> bytes:
    return np.ascontiguousarray(keys, "<i8").tobytes()


def _pack(about: dict[str, Any], parts: Sequence[bytes]) -> bytes:
    head = json.dumps({**about, "sizes": [len(each) for each in parts]}).encode()
    body = b"".join([head, *parts])
    return _HEAD.pack(_MAGIC, _FORMAT, zlib.crc32(body), len(head)) + body


def _unpack(data: bytes, kind: str, place: str) -> tuple[dict[str, Any], list[bytes]]:
    if len(data) < _HEAD.size or data[:8] != _MAGIC:
        raise _damaged_error(
            place, f"its {len(data)} bytes do not begin with the header of a {kind}"
        )
    _, version, checksum, head_bytes = _HEAD.unpack_from(data)
    if version != _FORMAT:
        raise VersionError(
            f"change notes at {place}: the {kind} has format {version}, but this version of "
            f"sparring-tiered reads format {_FORMAT}; install the version of the trainer"
        )
    body = data[_HEAD.size :]
    if zlib.crc32(body) != checksum:
        raise _damaged_error(place, f"the checksum of the {kind} is wrong")
    try:
        about = json.loads(body[:head_bytes])
        if about["kind"] != kind:
            raise InvalidArgumentError(f"found a {about['kind']}, expected a {kind}")
        parts, begin = [], head_bytes
        for size in about["sizes"]:
            parts.append(body[begin : begin + size])
            begin += size
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged_error(place, str(error)) from error
    return about, parts


def _damaged_error(place: str, reason: str) -> CorruptDataError:
    return CorruptDataError(
        f"reading change notes at {place} failed: {reason}; remove other files from that "
        "location, or set another one in the trainer"
    )
