"""The header of a safetensors file: names, types and offsets of tensors.

    ┌────────────┬──────────────────────────────┬───────────────────────────────┐
    │ n (8 bytes)│ header: n bytes of JSON      │ data: the tensors, without gap│
    └────────────┴──────────────────────────────┴───────────────────────────────┘

The safetensors library reads such files whole, or by memory map, from paths that it follows. Files
here are streamed, in bounded memory, and come from strangers; so the header is written and read
here, and the library is what tests read files with.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["DTYPE_CODES", "Header", "Tensor", "decode_header", "dtype_of_code", "encode_header"]

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
        return self.begin + math.prod(self.shape) * dtype_of_code(self.code).itemsize


@dataclass(frozen=True, slots=True)
class Header:
    """Tensors in the order of their bytes, and the texts that go with them."""

    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, str]


def dtype_of_code(code: str) -> np.dtype[Any]:
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
    described = _parsed(text)
    metadata = described.pop("__metadata__", {})
    if not _is_text_mapping(metadata):
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


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        described = json.loads(text.decode(), object_pairs_hook=_without_repeats)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if not isinstance(described, dict):
        raise ValueError("the header is no JSON object")
    return described


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name is given twice")
    return made


def _is_text_mapping(value: object) -> bool:
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
