"""Ids as JAX users hold them: NumPy's int64, exactly what was meant.

JAX cuts integers of 64 bits to 32 without a word, unless ``jax_enable_x64`` is set. So ids stay NumPy's
until they were looked up, and inside `jax.jit` they are two halves: `pack_ids`.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError

__all__ = ["validate_lengths", "pack_ids", "unpack_ids", "validate_ids"]

Ids = npt.NDArray[np.int64]


def validate_ids(given: Any, what: str) -> Ids:
    """`given` as int64, C-contiguous.

    Args:
        given: integers of any shape.
        what: how the message names them, as ``feature 'user'``.

    Raises:
        InvalidArgumentError: they are no integers, or an array of JAX with fewer than 64 bits.
    """
    if isinstance(given, jax.Array) and given.dtype != np.int64:
        raise InvalidArgumentError(
            f"ids of {what} are an array of JAX of {given.dtype}, in which ids of 64 bits are cut to 32 "
            "without a word; give int64 of NumPy, or set jax_enable_x64"
        )
    array = np.asarray(given)
    if not array.size and not isinstance(given, (np.ndarray, jax.Array)):
        array = array.astype(np.int64)  # an empty list
    if array.dtype.kind not in "iu" or array.dtype == np.uint64:
        fix = "give numpy.asarray(ids, numpy.int64) of whole numbers"
        if array.dtype.kind in "SUO":
            fix = "convert strings with sparring.hash_strings(strings), as `sparring serve` does"
        raise InvalidArgumentError(
            f"ids of {what} must be int64, found dtype {array.dtype}; {fix}",
            dtype=str(array.dtype),
        )
    return np.ascontiguousarray(array, np.int64)


def validate_lengths(given: Any, num_ids: int, what: str) -> npt.NDArray[np.int32]:
    """Lengths of bags, ``(b,)``.

    Raises:
        InvalidArgumentError: they are no whole numbers from 0, or add up to another number of ids.
    """
    lengths = validate_ids(given, f"lengths of {what}")
    if lengths.ndim != 1 or (lengths < 0).any():
        found = f"shape {lengths.shape}" if lengths.ndim != 1 else f"{lengths.min()}"
        raise InvalidArgumentError(
            f"lengths of {what}: must be one whole number from 0 for each bag, found {found}"
        )
    if lengths.sum() != num_ids:
        raise InvalidArgumentError(
            f"lengths of {what} add up to {lengths.sum()}, and there are {num_ids} ids; give the "
            "number of ids of each bag"
        )
    return lengths.astype(np.int32)


def pack_ids(ids: Any) -> npt.NDArray[np.uint32]:
    """Ids for `Tables.infer` inside `jax.jit`, whatever ``jax_enable_x64`` says.

    Args:
        ids: integers of any shape ``(…)``.

    Returns:
        ``(…, 2)``: the low and the high half of each.

    Raises:
        InvalidArgumentError: as `validate_ids`.
    """
    whole = validate_ids(ids, "pack_ids")
    return whole.view(np.uint32).reshape(*whole.shape, 2)


def unpack_ids(packed: npt.NDArray[np.uint32]) -> Ids:
    """The ids that `pack_ids` was given."""
    halves = np.ascontiguousarray(packed, np.uint32)
    return halves.view(np.int64).reshape(halves.shape[:-1])
