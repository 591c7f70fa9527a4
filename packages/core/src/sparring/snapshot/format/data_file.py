"""Writes one data file of rows or erased keys, segment by segment.

    ┌────────┬──────────────────────┬──────────────────────┬───
    │ header │ keys.0 scores.0 rows.0│ keys.1 scores.1 rows.1│ …
    └────────┴──────────────────────┴──────────────────────┴───

The header's room is kept free until all segments are known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.results import Keys, Rows, Scores
from sparring.snapshot.file_errors import writing
from sparring.snapshot.format.hashes import FileHashes
from sparring.snapshot.format.partition_index import SEGMENT_PARTITIONS, encode_partitions
from sparring.snapshot.format.tensors import DTYPE_CODES, Tensor, encode_header
from sparring.snapshot.place.place import WriteFile

__all__ = ["DataFile", "Segment"]

_RESERVED_BYTES = 32 << 10
_MAX_SEGMENTS = 100
"""Their descriptions fit the room: three tensors of at most 100 bytes each, and 10 bytes for the
partitions."""


class Segment:
    """Rows, or erased keys, that are stored together in a file.

    Args:
        keys: ``(n,)`` int64.
        scores: ``(n,)`` uint64, or None where the table has none.
        rows: ``(n, width)``, or None for erased keys.
    """

    __slots__ = ("arrays", "num_keys")

    def __init__(self, keys: Keys, scores: Scores | None, rows: Rows | None) -> None:
        self.num_keys = len(keys)
        named = (("keys", keys), ("scores", scores), ("rows", rows))
        self.arrays = tuple((name, array) for name, array in named if array is not None)


class DataFile:
    """A file that grows by segments.

    Args:
        url: of the snapshot, for messages.
        name: of the file.
        file: new and empty.
        partitions: that its keys are of.
    """

    def __init__(self, url: str, name: str, file: WriteFile, partitions: tuple[int, int]) -> None:
        self.name = name
        self.partitions = partitions
        self.num_keys = 0
        self._url = url
        self._file = file
        self._tensors: list[Tensor] = []
        self._partitions: list[tuple[int, int]] = []
        self.data_bytes = 0
        self._num_segments = 0

    @property
    def is_full(self) -> bool:
        """Whether the header has no room for another segment."""
        return self._num_segments == _MAX_SEGMENTS

    def describe(self, segment: Segment, partitions: tuple[int, int] | None = None) -> None:
        """Notes that `segment` comes next; `append`, on another thread, writes it.

        Args:
            segment: it.
            partitions: that its keys are of; None: those of the file.
        """
        self._partitions.append(partitions or self.partitions)
        for name, array in segment.arrays:
            tensor = Tensor(
                f"{name}.{self._num_segments}",
                DTYPE_CODES[array.dtype.name],
                array.shape,
                self.data_bytes,
            )
            self._tensors.append(tensor)
            self.data_bytes = tensor.end
        self.num_keys += segment.num_keys
        self._num_segments += 1

    def append(self, segment: Segment) -> None:
        """Writes a segment.

        Raises:
            SnapshotIOError: the file system failed.
        """
        with writing(self._url, self.name, self._file.size_bytes):
            if not self._file.size_bytes:
                self._file.append([memoryview(bytes(_RESERVED_BYTES))])
            self._file.append(_bytes_of(array) for _, array in segment.arrays)

    def write_alone(self, segment: Segment) -> None:
        """Writes the only segment of this file, behind a header that fits.

        Raises:
            SnapshotIOError: the file system failed.
        """
        self.describe(segment)
        with writing(self._url, self.name):
            self._file.append([memoryview(encode_header(self._tensors))])
            self._file.append(_bytes_of(array) for _, array in segment.arrays)

    def seal(self, pause: Callable[[], None], *, is_alone: bool = False) -> FileHashes:
        """Writes the header, and returns when the file is durable; closes it.

        Args:
            pause: called after each piece of the work.
            is_alone: the file has its header already.

        Raises:
            SnapshotIOError: the file system failed.
        """
        with writing(self._url, self.name, self._file.size_bytes), self._file:
            if not is_alone:
                header = encode_header(self._tensors, self._metadata(), _RESERVED_BYTES)
                self._file.rewrite(header)
            return self._file.seal(pause)

    def close(self) -> None:
        """Gives the file up."""
        self._file.close()

    def _metadata(self) -> dict[str, str]:
        if all(each == self.partitions for each in self._partitions):
            return {}
        return {SEGMENT_PARTITIONS: encode_partitions(self._partitions)}


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    # As bytes, because a memoryview knows no bfloat16.
    return array.reshape(-1).view(np.uint8).data
