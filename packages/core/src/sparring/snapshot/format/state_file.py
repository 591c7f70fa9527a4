"""State as a file: arrays as tensors, values as JSON among the header's texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError
from sparring.snapshot.file_errors import writing
from sparring.snapshot.format.description import JSON
from sparring.snapshot.format.limits import STATE_HEADER_BYTES
from sparring.snapshot.format.tensors import DTYPE_CODES, Header, Tensor, encode_header
from sparring.snapshot.place.place import WriteFile

__all__ = ["SnapshotState", "state_values", "write_state_file"]

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


def state_values(header: Header) -> JSON:
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
