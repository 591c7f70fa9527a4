"""Verified reads of a data file: returns only bytes of blocks whose hashes match the manifest."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.storage.results import Keys, ScanChunk
from sparring.snapshot.format.data_file import (
    DTYPE_CODES,
    Header,
    Tensor,
    decode_header,
    decode_partitions,
)
from sparring.snapshot.format.manifest import (
    BLOCK_BYTES,
    BLOCK_DIGITS,
    HEADER_BYTES,
    SEGMENT_BYTES,
    FileEntry,
    TableDescription,
    block_hash,
)
from sparring.snapshot.place.place import ReadFile, ReadFolder, damaged_error, reading

__all__ = ["BlockReader", "read_segments"]

Bytes = npt.NDArray[np.uint8]

_MAX_BUFFERS = 4


def _count_references(arrays: list[Bytes], place: int) -> int:
    return sys.getrefcount(arrays[place])


# Reference count, in this version of Python, of an array that is referenced only by a list.
_UNUSED_REFERENCES = _count_references([np.empty(0, np.uint8)], 0)


class _Buffers:
    """Reusable memory for reads. New memory costs more than reading into it, because each page faults."""

    def __init__(self) -> None:
        self._buffers: list[Bytes] = []

    def take(self, size_bytes: int) -> Bytes:
        """Returns memory that no other array is a view of."""
        for place in range(len(self._buffers)):
            # A view keeps a reference to its array.
            if _count_references(self._buffers, place) == _UNUSED_REFERENCES:
                if len(self._buffers[place]) < size_bytes:
                    self._buffers[place] = np.empty(size_bytes, np.uint8)
                return self._buffers[place][:size_bytes]
        made: Bytes = np.empty(size_bytes, np.uint8)
        if len(self._buffers) < _MAX_BUFFERS:
            self._buffers.append(made)
        return made[:]


class BlockReader:
    """Reads one data file, and verifies each block that it reads.

    Args:
        url: URL of the snapshot, for messages.
        folder: Folder of the snapshot.
        entry: Manifest entry of the file.

    Raises:
        SnapshotDamagedError: The file is missing, is not a regular file, or has the wrong size.
    """

    def __init__(self, url: str, folder: ReadFolder, entry: FileEntry) -> None:
        self.url = url
        self.entry = entry
        with reading(url, entry.name):
            self._file: ReadFile = folder.open(entry.name)
        if self._file.size_bytes != entry.size_bytes:
            found = self._file.size_bytes
            self.close()
            raise damaged_error(
                url,
                entry.name,
                min(found, entry.size_bytes),
                f"it has {found:,} bytes, expected {entry.size_bytes:,} according to manifest.json",
            )
        # The last block of the previous read, because the next read usually begins in it.
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
        """Returns the verified bytes of a range, in memory that is reused after the array is released.

        Raises:
            SnapshotDamagedError: A block of the range is damaged.
            SnapshotIOError: The file system failed.
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
        """Returns the file's header and the offset of its data.

        Raises:
            SnapshotDamagedError: It is not a safetensors file, or its header has more than `most_bytes`
                bytes.
        """
        size = self.entry.size_bytes
        if size < 8:
            raise self.damaged_error(0, f"{size} bytes are too few for a safetensors file")
        length = int(self.read(0, 8).view("<u8")[0])
        if length > min(most_bytes, size - 8):
            raise self.damaged_error(
                0,
                f"its header has {length:,} bytes, expected at most {min(most_bytes, size - 8):,}",
            )
        text = self.read(8, 8 + length).tobytes()
        try:
            return decode_header(text, size - 8 - length), 8 + length
        except ValueError as error:
            raise self.damaged_error(8, str(error)) from error

    def damaged_error(self, offset: int, reason: str) -> Exception:
        """Creates the error for damage in this file."""
        return damaged_error(self.url, self.entry.name, offset, reason)

    def _check(self, block: int, data: Bytes) -> None:
        found = block_hash(data.data)
        expected = self.entry.blocks[block * BLOCK_DIGITS : (block + 1) * BLOCK_DIGITS]
        if found != expected:
            raise self.damaged_error(
                block * BLOCK_BYTES,
                f"the block of {len(data):,} bytes has the hash {found}, expected {expected} according "
                "to manifest.json",
            )


Range = tuple[int, int]
"""Half-open range of partitions."""

_Placed = tuple[tuple[Tensor, ...], Range]
"""The tensors of a segment, and the partitions of its keys."""


def read_segments(
    url: str,
    folder: ReadFolder,
    entry: FileEntry,
    table: TableDescription,
    wanted: npt.NDArray[np.bool_] | None = None,
    every: int = 1,
) -> Iterator[ScanChunk]:
    """Yields the segments of a file, each verified before it is yielded.

    Args:
        url: URL of the snapshot, for messages.
        folder: Folder of the snapshot.
        entry: Manifest entry of a file of kind `rows` or `erased`. Rows have the columns of the file.
            For erased keys, rows have no columns and scores are 0.
        table: Description of the table.
        wanted: ``(4096,)``, True for each requested partition. Segments without requested partitions
            are not read. None reads all segments.
        every: Reads only every n-th of these segments, for a sample.

    Raises:
        SnapshotDamagedError: The file is damaged, or does not fit the table.
        SnapshotIOError: The file system failed.
    """
    config = table.config if entry.block is None else entry.block.table_of(table.config)
    names = ["keys"]
    shapes: dict[str, tuple[int, ...]] = {"keys": (), "scores": (), "rows": (config.width,)}
    codes = {"keys": "I64", "scores": "U64", "rows": DTYPE_CODES[config.dtype]}
    if entry.kind == "rows":
        names = ["keys", *(["scores"] if table.has_scores else []), "rows"]
    with BlockReader(url, folder, entry) as reader:
        header, data_begin = reader.header(HEADER_BYTES)
        segments = _segments(reader, header, names)
        counts = [segment[0].shape[0] if segment[0].shape else 0 for segment in segments]
        for segment, count in zip(segments, counts, strict=True):
            for tensor, name in zip(segment, names, strict=True):
                if (tensor.code, tensor.shape) != (codes[name], (count, *shapes[name])):
                    raise reader.damaged_error(
                        8,
                        f"tensor {tensor.name!r} is {tensor.code} {tensor.shape}, expected "
                        f"{codes[name]} {(count, *shapes[name])} for table {table.name!r}",
                    )
            if segment[-1].end - segment[0].begin > SEGMENT_BYTES:
                raise reader.damaged_error(8, f"a segment has more than {SEGMENT_BYTES:,} bytes")
        if sum(counts) != entry.num_keys:
            raise reader.damaged_error(
                8,
                f"it has {sum(counts):,} keys, expected {entry.num_keys:,} according to manifest.json",
            )
        try:
            ranges = decode_partitions(header, len(segments), entry.partitions)
        except ValueError as error:
            raise reader.damaged_error(8, str(error)) from error
        placed = [
            (segment, (begin, end))
            for segment, (begin, end) in zip(segments, ranges, strict=True)
            if wanted is None or wanted[begin:end].any()
        ]
        yield from _chunks(reader, placed[::every], data_begin, config.numpy_dtype)


def _segments(reader: BlockReader, header: Header, names: list[str]) -> list[tuple[Tensor, ...]]:
    tensors, size = header.tensors, len(names)
    for place, tensor in enumerate(tensors):
        expected = f"{names[place % size]}.{place // size}"
        if tensor.name != expected:
            raise reader.damaged_error(8, f"it has tensor {tensor.name!r}, expected {expected!r}")
    if len(tensors) % size:
        raise reader.damaged_error(
            8, f"it has {len(tensors)} tensors, expected {size} tensors per segment"
        )
    return [tensors[begin : begin + size] for begin in range(0, len(tensors), size)]


def _chunks(
    reader: BlockReader, segments: list[_Placed], data_begin: int, dtype: np.dtype[Any]
) -> Iterator[ScanChunk]:
    """Yields one chunk per segment."""
    for segment, partitions in segments:
        data = reader.read(data_begin + segment[0].begin, data_begin + segment[-1].end)
        chunk = _chunk(reader, (segment, partitions), data, data_begin, dtype)
        # A buffer that is still referenced here could not be reused.
        del data
        yield chunk
        del chunk


def _chunk(
    reader: BlockReader,
    placed: _Placed,
    data: npt.NDArray[np.uint8],
    data_begin: int,
    dtype: np.dtype[Any],
) -> ScanChunk:
    segment, partitions = placed
    begin = segment[0].begin
    arrays: dict[str, npt.NDArray[Any]] = {}
    for tensor in segment:
        part = data[tensor.begin - begin : tensor.end - begin]
        name = tensor.name.partition(".")[0]
        element = dtype if name == "rows" else np.dtype(np.uint64 if name == "scores" else np.int64)
        # Segments of our writer are aligned; unaligned ones of other writers are copied.
        arrays[name] = np.require(part.view(element), requirements="A").reshape(tensor.shape)
    keys: Keys = arrays["keys"]
    _check_partitions(reader, keys, data_begin + begin, partitions)
    rows = arrays.get("rows")
    scores = arrays.get("scores")
    return ScanChunk(
        keys,
        np.empty((len(keys), 0), dtype) if rows is None else rows,
        np.zeros(len(keys), np.uint64) if scores is None else scores,
    )


def _check_partitions(reader: BlockReader, keys: Keys, offset: int, expected: Range) -> None:
    low, high = expected
    if not len(keys) or (low, high) == (0, 4096):
        return
    partitions = _native.partition(keys)
    if int(partitions.min()) < low or int(partitions.max()) >= high:
        raise reader.damaged_error(
            offset, f"it has keys outside of its partitions {low} to {high - 1}"
        )
