"""Verified reads of a snapshot's file: only bytes of blocks with the right hash are returned."""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt

from sparring.snapshot.file_errors import damaged, reading
from sparring.snapshot.format.hashes import BLOCK_DIGITS, block_hash
from sparring.snapshot.format.limits import BLOCK_BYTES
from sparring.snapshot.format.manifest import FileEntry
from sparring.snapshot.format.tensors import Header, decode_header
from sparring.snapshot.place.place import ReadFile, ReadFolder

__all__ = ["BlockReader"]

Bytes = npt.NDArray[np.uint8]

_MOST_BUFFERS = 4


def _references(arrays: list[Bytes], place: int) -> int:
    return sys.getrefcount(arrays[place])


# What this Python counts for an array that only a list holds.
_REFERENCES_OF_NOBODY = _references([np.empty(0, np.uint8)], 0)


class _Buffers:
    """Memory for reads. New memory costs more than reading into it: each page is a fault."""

    def __init__(self) -> None:
        self._buffers: list[Bytes] = []

    def take(self, size_bytes: int) -> Bytes:
        """Memory that no array is a view of."""
        for place in range(len(self._buffers)):
            # A view holds the array that it is of.
            if _references(self._buffers, place) == _REFERENCES_OF_NOBODY:
                if len(self._buffers[place]) < size_bytes:
                    self._buffers[place] = np.empty(size_bytes, np.uint8)
                return self._buffers[place][:size_bytes]
        made: Bytes = np.empty(size_bytes, np.uint8)
        if len(self._buffers) < _MOST_BUFFERS:
            self._buffers.append(made)
        return made[:]


class BlockReader:
    """One data file, open.

    Args:
        url: of the snapshot, for messages.
        folder: of the snapshot.
        entry: what manifest.json says of the file.

    Raises:
        SnapshotDamagedError: the file is missing, no regular file, or of another size.
    """

    def __init__(self, url: str, folder: ReadFolder, entry: FileEntry) -> None:
        self.url = url
        self.entry = entry
        with reading(url, entry.name):
            self._file: ReadFile = folder.open(entry.name)
        if self._file.size_bytes != entry.size_bytes:
            found = self._file.size_bytes
            self.close()
            raise damaged(
                url,
                entry.name,
                min(found, entry.size_bytes),
                f"it has {found:,} bytes, manifest.json says {entry.size_bytes:,}",
            )
        # The block that the last read ended in: the next one mostly begins there.
        self._kept_block = -1
        self._kept: Bytes = np.empty(0, np.uint8)
        self._buffers = _Buffers()

    def __enter__(self) -> BlockReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def read(self, begin: int, end: int) -> Bytes:
        """Verified bytes, in memory that is reused once they are released.

        Raises:
            SnapshotDamagedError: a block of theirs is damaged.
            SnapshotIOError: the file system failed.
        """
        first, last = begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)
        start, stop = first * BLOCK_BYTES, min(last * BLOCK_BYTES, self.entry.size_bytes)
        buffer = self._buffers.take(stop - start)
        unread = first
        if self._kept_block == first and last > first:
            # Verified already; only the requested bytes are copied.
            buffer[begin - start : len(self._kept)] = self._kept[begin - start :]
            unread += 1
        offset = unread * BLOCK_BYTES
        if offset < stop:
            with reading(self.url, self.entry.name, offset):
                self._file.read_into(offset, buffer.data[offset - start :])
        for block in range(unread, last):
            self._check(block, buffer[block * BLOCK_BYTES - start :][:BLOCK_BYTES])
        if last > unread:
            self._kept_block = last - 1
            self._kept = buffer[(last - 1) * BLOCK_BYTES - start :]
        return buffer[begin - start : end - start]

    def header(self, most_bytes: int) -> tuple[Header, int]:
        """The file's header, and the offset of its data.

        Raises:
            SnapshotDamagedError: it is no safetensors file, or its header has more than
                `most_bytes`.
        """
        size = self.entry.size_bytes
        if size < 8:
            raise self.damaged(0, f"{size} bytes are too few for a safetensors file")
        length = int(self.read(0, 8).view("<u8")[0])
        if length > min(most_bytes, size - 8):
            raise self.damaged(0, f"its header says that it has {length:,} bytes")
        text = self.read(8, 8 + length).tobytes()
        try:
            return decode_header(text, size - 8 - length), 8 + length
        except ValueError as error:
            raise self.damaged(8, str(error)) from error

    def damaged(self, offset: int, reason: str) -> Exception:
        """The error that this file is damaged."""
        return damaged(self.url, self.entry.name, offset, reason)

    def _check(self, block: int, data: Bytes) -> None:
        found = block_hash(data.data)
        expected = self.entry.blocks[block * BLOCK_DIGITS : (block + 1) * BLOCK_DIGITS]
        if found != expected:
            raise self.damaged(
                block * BLOCK_BYTES,
                f"the block of {len(data):,} bytes there hashes to {found}, manifest.json says "
                f"{expected}",
            )
