"""Data files of a snapshot in the safetensors format: their header, and writers of rows and of state.

    ┌────────────┬──────────────────────────────┬───────────────────────────────┐
    │ n (8 bytes)│ header: n bytes of JSON      │ data: the tensors, without gap│
    └────────────┴──────────────────────────────┴───────────────────────────────┘

The safetensors library reads whole files, or maps them, and follows links in paths. Files of a snapshot
are streamed in bounded memory and are untrusted, so this module reads and writes the header itself.
Tests read the files with the library.

Rows and erased keys are written segment by segment:

    ┌────────┬──────────────────────┬──────────────────────┬───
    │ header │ keys.0 scores.0 rows.0│ keys.1 scores.1 rows.1│ …
    └────────┴──────────────────────┴──────────────────────┴───

The space for the header is reserved until all segments are known. In a file of rows that were written
ahead, a segment contains fewer partitions than the file. Metadata in the header lists the partitions of
each segment, so that a reader of some partitions can skip the other segments; a reader that ignores it
reads all segments. A file of state contains arrays as tensors, and the values as JSON in the header's
metadata.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage.results import Keys, Rows, Scores
from sparring.errors import InvalidArgumentError
from sparring.snapshot.format.manifest import (
    JSON,
    STATE_HEADER_BYTES,
    FileHashes,
    reject_repeated_keys,
)
from sparring.snapshot.place.place import WriteFile, writing

__all__ = [
    "DTYPE_CODES",
    "DataFile",
    "Header",
    "Segment",
    "SnapshotState",
    "Tensor",
    "decode_header",
    "decode_partitions",
    "decode_dtype",
    "encode_header",
    "decode_state_values",
    "write_state_file",
]

DTYPE_CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}
"""NumPy name of a dtype → its safetensors name."""

_NAMES = {code: name for name, code in DTYPE_CODES.items()}
_MAX_DIMENSIONS = 32


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file.

    Args:
        name: Name within the file.
        code: Dtype, by its safetensors name.
        shape: Shape of the tensor.
        begin: Offset of its bytes from the end of the header.
    """

    name: str
    code: str
    shape: tuple[int, ...]
    begin: int

    @property
    def end(self) -> int:
        return self.begin + math.prod(self.shape) * decode_dtype(self.code).itemsize


@dataclass(frozen=True, slots=True)
class Header:
    """Tensors, in the order of their bytes, and the metadata of the file."""

    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, str]


def decode_dtype(code: str) -> np.dtype[Any]:
    """Returns the little-endian NumPy dtype with the safetensors name `code`.

    Args:
        code: name of the dtype in safetensors, such as ``F32``.
    """
    if code == "BF16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(_NAMES[code])


def encode_header(
    tensors: Sequence[Tensor], metadata: Mapping[str, str] | None = None, reserved: int = 0
) -> bytes:
    """Returns the bytes before the data: length, JSON, and spaces up to `reserved` bytes.

    Args:
        tensors: the arrays in the file.
        metadata: metadata of the file.
        reserved: number of bytes; 0 pads to a multiple of 64 bytes.

    Raises:
        ValueError: `reserved` is too small.
    """
    described: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for tensor in tensors:
        described[tensor.name] = {
            "dtype": tensor.code,
            "shape": list(tensor.shape),
            "data_offsets": [tensor.begin, tensor.end],
        }
    text = json.dumps(described, separators=(",", ":")).encode()
    total = reserved or -(-(8 + len(text)) // 64) * 64
    if 8 + len(text) > total:
        raise ValueError(f"a header of {len(text)} bytes does not fit into {reserved} bytes")
    return (total - 8).to_bytes(8, "little") + text.ljust(total - 8)


def decode_header(text: bytes, data_bytes: int) -> Header:
    """Decodes and checks a header.

    Args:
        text: JSON text, without the length before it.
        data_bytes: Number of bytes after the header; the tensors must fill them exactly.

    Raises:
        ValueError: The text is not a valid header of such a file; the message contains the reason.
    """
    described = _parse(text)
    metadata = described.pop("__metadata__", {})
    if not _is_string_mapping(metadata):
        raise ValueError("__metadata__ must map strings to strings")
    tensors = sorted(
        (_tensor(name, value) for name, value in described.items()),
        key=lambda tensor: (tensor.begin, tensor.end),
    )
    end = 0
    for tensor in tensors:
        if tensor.begin != end:
            raise ValueError(
                f"tensor {tensor.name!r} begins at offset {tensor.begin}, expected {end}"
            )
        end = tensor.end
    if end != data_bytes:
        raise ValueError(
            f"the tensors have {end} bytes, but the file has {data_bytes} bytes of data"
        )
    return Header(tuple(tensors), metadata)


def _parse(text: bytes) -> dict[str, Any]:
    try:
        described = json.loads(text.decode(), object_pairs_hook=reject_repeated_keys)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if not isinstance(described, dict):
        raise ValueError("the header is not a JSON object")
    return described


def _is_string_mapping(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _tensor(name: str, value: object) -> Tensor:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"tensor {name!r} must have exactly dtype, shape and data_offsets")
    code, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(code, str) or code not in _NAMES:
        raise ValueError(f"tensor {name!r} has the unknown dtype {code!r}")
    if not _are_counts(shape) or len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"tensor {name!r} has an invalid shape")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise ValueError(f"tensor {name!r} has invalid data_offsets")
    tensor = Tensor(name, code, tuple(shape), offsets[0])
    if tensor.end != offsets[1]:
        raise ValueError(
            f"tensor {name!r} of shape {shape} and dtype {code} cannot have "
            f"{offsets[1] - offsets[0]} bytes"
        )
    return tensor


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(
        isinstance(each, int) and not isinstance(each, bool) and 0 <= each < 2**62
        for each in values
    )


_PARTITIONS = "partitions"
"""Name of the metadata with the partitions of each segment: ``begin-end``, separated by spaces."""

_TEXT = re.compile(r"\d{1,4}-\d{1,4}( \d{1,4}-\d{1,4})*\Z", re.ASCII)


def decode_partitions(
    header: Header, num_segments: int, whole: tuple[int, int]
) -> list[tuple[int, int]]:
    """Returns the range of partitions of each segment.

    Args:
        header: Header of the file.
        num_segments: Number of segments in the file.
        whole: Range of the file, which contains all ranges of segments.

    Raises:
        ValueError: The metadata is malformed or does not match the segments.
    """
    text = header.metadata.get(_PARTITIONS)
    if text is None:
        return [whole] * num_segments
    if not _TEXT.match(text):
        raise ValueError("the metadata with the partitions of its segments is malformed")
    ranges = [
        (int(begin), int(end)) for begin, end in (each.split("-") for each in text.split(" "))
    ]
    if len(ranges) != num_segments:
        raise ValueError(
            f"its metadata lists the partitions of {len(ranges)} segments, but it has {num_segments}"
        )
    for begin, end in ranges:
        if not whole[0] <= begin < end <= whole[1]:
            raise ValueError(
                f"a segment has partitions {begin} to {end}, outside of the file's partitions "
                f"{whole[0]} to {whole[1]}"
            )
    return ranges


_RESERVED_BYTES = 32 << 10
_MAX_SEGMENTS = 100
"""Maximum number of segments whose descriptions fit into the reserved header. A segment needs three
descriptions of tensors, of at most 100 bytes each, and 10 bytes for its partitions."""


class Segment:
    """Rows, or erased keys, that are stored together in a file.

    Args:
        keys: ``(n,)`` int64.
        scores: ``(n,)`` uint64; None if the table has no scores.
        rows: ``(n, width)``; None for erased keys.
    """

    __slots__ = ("arrays", "num_keys")

    def __init__(self, keys: Keys, scores: Scores | None, rows: Rows | None) -> None:
        self.num_keys = len(keys)
        named = (("keys", keys), ("scores", scores), ("rows", rows))
        self.arrays = tuple((name, array) for name, array in named if array is not None)


class DataFile:
    """Writes a file of rows or erased keys, segment by segment.

    Args:
        url: URL of the snapshot, for messages.
        name: Name of the file.
        file: New, empty file.
        partitions: Half-open range of the partitions of its keys.
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
        """Whether the header has no space for another segment."""
        return self._num_segments == _MAX_SEGMENTS

    def describe(self, segment: Segment, partitions: tuple[int, int] | None = None) -> None:
        """Adds `segment` to the header as the next segment. `append` writes it, on another thread.

        Args:
            segment: Next segment.
            partitions: Range of the partitions of its keys; None for the range of the file.
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
            SnapshotIOError: The file system failed.
        """
        with writing(self._url, self.name, self._file.size_bytes):
            if not self._file.size_bytes:
                self._file.append([memoryview(bytes(_RESERVED_BYTES))])
            self._file.append(_bytes_of(array) for _, array in segment.arrays)

    def write_single(self, segment: Segment) -> None:
        """Writes the final header and the only segment of this file.

        Raises:
            SnapshotIOError: The file system failed.
        """
        self.describe(segment)
        with writing(self._url, self.name):
            self._file.append([memoryview(encode_header(self._tensors))])
            self._file.append(_bytes_of(array) for _, array in segment.arrays)

    def seal(self, pause: Callable[[], None], *, is_alone: bool = False) -> FileHashes:
        """Writes the header, makes the file durable, and closes it.

        Args:
            pause: Called after each piece of work.
            is_alone: Whether `write_single` has already written the header.

        Returns:
            The hashes of the file.

        Raises:
            SnapshotIOError: The file system failed.
        """
        with writing(self._url, self.name, self._file.size_bytes), self._file:
            if not is_alone:
                header = encode_header(self._tensors, self._metadata(), _RESERVED_BYTES)
                self._file.rewrite(header)
            return self._file.seal(pause)

    def close(self) -> None:
        """Closes the file without sealing it."""
        self._file.close()

    def _metadata(self) -> dict[str, str]:
        if all(each == self.partitions for each in self._partitions):
            return {}
        return {_PARTITIONS: " ".join(f"{begin}-{end}" for begin, end in self._partitions)}


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    # As bytes, because memoryview does not support bfloat16.
    return array.reshape(-1).view(np.uint8).data


_PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """State of one rank, as passed to `SnapshotWriter.write_state`.

    Args:
        values: JSON values.
        arrays: Name → array.
    """

    values: JSON
    arrays: Mapping[str, npt.NDArray[Any]]


def write_state_file(
    url: str,
    state: str,
    name: str,
    file: WriteFile,
    values: str,
    arrays: Mapping[str, npt.NDArray[Any]],
) -> None:
    """Writes a complete file of state, without sealing it.

    Args:
        url: URL of the snapshot, for messages.
        state: Name of the state, for messages.
        name: Name of the file.
        file: New, empty file.
        values: Values of the state, as JSON text.
        arrays: Arrays of the state.

    Raises:
        InvalidArgumentError: An array cannot be saved exactly, or the values are too large.
        SnapshotIOError: The file system failed.
    """
    little = {key: _little_endian(state, key, array) for key, array in arrays.items()}
    tensors = []
    begin = 0
    # Widest elements first, so that each array begins at a multiple of its element size.
    for key in sorted(little, key=lambda each: (-little[each].dtype.itemsize, each)):
        array = little[key]
        tensors.append(Tensor(key, DTYPE_CODES[array.dtype.name], array.shape, begin))
        begin = tensors[-1].end
    header = encode_header(tensors, {"values": values})
    if len(header) > STATE_HEADER_BYTES:
        raise InvalidArgumentError(
            f"state {state!r}: its values and names have {len(header)} bytes, the maximum is "
            f"{STATE_HEADER_BYTES}; pass numbers as arrays"
        )
    with writing(url, name):
        file.append([memoryview(header)])
    for tensor in tensors:
        data = np.ascontiguousarray(little[tensor.name]).reshape(-1).view(np.uint8).data
        for at in range(0, len(data), _PIECE_BYTES):
            with writing(url, name, file.size_bytes):
                file.append([data[at : at + _PIECE_BYTES]])


def decode_state_values(header: Header) -> JSON:
    """Returns the values in the header of a file of state.

    Raises:
        ValueError: The header has no values, or they are not valid JSON.
    """
    if set(header.metadata) != {"values"}:
        raise ValueError("the metadata of its header must contain only 'values'")
    try:
        return json.loads(header.metadata["values"])
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def _little_endian(state: str, key: object, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if not isinstance(key, str) or key == "__metadata__":
        raise InvalidArgumentError(
            f"state {state!r}: the name of an array must be a string other than '__metadata__', found "
            f"{key!r}; rename it"
        )
    if array.dtype.name not in DTYPE_CODES:
        raise InvalidArgumentError(
            f"state {state!r}: array {key!r} has the unsupported dtype {array.dtype}; convert it to "
            f"one of {', '.join(DTYPE_CODES)}"
        )
    return array.astype(array.dtype.newbyteorder("<"), copy=False)
