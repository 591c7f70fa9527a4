"""Reads the data for the first lookups of a newer version before it is used.

A version that was not hashed (``verify="open"``) is not in the page cache, so first lookups are slow.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sparring.contracts import Keys
from sparring.errors import InvalidArgumentError, SparringError
from sparring_packed.manifest import read_manifest

__all__ = ["WarmUp", "WarmUpResult", "warm"]

_IDS_AT_ONCE = 256
_BYTES_AT_ONCE = 1 << 20

# Offsets in a file: length of the header, position of the number of buckets, and length of a bucket.
_HEADER_BYTES, _NUM_BUCKETS_AT, _BUCKET_BYTES = 128, 40, 64


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Options for reading parts of a newer version before it is used.

    Args:
        seconds: maximum duration of the warm-up, 0 to 600.
        ids: returns table → ids that are likely to be requested, the most likely first. It is called if
            there is a newer version. After looking them up, the warm-up reads the files' directories.
    """

    seconds: float
    ids: Callable[[], Mapping[str, Keys]] = dict

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= 600:
            raise InvalidArgumentError(
                f"warm-up: seconds must be above 0 and at most 600, found {self.seconds}"
            )


@dataclass(slots=True)
class WarmUpResult:
    """Counts the ids and bytes that a warm-up has read.

    Args:
        num_ids: number of ids that were looked up.
        directory_bytes: bytes of directories that were read.
        seconds: duration of the warm-up.
        is_complete: whether everything was read in time.
    """

    num_ids: int = 0
    directory_bytes: int = 0
    seconds: float = 0.0
    is_complete: bool = False


class Tables(Protocol):
    """The part of `PackedTables` that this module uses."""

    partitions: tuple[int, int]

    @property
    def tables(self) -> Mapping[str, Any]: ...

    @property
    def snapshot_url(self) -> str: ...

    def find(self, table: str, ids: Keys) -> Any: ...

    def close(self) -> None: ...


def warm(newer: Tables, bases: set[str], wanted: WarmUp) -> WarmUpResult:
    """Reads on a separate thread until the time limit. A slow file system does not block the caller.

    Args:
        newer: the newer version, opened a second time. It is closed after reading.
        bases: hashes of versions that are in use. Their files are not read.
        wanted: options of the warm-up.
    """
    counted, stop = WarmUpResult(), threading.Event()

    def read() -> None:
        try:
            with closing(newer):
                for num_ids, num_bytes in _pieces(newer, bases, wanted):
                    counted.num_ids += num_ids
                    counted.directory_bytes += num_bytes
                    if stop.is_set():
                        return
                counted.is_complete = True
        except (OSError, SparringError):
            # The refresh that follows reports damage.
            return

    begin = time.monotonic()
    thread = threading.Thread(target=read, name="sparring warm-up", daemon=True)
    thread.start()
    thread.join(wanted.seconds)
    stop.set()
    return WarmUpResult(
        counted.num_ids,
        counted.directory_bytes,
        time.monotonic() - begin,
        counted.is_complete,
    )


def _pieces(newer: Tables, bases: set[str], wanted: WarmUp) -> Iterator[tuple[int, int]]:
    """Reads piece by piece, and yields the number of ids and the number of bytes."""
    asked = wanted.ids()
    for table in asked.keys() & newer.tables.keys():
        ids = asked[table]
        for at in range(0, len(ids), _IDS_AT_ONCE):
            piece = ids[at : at + _IDS_AT_ONCE]
            newer.find(table, piece)
            yield len(piece), 0
    for path in _files(newer, bases):
        with path.open("rb", buffering=0) as file:
            header = file.read(_HEADER_BYTES)
            (num_buckets,) = struct.unpack_from("<Q", header, _NUM_BUCKETS_AT)
            left = num_buckets * _BUCKET_BYTES
            while left > 0 and (read := len(file.read(min(left, _BYTES_AT_ONCE)))):
                left -= read
                yield 0, read


def _files(newer: Tables, bases: set[str]) -> Iterator[Path]:
    """Yields the files of the newer version that are not mapped yet."""
    begin, end = newer.partitions
    snapshot = Path(newer.snapshot_url)
    while True:
        manifest = read_manifest(snapshot)
        for each in manifest.files:
            is_mapped = each.kind in ("rows", "erased")
            if is_mapped and each.partitions[0] < end and begin < each.partitions[1]:
                yield snapshot / each.name
        if manifest.base is None or manifest.base.hash in bases:
            return
        snapshot = Path(snapshot).with_name(manifest.base.name)
