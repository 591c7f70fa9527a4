"""Writes a stream of rows into one file per range of partitions, in bounded memory.

Rows arrive in the storage's order, not in the order of partitions. Each chunk is therefore distributed
over one buffer per range. A full buffer becomes a segment of that range's file. Another thread writes
it, while this one continues with a spare buffer. The first rows of a table are collected in one buffer,
because a small table is written as one file. Rows that `SnapshotWriter.write_ahead` writes
share a file, and each segment of this file contains one range.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.storage.results import Keys, Rows, Scores
from sparring.errors import InvalidArgumentError
from sparring.runtime.threads import Threads
from sparring.snapshot.format.data_file import DataFile, Segment
from sparring.snapshot.format.manifest import NUM_PARTITIONS, SEGMENT_BYTES, no_pause

__all__ = ["RowLayout", "RowRouter", "SnapshotOptions", "allocate_returnable"]


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """Sizes of the files of a snapshot and of the buffers for writing them.

    A table of up to `small_bytes` is written as one file. A larger table is split into `num_ranges`
    ranges of partitions, so that a reader of some partitions reads few files.

    Args:
        num_ranges: Number of ranges of partitions, a power of two up to 4,096.
        file_bytes: Size at which a file is closed and its range continues in another file.
        buffer_bytes: Total size of the buffers of all ranges. Each range writes a segment when its
            share, at most 64 MiB, is full.
        small_bytes: Maximum size of a table in one file, at most 64 MiB. Such a table is buffered in
            memory completely.
        pause: Called by each writing thread after about 1 MiB of work. It may sleep to leave the CPU to
            other threads.
        index_keys: Whether a delta gets an index of its changed and erased keys; see
            `sparring.snapshot.changed_keys`.

    Raises:
        InvalidArgumentError: A value is out of range.
    """

    num_ranges: int = 16
    file_bytes: int = 256 << 20
    buffer_bytes: int = 36 << 20
    small_bytes: int = 24 << 20
    pause: Callable[[], None] = no_pause
    index_keys: bool = False

    def __post_init__(self) -> None:
        ranges = self.num_ranges
        if not 1 <= ranges <= NUM_PARTITIONS or ranges & (ranges - 1):
            raise InvalidArgumentError(
                f"snapshot options: num_ranges must be a power of two from 1 to {NUM_PARTITIONS}, found "
                f"{ranges}; choose for example 16"
            )
        for name in ("file_bytes", "buffer_bytes", "small_bytes"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(
                    f"snapshot options: {name} must be at least 1, found {getattr(self, name)}; omit it "
                    "for the default"
                )


_SLICE_ROWS = 65_536
"""Rows that are distributed at a time. This limits the size of the index for a huge chunk."""

_UNIT_ROWS = 64
"""Segments contain a multiple of this many rows, so that the next segment is aligned."""

_SPARE_BUFFERS = 4

CreateFile = Callable[[tuple[int, int]], DataFile]
SealFile = Callable[[DataFile, bool], None]


def allocate_returnable(count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Returns ``(count,)`` zeros in an anonymous mmap, whose memory returns to the system on release.

    Intended for large buffers that are used occasionally. An allocator keeps freed memory per thread,
    which after a few saves is several times the memory of one save.
    """
    if not count:
        return np.empty(0, dtype)
    return np.frombuffer(mmap.mmap(-1, count * dtype.itemsize), dtype)


class RowLayout:
    """Size of the data of one key in the stream.

    Args:
        width: Elements per row; 0 for erased keys.
        dtype: Dtype of rows.
        has_scores: Whether each key has a score.
    """

    __slots__ = ("dtype", "has_scores", "width")

    def __init__(self, width: int, dtype: np.dtype[Any], has_scores: bool) -> None:
        self.width = width
        self.dtype = dtype
        self.has_scores = has_scores

    @property
    def key_bytes(self) -> int:
        """Bytes per key, including its row and its score."""
        return 8 + 8 * self.has_scores + self.width * self.dtype.itemsize

    def max_keys_in(self, size_bytes: int) -> int:
        """Returns the number of keys of a segment of `size_bytes`: at least one, and at most as many as
        readers accept."""
        return max(1, min(size_bytes, SEGMENT_BYTES) // self.key_bytes)


class _Buffer:
    """Collects the rows of one range until they fill a segment."""

    __slots__ = ("capacity", "count", "keys", "rows", "scores")

    def __init__(self, layout: RowLayout, capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        self.keys: Keys = allocate_returnable(capacity, np.dtype(np.int64))
        self.scores: Scores | None = None
        self.rows: Rows | None = None
        if layout.has_scores:
            self.scores = allocate_returnable(capacity, np.dtype(np.uint64))
        if layout.width:
            flat = allocate_returnable(capacity * layout.width, layout.dtype)
            self.rows = flat.reshape(capacity, layout.width)

    def take(self, keys: Keys, rows: Rows | None, scores: Scores | None, order: Keys) -> None:
        """Appends the rows at the positions `order`, which must fit."""
        begin, end = self.count, self.count + len(order)
        # A mode other than `raise` writes into `out` without another copy.
        np.take(keys, order, out=self.keys[begin:end], mode="clip")
        if self.scores is not None and scores is not None:
            np.take(scores, order, out=self.scores[begin:end], mode="clip")
        if self.rows is not None:
            assert rows is not None
            np.take(rows, order, axis=0, out=self.rows[begin:end], mode="clip")
        self.count = end

    @property
    def segment(self) -> Segment:
        keep = slice(0, self.count)
        return Segment(
            self.keys[keep],
            None if self.scores is None else self.scores[keep],
            None if self.rows is None else self.rows[keep],
        )


class RowRouter:
    """Distributes rows over files, and passes complete files to `seal`.

    Args:
        layout: Layout of the stream.
        options: Sizes of files and buffers.
        create: Creates the next file of a range.
        seal: Receives a complete file, and whether it consists of one segment with its final header.
        writer: Thread that writes segments.
        is_shared: Whether all ranges share one file.
    """

    def __init__(
        self,
        layout: RowLayout,
        options: SnapshotOptions,
        create: CreateFile,
        seal: SealFile,
        writer: Threads,
        *,
        is_shared: bool = False,
    ) -> None:
        self._layout = layout
        self._options = options
        self._create = create
        self._seal = seal
        ranges = options.num_ranges
        self._range_partitions = NUM_PARTITIONS // ranges
        self._owners: npt.NDArray[np.int32] = np.repeat(
            np.arange(ranges, dtype=np.int32), self._range_partitions
        )
        self._small: _Buffer | None = _Buffer(layout, layout.max_keys_in(options.small_bytes))
        self._buffers: list[_Buffer] = []
        self._spare: list[_Buffer] = []
        self._writing: deque[tuple[Future[None], _Buffer]] = deque()
        self._writer = writer
        self._is_shared = is_shared
        self._files: list[DataFile | None] = [None] * (1 if is_shared else ranges)

    def add(self, keys: Keys, rows: Rows | None, scores: Scores | None) -> None:
        """Adds rows in any order. The caller may reuse the arrays afterwards.

        Raises:
            SnapshotIOError: The file system failed.
        """
        for begin in range(0, len(keys), _SLICE_ROWS):
            part = slice(begin, begin + _SLICE_ROWS)
            self._add_slice(
                keys[part],
                None if rows is None else rows[part],
                None if scores is None else scores[part],
            )

    def finish(self) -> None:
        """Writes all buffered rows, and passes all files to `seal`.

        Raises:
            SnapshotIOError: The file system failed.
        """
        if self._small is not None:
            if self._small.count:
                file = self._files[0] = self._create((0, NUM_PARTITIONS))
                file.write_single(self._small.segment)
                self._seal(file, True)
                self._files[0] = None
            return
        for place in range(len(self._buffers)):
            if self._buffers[place].count:
                self._flush(place)
        while self._writing:
            self._await_oldest()
        for place, file_of_range in enumerate(self._files):
            if file_of_range is not None:
                self._seal(file_of_range, False)
                self._files[place] = None

    def close(self) -> None:
        """Closes the files that were not passed to `seal`."""
        wait(future for future, _ in self._writing)
        for file in self._files:
            if file is not None:
                file.close()

    def _add_slice(self, keys: Keys, rows: Rows | None, scores: Scores | None) -> None:
        if self._small is not None:
            if self._small.count + len(keys) <= self._small.capacity:
                self._small.take(keys, rows, scores, np.arange(len(keys)))
                return
            waiting, self._small = self._small, None
            self._make_buffers()
            self._distribute(
                waiting.keys[: waiting.count],
                None if waiting.rows is None else waiting.rows[: waiting.count],
                None if waiting.scores is None else waiting.scores[: waiting.count],
            )
        self._distribute(keys, rows, scores)

    def _make_buffers(self) -> None:
        ranges = self._options.num_ranges
        share = self._layout.max_keys_in(self._options.buffer_bytes // (ranges + _SPARE_BUFFERS))
        capacity = share // _UNIT_ROWS * _UNIT_ROWS or share
        self._buffers = [_Buffer(self._layout, capacity) for _ in range(ranges)]
        self._spare = [_Buffer(self._layout, capacity) for _ in range(_SPARE_BUFFERS)]

    def _distribute(self, keys: Keys, rows: Rows | None, scores: Scores | None) -> None:
        order, offsets = _native.route(keys, self._owners, self._options.num_ranges)
        for place in range(len(self._buffers)):
            buffer = self._buffers[place]
            places = order[offsets[place] : offsets[place + 1]]
            while len(places):
                count = min(len(places), buffer.capacity - buffer.count)
                buffer.take(keys, rows, scores, places[:count])
                places = places[count:]
                if buffer.count == buffer.capacity:
                    self._flush(place)
                    buffer = self._buffers[place]

    def _flush(self, place: int) -> None:
        buffer, begin = self._buffers[place], place * self._range_partitions
        partitions = begin, begin + self._range_partitions
        slot = 0 if self._is_shared else place
        file = self._files[slot]
        if file is None:
            whole = (0, NUM_PARTITIONS) if self._is_shared else partitions
            file = self._files[slot] = self._create(whole)
        if not self._spare:
            self._await_oldest()
        segment = buffer.segment
        file.describe(segment, partitions)
        self._writing.append((self._writer.submit(partial(self._append, file, segment)), buffer))
        self._buffers[place] = self._spare.pop()
        if file.is_full or file.data_bytes >= self._options.file_bytes:
            while self._writing:
                self._await_oldest()
            self._seal(file, False)
            self._files[slot] = None

    def _append(self, file: DataFile, segment: Segment) -> None:
        """Writes a segment, on the writer thread."""
        file.append(segment)
        self._options.pause()

    def _await_oldest(self) -> None:
        """Waits until the oldest buffer is written and may be reused."""
        future, buffer = self._writing.popleft()
        future.result()
        buffer.count = 0
        self._spare.append(buffer)
