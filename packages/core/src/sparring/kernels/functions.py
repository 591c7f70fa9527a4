"""The key operations on the CPU: from ids to keys, from rows to bags, and back.

Every function here checks its arguments, and then calls its namesake in ``sparring._native``. A
caller that knows its arrays to be right, because it has just made them, calls that one directly:
it still checks dtypes, shapes and layout, at a cost that does not grow with the arrays, but takes
it for granted that indices are in range. An index out of range then reads or writes foreign
memory.

Shapes: ``n`` ids of a batch, ``u`` keys, ``b`` bags. Ids, keys, inverse, segments and offsets are
int64; rows, values, gradients and weights are float32 or float64, all of one dtype in one call.
Rows of 16 bits go through `decode` first and `encode` last; `initialize` writes any rows.
Results have the same bits for any number of threads and any SIMD level.

    ids         7  3  7  9  3        keys     7  3  9        offsets  0  2  2  5
    inverse     0  1  0  2  1                                bags     [7 3] [] [7 9 3]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring._native import GradientAccumulator, InitializerSpec, set_simd_level, simd_level
from sparring.contracts.device.kernels import Dedup, Indices, Pooling, Rounding, Route
from sparring.contracts.storage.results import as_array, is_whole
from sparring.contracts.tables.initializers import Initializer
from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError

__all__ = [
    "NUM_PARTITIONS",
    "GradientAccumulator",
    "InitializerSpec",
    "decode",
    "dedup",
    "encode",
    "finite_rows",
    "gather",
    "initial_rows",
    "initialize",
    "initializer_spec",
    "is_finite",
    "partition",
    "pool",
    "pool_backward",
    "pool_weight_gradient",
    "rounding_seed",
    "route",
    "segment_sum",
    "set_simd_level",
    "simd_level",
]

Values = npt.NDArray[Any]

NUM_PARTITIONS: int = _native.NUM_PARTITIONS
"""Partitions of a table's key space: 4,096, a constant of the format."""

_INT64_MAX = np.iinfo(np.int64).max


def dedup(ids: npt.ArrayLike) -> Dedup:
    """The distinct ids, in the order in which they first occur, and where each id went.

    Args:
        ids: ``(n,)`` integers, any int64; at most 2**31 - 1 of them.

    Raises:
        InvalidArgumentError: wrong rank, not integers, or too large for int64.
    """
    return Dedup(*_native.dedup(_indices(ids, "ids")))


def partition(keys: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """The partition of each key: the top 12 bits of ``mix64(key)``, 0 to 4,095.

    ``mix64`` is the finaliser of MurmurHash3 (Appleby). It is a constant of the format.

    Args:
        keys: ``(u,)`` integers.

    Returns:
        ``(u,)`` uint16.
    """
    return _native.partition(_indices(keys, "keys"))


def route(keys: npt.ArrayLike, owners: npt.ArrayLike, world_size: int) -> Route:
    """Groups keys by the rank that owns their partition; stable within a rank.

    Args:
        keys: ``(u,)`` integers.
        owners: ``(4096,)`` int32, the rank of each partition.
        world_size: the number of ranks.

    Raises:
        InvalidArgumentError: wrong shapes, or an owner that is no rank of this world.
    """
    if not is_whole(world_size):
        raise InvalidArgumentError(
            f"world_size must be a whole number of ranks, found {world_size!r}; pass an int"
        )
    ranks = _indices(owners, "owners")
    if len(ranks) and not -(2**31) <= int(ranks.min()) <= int(ranks.max()) < 2**31:
        raise InvalidArgumentError("owners must be ranks, found numbers beyond int32")
    return Route(*_native.route(_indices(keys, "keys"), ranks.astype(np.int32), world_size))


def gather(rows: npt.ArrayLike, inverse: npt.ArrayLike, out: Values | None = None) -> Values:
    """One row for each id: ``rows[inverse]``.

    Args:
        rows: ``(u, dim)``.
        inverse: ``(n,)`` integers in [0, u).
        out: ``(n, dim)``, C-contiguous, to be filled; None makes a new array.

    Returns:
        ``(n, dim)``; `out` where it is given.

    Raises:
        InvalidArgumentError: wrong shapes or dtypes, an index out of range, or an `out` that
            overlaps the rows.
    """
    rows = _values(rows, "rows")
    places = _indices(inverse, "inverse", len(rows))
    if out is not None:
        _check_is_array(out, "out")
    if out is not None and np.may_share_memory(rows, out):
        raise InvalidArgumentError("out overlaps rows in memory; pass another array, or None")
    return _native.gather(rows, places, out)


def pool(
    rows: npt.ArrayLike,
    inverse: npt.ArrayLike,
    offsets: npt.ArrayLike,
    *,
    mode: Pooling = "sum",
    weights: npt.ArrayLike | None = None,
) -> Values:
    """One row for each bag: the sum or the mean of its ids' rows, each times its weight.

    Rows are added in the order of the ids. The row of an empty bag is zeros. The mean divides by
    the number of ids in the bag, with weights too, so that a weight of 2 counts double.

    Args:
        rows: ``(u, dim)``.
        inverse: ``(n,)`` integers in [0, u).
        offsets: ``(b + 1,)`` integers, from 0 to n, never falling: bag k is
            ``inverse[offsets[k]:offsets[k + 1]]``.
        mode: ``sum`` or ``mean``.
        weights: ``(n,)`` of the rows' dtype, or None.

    Returns:
        ``(b, dim)``.

    Raises:
        InvalidArgumentError: wrong shapes or dtypes, an index out of range, offsets that fall or
            do not end with n.
    """
    rows = _values(rows, "rows")
    places = _indices(inverse, "inverse", len(rows))
    return _native.pool(rows, places, _offsets(offsets, places), mode, _weights(weights))


def pool_backward(
    gradient: npt.ArrayLike,
    inverse: npt.ArrayLike,
    offsets: npt.ArrayLike,
    num_rows: int,
    *,
    mode: Pooling = "sum",
    weights: npt.ArrayLike | None = None,
) -> Values:
    """The gradient of `pool` with respect to its rows.

    The gradients of all occurrences of a key are added up in the order of the ids.

    Args:
        gradient: ``(b, dim)``, of the pooled rows.
        inverse: as in `pool`.
        offsets: as in `pool`.
        num_rows: u.
        mode: as in `pool`.
        weights: as in `pool`.

    Returns:
        ``(u, dim)``.

    Raises:
        InvalidArgumentError: as `pool`.
    """
    gradient = _values(gradient, "gradient")
    places = _indices(inverse, "inverse", num_rows)
    bags = _offsets(offsets, places)
    return _native.pool_backward(gradient, places, bags, num_rows, mode, _weights(weights))


def pool_weight_gradient(
    gradient: npt.ArrayLike,
    rows: npt.ArrayLike,
    inverse: npt.ArrayLike,
    offsets: npt.ArrayLike,
    *,
    mode: Pooling = "sum",
) -> Values:
    """The gradient of `pool` with respect to its weights.

    Args:
        gradient: ``(b, dim)``, of the pooled rows.
        rows: as in `pool`.
        inverse: as in `pool`.
        offsets: as in `pool`.
        mode: as in `pool`.

    Returns:
        ``(n,)``.

    Raises:
        InvalidArgumentError: as `pool`.
    """
    rows = _values(rows, "rows")
    places = _indices(inverse, "inverse", len(rows))
    bags = _offsets(offsets, places)
    return _native.pool_weight_gradient(_values(gradient, "gradient"), rows, places, bags, mode)


def segment_sum(values: npt.ArrayLike, segments: npt.ArrayLike, num_segments: int) -> Values:
    """Adds up the values of each segment, in their order; with an inverse: by key.

    Args:
        values: ``(n, dim)``.
        segments: ``(n,)`` integers in [0, num_segments), in any order.
        num_segments: the number of rows of the result; a segment without values is zeros.

    Returns:
        ``(num_segments, dim)``.

    Raises:
        InvalidArgumentError: wrong shapes or dtypes, or a segment out of range.
    """
    values = _values(values, "values")
    return _native.segment_sum(values, _indices(segments, "segments", num_segments), num_segments)


def initializer_spec(table: TableConfig) -> InitializerSpec:
    """The table's initializer as `initialize` takes it; made once for each table."""
    initializer = table.initializer
    assert isinstance(initializer, Initializer)  # TableConfig sees to it
    return InitializerSpec(
        initializer.kind,
        initializer.parameters(table.dim),
        table.dim,
        table.seed,
        _native.table_hash(table.name),
    )


def initialize(
    rows: Values,
    keys: npt.ArrayLike,
    found: npt.NDArray[np.bool_],
    spec: InitializerSpec,
    state: Values | None = None,
) -> None:
    """Fills the rows of keys that were not found: the initial embedding, then the state.

    Rows are of any dtype of a table, laid out as `sparring.contracts.tables.table` says.

    The embedding is a pure function of the table's seed and name, the key and the column:
    ``include/sparring/initial_value.h`` defines its bits, which are part of the format.

    Args:
        rows: ``(n, width)``, C-contiguous; written where `found` is False.
        keys: ``(n,)`` integers.
        found: ``(n,)`` bool.
        spec: from `initializer_spec`.
        state: ``(state_width,)`` of the computing dtype, what each new row's optimizer state
            begins with; None: zeros.

    Raises:
        InvalidArgumentError: wrong shapes or dtypes, or `rows` cannot be written in place.
    """
    _check_is_array(rows, "rows")
    _check_is_array(found, "found")
    if state is not None:
        _check_is_array(state, "state")
    if not isinstance(spec, InitializerSpec):
        raise InvalidArgumentError(
            f"spec must be an InitializerSpec, found {type(spec).__name__}; make it by "
            "initializer_spec(table)"
        )
    _native.initialize(rows, _indices(keys, "keys"), found, spec, state)


def initial_rows(keys: npt.ArrayLike, table: TableConfig) -> Values:
    """The initial embeddings of keys.

    Args:
        keys: ``(n,)`` integers.
        table: says initializer, seed, name, dim and dtype.

    Returns:
        ``(n, dim)`` of the table's dtype.
    """
    keys = _indices(keys, "keys")
    rows = np.empty((len(keys), table.dim), table.numpy_dtype)
    _native.initialize(rows, keys, np.zeros(len(keys), np.bool_), initializer_spec(table), None)
    return rows


def rounding_seed(table: TableConfig) -> int:
    """The seed of `Rounding` for a table: a function of its seed and name."""
    return initializer_spec(table).rounding_seed


def decode(rows: Values) -> Values:
    """16-bit numbers as float32, exactly.

    Args:
        rows: ``(n, dim)`` float16 or bfloat16, each row contiguous; `TableConfig.embeddings` gives
            such.

    Returns:
        ``(n, dim)`` float32.

    Raises:
        InvalidArgumentError: wrong shape or dtype.
    """
    _check_is_array(rows, "rows")
    return _native.decode(rows)


def encode(values: npt.ArrayLike, out: Values, rounding: Rounding | None = None) -> None:
    """Rounds float32 to 16 bits.

    Without `rounding` to nearest, even where two are, and beyond the range to infinity. With it
    stochastically: up or down at random, so that the expected value is exact, and beyond the range
    to the largest finite number. NaN and infinity are kept.

    Args:
        values: ``(n, dim)`` float32.
        out: ``(n, dim)`` float16 or bfloat16, each row contiguous; filled.
        rounding: what random bits are a function of, besides the column.

    Raises:
        InvalidArgumentError: wrong shapes or dtypes, or `out` cannot be written in place.
    """
    values = _values(values, "values")
    _check_is_array(out, "out")
    if rounding is None:
        _native.encode(values, out)
    else:
        keys = _indices(rounding.keys, "keys")
        _native.encode(values, out, keys, rounding.seed, rounding.step)


def is_finite(values: npt.ArrayLike) -> bool:
    """Whether no value is NaN or infinite. An empty array is finite."""
    # Copies arrays that are not contiguous or not aligned.
    return _native.is_finite(np.require(as_array(values, "values"), None, ("C", "A")))


def finite_rows(values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Whether each row has no NaN and no infinity.

    Args:
        values: ``(u, dim)``.

    Returns:
        ``(u,)`` bool.
    """
    return _native.finite_rows(_values(values, "values"))


def _indices(values: npt.ArrayLike, name: str, limit: int | None = None) -> Indices:
    """``(n,)`` C-contiguous int64, each in [0, limit) where a limit is given."""
    array = as_array(values, name)
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"{name} must be int64, found dtype {array.dtype}; convert them, and make sure that "
            "no fraction is lost"
        )
    if array.dtype == np.uint64 and array.size and int(array.max()) > _INT64_MAX:
        raise InvalidArgumentError(
            f"{name}: {int(array.max())} does not fit int64; view the array as int64 if the bits "
            "are what counts"
        )
    if array.ndim != 1:
        raise InvalidArgumentError(
            f"{name} must have one dimension, found shape {array.shape}; flatten them first"
        )
    indices = np.require(array, np.int64, ("C", "A"))
    if limit is not None:
        _native.check_indices(indices, limit, name)
    return indices


def _offsets(offsets: npt.ArrayLike, inverse: Indices) -> Indices:
    array = _indices(offsets, "offsets")
    _native.check_offsets(array, len(inverse), "offsets")
    return array


def _values(values: npt.ArrayLike, name: str) -> Values:
    """``(n, dim)`` C-contiguous; the native function checks the dtype."""
    array = as_array(values, name)
    if array.ndim != 2:
        raise InvalidArgumentError(
            f"{name} must have two dimensions, found shape {array.shape}; reshape them first"
        )
    return np.require(array, None, ("C", "A"))


def _weights(weights: npt.ArrayLike | None) -> Values | None:
    return None if weights is None else np.require(as_array(weights, "weights"), None, ("C", "A"))


def _check_is_array(array: object, name: str) -> None:
    """Refuses what cannot be used in place; the native function checks the rest."""
    if not isinstance(array, np.ndarray):
        raise InvalidArgumentError(
            f"{name} must be a NumPy array, found {type(array).__name__}; pass numpy.asarray of it"
        )
