"""Ids as int64 arrays of NumPy.

JAX silently truncates 64-bit integers to 32 bits unless ``jax_enable_x64`` is set. Therefore ids remain
NumPy arrays until they are looked up, and are split into two halves inside `jax.jit`; see `pack_ids`.
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
    """Returns `given` as a C-contiguous int64 array.

    Args:
        given: integers of any shape.
        what: name of the ids in error messages, for example ``feature 'user'``.

    Raises:
        InvalidArgumentError: the values are not integers, or are a JAX array with fewer than 64 bits.
    """
    if isinstance(given, jax.Array) and given.dtype != np.int64:
        raise InvalidArgumentError(
            f"ids of {what} are a JAX array of dtype {given.dtype}, expected int64, because JAX "
            "truncates 64-bit ids to 32 bits; give an int64 array of NumPy, or set jax_enable_x64"
        )
    array = np.asarray(given)
    if not array.size and not isinstance(given, (np.ndarray, jax.Array)):
        array = array.astype(np.int64)  # an empty list
    if array.dtype.kind not in "iu" or array.dtype == np.uint64:
        fix = "convert whole numbers with numpy.asarray(ids, numpy.int64)"
        if array.dtype.kind in "SUO":
            fix = "convert strings with sparring.hash_strings(strings), as `sparring serve` does"
        raise InvalidArgumentError(
            f"ids of {what} must be int64, found dtype {array.dtype}; {fix}",
            dtype=str(array.dtype),
        )
    return np.ascontiguousarray(array, np.int64)


def validate_lengths(given: Any, num_ids: int, what: str) -> npt.NDArray[np.int32]:
    """Validates the lengths of bags and returns them as ``(b,)`` int32.

    Raises:
        InvalidArgumentError: the lengths are not non-negative integers, or their sum is not `num_ids`.
    """
    lengths = validate_ids(given, f"lengths of {what}")
    if lengths.ndim != 1 or (lengths < 0).any():
        found = f"shape {lengths.shape}" if lengths.ndim != 1 else f"{lengths.min()}"
        raise InvalidArgumentError(
            f"lengths of {what} must be one non-negative integer per bag, found {found}; give 0 for an "
            "empty bag"
        )
    if lengths.sum() != num_ids:
        raise InvalidArgumentError(
            f"lengths of {what} add up to {lengths.sum()}, but there are {num_ids} ids; give the "
            "number of ids in each bag"
        )
    return lengths.astype(np.int32)


def pack_ids(ids: Any) -> npt.NDArray[np.uint32]:
    """Packs ids for `Tables.infer` inside `jax.jit`, with or without ``jax_enable_x64``.

    Args:
        ids: integers of any shape ``(…)``.

    Returns:
        ``(…, 2)``: the lower and the upper 32 bits of each id.

    Raises:
        InvalidArgumentError: see `validate_ids`.

    Examples:
        >>> from sparring_jax import pack_ids
        >>> pack_ids([1, 2**32 + 3]).tolist()
        [[1, 0], [3, 1]]
    """
    whole = validate_ids(ids, "pack_ids")
    return whole.view(np.uint32).reshape(*whole.shape, 2)


def unpack_ids(packed: npt.NDArray[np.uint32]) -> Ids:
    """Returns the ids that were passed to `pack_ids`."""
    halves = np.ascontiguousarray(packed, np.uint32)
    return halves.view(np.int64).reshape(halves.shape[:-1])
