"""Files of a snapshot, in the format of safetensors: their header, and writers of rows and of state.

    ┌────────────┬──────────────────────────────┬───────────────────────────────┐
    │ n (8 bytes)│ header: n bytes of JSON      │ data: the tensors, without gap│
    └────────────┴──────────────────────────────┴───────────────────────────────┘

The safetensors library reads such files whole, or by memory map, from paths that it follows. Files
here are streamed, in bounded memory, and come from strangers; so the header is written and read
here, and the library is what tests read files with.

Rows and erased keys are written segment by segment:

    ┌────────┬──────────────────────┬──────────────────────┬───
    │ header │ keys.0 scores.0 rows.0│ keys.1 scores.1 rows.1│ …
    └────────┴──────────────────────┴──────────────────────┴───

The header's room is kept free until all segments are known. In a file of rows that were written
before their turn, segments are of fewer partitions than the file: a text in the header names those of
each, so that a reader of some partitions leaves the others out. A reader that does not know of it reads
all segments. State is arrays as tensors, and values as JSON among the header's texts.
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
"""NumPy's name of a dtype → how safetensors calls it."""

_NAMES = {code: name for name, code in DTYPE_CODES.items()}
_MAX_DIMENSIONS = 32


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file.

    Args:
        name: within the file.
        code: its dtype, as safetensors calls it.
        shape: of the tensor.
        begin: where its bytes begin, counted from the end of the header.
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
    """Tensors in the order of their bytes, and the texts that go with them."""

    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, str]


def decode_dtype(code: str) -> np.dtype[Any]:
    """The NumPy dtype, little-endian, that safetensors calls `code`."""
    if code == "BF16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(_NAMES[code])


def encode_header(
    tensors: Sequence[Tensor], metadata: Mapping[str, str] | None = None, reserved: int = 0
) -> bytes:
    """The bytes before the data: length, JSON, spaces up to `reserved` bytes or a multiple of 64.

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
        raise ValueError(f"a header of {len(text)} bytes does not fit {reserved}")
    return (total - 8).to_bytes(8, "little") + text.ljust(total - 8)


def decode_header(text: bytes, data_bytes: int) -> Header:
    """Decodes and checks a header.

    Args:
        text: the JSON, without the length before it.
        data_bytes: bytes of the file behind the header; the tensors must fill them exactly.

    Raises:
        ValueError: it is no header of such a file; the text says why.
    """
    described = _parse(text)
    metadata = described.pop("__metadata__", {})
    if not _is_string_mapping(metadata):
        raise ValueError("__metadata__ must map texts to texts")
    tensors = sorted(
        (_tensor(name, value) for name, value in described.items()),
        key=lambda tensor: (tensor.begin, tensor.end),
    )
    end = 0
    for tensor in tensors:
        if tensor.begin != end:
            raise ValueError(f"tensor {tensor.name!r} begins at {tensor.begin}, must at {end}")
        end = tensor.end
    if end != data_bytes:
        raise ValueError(f"tensors of {end} bytes in a file with {data_bytes} bytes of data")
    return Header(tuple(tensors), metadata)


def _parse(text: bytes) -> dict[str, Any]:
    try:
        described = json.loads(text.decode(), object_pairs_hook=reject_repeated_keys)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if not isinstance(described, dict):
        raise ValueError("the header is no JSON object")
    return described


def _is_string_mapping(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _tensor(name: str, value: object) -> Tensor:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"tensor {name!r} needs dtype, shape and data_offsets, and no more")
    code, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(code, str) or code not in _NAMES:
        raise ValueError(f"tensor {name!r} has the unknown dtype {code!r}")
    if not _are_counts(shape) or len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"tensor {name!r} has no legal shape")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise ValueError(f"tensor {name!r} has no legal data_offsets")
    tensor = Tensor(name, code, tuple(shape), offsets[0])
    if tensor.end != offsets[1]:
        raise ValueError(
            f"tensor {name!r} of shape {shape} and {code} cannot take {offsets[1] - offsets[0]} bytes"
        )
    return tensor


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(
        isinstance(each, int) and not isinstance(each, bool) and 0 <= each < 2**62
        for each in values
    )


_PARTITIONS = "partitions"
"""The name of the text with the partitions of each segment: ``begin-end``, a space between."""

_TEXT = re.compile(r"\d{1,4}-\d{1,4}( \d{1,4}-\d{1,4})*\Z", re.ASCII)


def decode_partitions(
    header: Header, num_segments: int, whole: tuple[int, int]
) -> list[tuple[int, int]]:
    """The range of each segment.

    Args:
        header: of the file.
        num_segments: in it.
        whole: the range of the file, which contains each of them.

    Raises:
        ValueError: the text is not as it should be.
    """
    text = header.metadata.get(_PARTITIONS)
    if text is None:
        return [whole] * num_segments
    if not _TEXT.match(text):
        raise ValueError("the partitions of its segments cannot be read")
    ranges = [
        (int(begin), int(end)) for begin, end in (each.split("-") for each in text.split(" "))
    ]
    if len(ranges) != num_segments:
        raise ValueError(
            f"it has partitions of {len(ranges)} segments, and {num_segments} segments"
        )
    for begin, end in ranges:
        if not whole[0] <= begin < end <= whole[1]:
            raise ValueError(
                f"a segment of partitions {begin} to {end} in a file of {whole[0]} to {whole[1]}"
            )
    return ranges


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

    def write_single(self, segment: Segment) -> None:
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
        return {_PARTITIONS: " ".join(f"{begin}-{end}" for begin, end in self._partitions)}


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    # As bytes, because a memoryview knows no bfloat16.
    return array.reshape(-1).view(np.uint8).data


_PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """State of one rank, as given to `SnapshotWriter.write_state`.

    Args:
        values: JSON.
        arrays: name → array.
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
    """Writes a whole file of state, unsealed.

    Args:
        url: of the snapshot, for messages.
        state: name of the state, for messages.
        name: of the file.
        file: new and empty.
        values: JSON.
        arrays: of the state.

    Raises:
        InvalidArgumentError: an array cannot be saved exactly, or the values are too long.
        SnapshotIOError: the file system failed.
    """
    little = {key: _little_endian(state, key, array) for key, array in arrays.items()}
    tensors = []
    begin = 0
    # Widest elements first: each array then begins at a multiple of its element.
    for key in sorted(little, key=lambda each: (-little[each].dtype.itemsize, each)):
        array = little[key]
        tensors.append(Tensor(key, DTYPE_CODES[array.dtype.name], array.shape, begin))
        begin = tensors[-1].end
    header = encode_header(tensors, {"values": values})
    if len(header) > STATE_HEADER_BYTES:
        raise InvalidArgumentError(
            f"state {state!r}: its values and names take {len(header)} bytes, at most "
            f"{STATE_HEADER_BYTES} are saved; pass numbers as arrays"
        )
    with writing(url, name):
        file.append([memoryview(header)])
    for tensor in tensors:
        data = np.ascontiguousarray(little[tensor.name]).reshape(-1).view(np.uint8).data
        for at in range(0, len(data), _PIECE_BYTES):
            with writing(url, name, file.size_bytes):
                file.append([data[at : at + _PIECE_BYTES]])


def decode_state_values(header: Header) -> JSON:
    """The values in the header of a file of state.

    Raises:
        ValueError: there are none, or they are no JSON.
    """
    if set(header.metadata) != {"values"}:
        raise ValueError("its header must have 'values', and no other text")
    try:
        return json.loads(header.metadata["values"])
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def _little_endian(state: str, key: object, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if not isinstance(key, str) or key == "__metadata__":
        raise InvalidArgumentError(f"state {state!r}: {key!r} cannot be the name of an array")
    if array.dtype.name not in DTYPE_CODES:
        raise InvalidArgumentError(
            f"state {state!r}: array {key!r} has dtype {array.dtype}, none of "
            f"{', '.join(DTYPE_CODES)}; convert it"
        )
    return array.astype(array.dtype.newbyteorder("<"), copy=False)
