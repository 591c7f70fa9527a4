"""Reads the rows, or the erased keys, of one data file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.results import Keys, ScanChunk
from sparring.snapshot.format.blocks import BlockReader
from sparring.snapshot.format.description import TableDescription
from sparring.snapshot.format.limits import HEADER_BYTES, SEGMENT_BYTES
from sparring.snapshot.format.manifest import FileEntry
from sparring.snapshot.format.partition_index import decode_partitions
from sparring.snapshot.format.tensors import DTYPE_CODES, Header, Tensor
from sparring.snapshot.place.place import ReadFolder

__all__ = ["read_segments"]


Range = tuple[int, int]
"""Partitions, half-open."""

_Placed = tuple[tuple[Tensor, ...], Range]
"""The tensors of a segment, and the partitions of its keys."""


def read_segments(
    url: str,
    folder: ReadFolder,
    entry: FileEntry,
    table: TableDescription,
    wanted: npt.NDArray[np.bool_] | None = None,
) -> Iterator[ScanChunk]:
    """The segments of a file, each verified before it is given.

    Args:
        url: of the snapshot, for messages.
        folder: of the snapshot.
        entry: of kind `rows` or `erased`; for erased keys rows have no width, and scores are 0.
        table: whose rows they are.
        wanted: ``(4096,)``: segments that hold none of these partitions are not read; None: all.

    Raises:
        SnapshotDamagedError: the file is damaged, or does not fit the table.
        SnapshotIOError: the file system failed.
    """
    config = table.config
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
                    raise reader.damaged(
                        8,
                        f"tensor {tensor.name!r} is {tensor.code} {tensor.shape}, table "
                        f"{table.name!r} needs {codes[name]} {(count, *shapes[name])}",
                    )
            if segment[-1].end - segment[0].begin > SEGMENT_BYTES:
                raise reader.damaged(8, f"a segment has more than {SEGMENT_BYTES:,} bytes")
        if sum(counts) != entry.num_keys:
            raise reader.damaged(
                8, f"it has {sum(counts):,} keys, manifest.json says {entry.num_keys:,}"
            )
        try:
            ranges = decode_partitions(header, len(segments), entry.partitions)
        except ValueError as error:
            raise reader.damaged(8, str(error)) from error
        placed = [
            (segment, (begin, end))
            for segment, (begin, end) in zip(segments, ranges, strict=True)
            if wanted is None or wanted[begin:end].any()
        ]
        yield from _chunks(reader, placed, data_begin, config.numpy_dtype)


def _segments(reader: BlockReader, header: Header, names: list[str]) -> list[tuple[Tensor, ...]]:
    tensors, size = header.tensors, len(names)
    for place, tensor in enumerate(tensors):
        expected = f"{names[place % size]}.{place // size}"
        if tensor.name != expected:
            raise reader.damaged(8, f"tensor {tensor.name!r} is where {expected!r} must be")
    if len(tensors) % size:
        raise reader.damaged(8, f"{len(tensors)} tensors are not {size} for each segment")
    return [tensors[begin : begin + size] for begin in range(0, len(tensors), size)]


def _chunks(
    reader: BlockReader,
    segments: list[_Placed],
    data_begin: int,
    dtype: np.dtype[Any],
) -> Iterator[ScanChunk]:
    """One segment after the other."""
    for segment, partitions in segments:
        data = reader.read(data_begin + segment[0].begin, data_begin + segment[-1].end)
        chunk = _chunk(reader, (segment, partitions), data, data_begin, dtype)
        # What is held here cannot be read into.
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
        # Aligned as our writer makes them; other writers' are copied.
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
        raise reader.damaged(offset, f"it has keys beyond its partitions {low} to {high - 1}")
