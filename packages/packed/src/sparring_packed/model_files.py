"""The file of a model's parameters: named arrays in the safetensors format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.adapter import DTYPE_CODES, Tensor, decode_dtype, decode_header, encode_header
from sparring.errors import InvalidArgumentError

__all__ = ["decode_parameters", "encode_parameters"]

_LEAST_HEADER_BYTES = 256


def encode_parameters(
    arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """Returns a file ``parameters.safetensors`` for `WriteOptions.model`, of at least 256 bytes.

    Args:
        arrays: name → array, in any byte order.
        metadata: metadata of the file.

    Raises:
        InvalidArgumentError: a dtype is not supported.

    Examples:
        >>> import numpy as np
        >>> from sparring_packed import decode_parameters, encode_parameters
        >>> data = encode_parameters({"top.bias": np.zeros(2, np.float32)}, {"framework": "torch"})
        >>> arrays, metadata = decode_parameters(data)
        >>> arrays["top.bias"].tolist(), metadata["framework"]
        ([0.0, 0.0], 'torch')
    """
    tensors, data = [], []
    begin = 0
    # Widest elements first, so that each array begins at a multiple of its element size.
    for name in sorted(arrays, key=lambda each: (-arrays[each].dtype.itemsize, each)):
        array = arrays[name]
        if array.dtype.name not in DTYPE_CODES:
            raise InvalidArgumentError(
                f"parameters: array {name!r} has the unsupported dtype {array.dtype}; convert it "
                f"to one of {', '.join(DTYPE_CODES)}"
            )
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        tensors.append(Tensor(name, DTYPE_CODES[array.dtype.name], array.shape, begin))
        data.append(little.tobytes())
        begin = tensors[-1].end
    header = encode_header(tensors, metadata)
    if len(header) < _LEAST_HEADER_BYTES:
        header = encode_header(tensors, metadata, _LEAST_HEADER_BYTES)
    return b"".join([header, *data])


def decode_parameters(data: bytes) -> tuple[dict[str, npt.NDArray[Any]], Mapping[str, str]]:
    """Returns the arrays and the metadata of `encode_parameters`.

    Args:
        data: bytes of the file. Nothing is executed, and sizes are checked.

    Raises:
        ValueError: the bytes are not such a file; the message contains the reason.
    """
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise ValueError(f"{len(data)} bytes are too few for a safetensors file with this header")
    begin = 8 + length
    header = decode_header(data[8:begin], len(data) - begin)
    arrays = {
        each.name: np.frombuffer(
            data[begin + each.begin : begin + each.end], decode_dtype(each.code)
        ).reshape(each.shape)
        for each in header.tensors
    }
    return arrays, header.metadata
