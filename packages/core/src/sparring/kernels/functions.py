"""The key operations on the CPU: deduplication of ids, pooling of rows, and their gradients.

Every function checks its arguments, and then calls the function with the same name in
``sparring._native``. Callers that have created valid arrays themselves may call the native function
directly. It checks dtypes, shapes and layout at constant cost, but not whether indices are in
range. An index out of range then accesses invalid memory.

Shapes: ``n`` ids of a batch, ``u`` keys, ``b`` bags. Ids, keys, inverse, segments and offsets are
int64; rows, values, gradients and weights are float32 or float64, with one dtype per call. Narrower rows
must be converted with `decode` before and `encode` after; `initialize` accepts all table dtypes.
Results are bit-identical for any number of threads and any SIMD level.

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
"""Number of partitions of a table's key space: 4,096, a constant of the format."""

_INT64_MAX = np.iinfo(np.int64).max


def dedup(ids: npt.ArrayLike) -> Dedup:
    """Returns the distinct ids, in the order in which they first occur, and the inverse mapping.

    Args:
        ids: ``(n,)`` integers, any int64; at most 2**31 - 1 ids.

    Raises:
        InvalidArgumentError: `ids` are not one-dimensional integers, or do not fit int64.

    Examples:
        >>> from sparring.kernels.functions import dedup
        >>> found = dedup([7, 3, 7, 9, 3])
        >>> found.keys.tolist(), found.inverse.tolist()
        ([7, 3, 9], [0, 1, 0, 2, 1])
    """
    return Dedup(*_native.dedup(_indices(ids, "ids")))


def partition(keys: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """Returns the partition of each key: the top 12 bits of ``mix64(key)``, 0 to 4,095.

    ``mix64`` is the finalizer of MurmurHash3 (Appleby). It is a constant of the format.

    Args:
        keys: ``(u,)`` integers.

    Returns:
        ``(u,)`` uint16.
    """
    return _native.partition(_indices(keys, "keys"))


def route(keys: npt.ArrayLike, owners: npt.ArrayLike, world_size: int) -> Route:
    """Groups keys by the rank that owns their partition. The keys of a rank keep their order.

    Args:
        keys: ``(u,)`` integers.
        owners: ``(4096,)`` int32, the rank that owns each partition.
        world_size: number of ranks.

    Raises:
        InvalidArgumentError: wrong shapes, or an owner is not a rank below `world_size`.
    """
    if not is_whole(world_size):
        raise InvalidArgumentError(
            f"route: world_size must be a whole number, found {world_size!r}; pass an int"
        )
    ranks = _indices(owners, "owners")
    if len(ranks) and not -(2**31) <= int(ranks.min()) <= int(ranks.max()) < 2**31:
        raise InvalidArgumentError(
            f"route: owners must be ranks below world_size, found {int(ranks.min())} to "
            f"{int(ranks.max())}; pass ShardMap.owners"
        )
    return Route(*_native.route(_indices(keys, "keys"), ranks.astype(np.int32), world_size))


def gather(rows: npt.ArrayLike, inverse: npt.ArrayLike, out: Values | None = None) -> Values:
    """Copies one row per id: ``rows[inverse]``.

    Args:
        rows: ``(u, dim)``.
        inverse: ``(n,)`` integers in [0, u).
        out: ``(n, dim)`` C-contiguous array to fill; None: a new array.

    Returns:
        ``(n, dim)``; `out` if it was passed.

    Raises:
        InvalidArgumentError: wrong shapes or dtypes, an index is out of range, or `out` overlaps
            `rows`.
    """
    rows = _values(rows, "rows")
    places = _indices(inverse, "inverse", len(rows))
    if out is not None:
        _check_is_array(out, "out")
    if out is not None and np.may_share_memory(rows, out):
        raise InvalidArgumentError(
            "gather: out overlaps rows in memory; pass another array, or None"
        )
    return _native.gather(rows, places, out)


def pool(
    rows: npt.ArrayLike,
    inverse: npt.ArrayLike,
    offsets: npt.ArrayLike,
    *,
    mode: Pooling = "sum",
    weights: npt.ArrayLike | None = None,
) -> Values:
    """Pools bags: returns the sum or mean of the rows of each bag, multiplied by the weights.

    Rows are added in the order of the ids. An empty bag returns zeros. The mean divides by the number
    of ids in the bag, also if there are weights.

    Args:
        rows: ``(u, dim)``.
        inverse: ``(n,)`` integers in [0, u).
        offsets: ``(b + 1,)`` integers from 0 to n, not decreasing: bag k is
            ``inverse[offsets[k]:offsets[k + 1]]``.
        mode: ``sum`` or ``mean``.
        weights: ``(n,)`` of the rows' dtype, or None.

    Returns:
        ``(b, dim)``.

    Raises:
        InvalidArgumentError: wrong shapes or dtypes, an index is out of range, or `offsets` decrease
            or do not end with n.

    Examples:
        >>> import numpy as np
        >>> from sparring.kernels.functions import pool
        >>> rows = np.array([[1.0, 2.0], [10.0, 20.0]])
        >>> pool(rows, [0, 1, 1], [0, 2, 3]).tolist()
        [[11.0, 22.0], [10.0, 20.0]]
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
    """Computes the gradient of `pool` with respect to its rows.

    The gradients of all occurrences of a key are added in the order of the ids.

    Args:
        gradient: ``(b, dim)``, gradient of the pooled rows.
        inverse: see `pool`.
        offsets: see `pool`.
        num_rows: u.
        mode: see `pool`.
        weights: see `pool`.

    Returns:
        ``(u, dim)``.

    Raises:
        InvalidArgumentError: see `pool`.
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
    """Computes the gradient of `pool` with respect to its weights.

    Args:
        gradient: ``(b, dim)``, gradient of the pooled rows.
        rows: see `pool`.
        inverse: see `pool`.
        offsets: see `pool`.
        mode: see `pool`.

    Returns:
        ``(n,)``.

    Raises:
        InvalidArgumentError: see `pool`.
    """
    rows = _values(rows, "rows")
    places = _indices(inverse, "inverse", len(rows))
    bags = _offsets(offsets, places)
    return _native.pool_weight_gradient(_values(gradient, "gradient"), rows, places, bags, mode)


def segment_sum(values: npt.ArrayLike, segments: npt.ArrayLike, num_segments: int) -> Values:
    """Sums the values of each segment, in their order. With `Dedup.inverse` as segments, sums by key.

    Args:
        values: ``(n, dim)``.
        segments: ``(n,)`` integers in [0, num_segments), in any order.
        num_segments: number of rows of the result; a segment without values is zero.

    Returns:
        ``(num_segments, dim)``.

    Raises:
        InvalidArgumentError: wrong shapes or dtypes, or a segment is out of range.
    """
    values = _values(values, "values")
    return _native.segment_sum(values, _indices(segments, "segments", num_segments), num_segments)


def initializer_spec(table: TableConfig) -> InitializerSpec:
    """Creates the argument `spec` of `initialize` for a table. It can be reused.

    Args:
        table: the table; its initializer, seed, name and dim are used.
    """
    initializer = table.initializer
    assert isinstance(initializer, Initializer)  # TableConfig converts it
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
    """Fills the rows of keys that were not found with the initial embedding and state.

    Rows may have any table dtype; `sparring.contracts.tables.table` describes their layout.

    The embedding is a pure function of the table's seed and name, the key and the column.
    ``include/sparring/initial_value.h`` defines its bits, which are part of the format.

    Args:
        rows: ``(n, width)``, C-contiguous; rows whose `found` is False are written.
        keys: ``(n,)`` integers.
        found: ``(n,)`` bool.
        spec: the result of `initializer_spec`.
        state: ``(state_width,)`` of the computing dtype, the initial optimizer state; None: zeros.

    Raises:
        InvalidArgumentError: wrong shapes or dtypes, or `rows` cannot be written in place.
    """
    _check_is_array(rows, "rows")
    _check_is_array(found, "found")
    if state is not None:
        _check_is_array(state, "state")
    if not isinstance(spec, InitializerSpec):
        raise InvalidArgumentError(
            f"initialize: spec must be an InitializerSpec, found {type(spec).__name__}; pass "
            "initializer_spec(table)"
        )
    _native.initialize(rows, _indices(keys, "keys"), found, spec, state)


def initial_rows(keys: npt.ArrayLike, table: TableConfig) -> Values:
    """Computes the initial embeddings of keys.

    Args:
        keys: ``(n,)`` integers.
        table: the table; its initializer, seed, name, dim and dtype are used.

    Returns:
        ``(n, embedding_width)`` of the table's dtype.
    """
    keys = _indices(keys, "keys")
    rows = np.empty((len(keys), table.embedding_width), table.numpy_dtype)
    _native.initialize(rows, keys, np.zeros(len(keys), np.bool_), initializer_spec(table), None)
    return rows


def rounding_seed(table: TableConfig) -> int:
    """Returns the seed of `Rounding` for a table.

    Args:
        table: the table; the result is a function of its seed and name.
    """
    return initializer_spec(table).rounding_seed


def decode(rows: Values) -> Values:
    """Converts 16-bit and 8-bit embeddings to float32, exactly.

    Args:
        rows: ``(n, dim)`` float16 or bfloat16, or ``(n, dim + 2)`` int8 with scales, each row
            contiguous, such as the result of `TableConfig.embeddings`.

    Returns:
        ``(n, dim)`` float32.

    Raises:
        InvalidArgumentError: wrong shape or dtype.
    """
    _check_is_array(rows, "rows")
    return _native.decode(rows)


def encode(values: npt.ArrayLike, out: Values, rounding: Rounding | None = None) -> None:
    """Rounds float32 to 16 or 8 bits.

    Without `rounding`, numbers are rounded to nearest, and 16-bit numbers beyond the range become
    infinite. With it, numbers are rounded stochastically: up or down, so that the expected value
    is exact; numbers beyond the range become the largest finite number. 16 bits keep NaN and infinity;
    an int8 embedding that contains them becomes NaN.

    Args:
        values: ``(n, dim)`` float32.
        out: ``(n, dim)`` float16 or bfloat16, or ``(n, dim + 2)`` int8, each row contiguous; filled.
        rounding: the keys, seed and step that determine the random bits, together with the column.

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
    """Returns whether each row contains neither NaN nor infinity.

    Args:
        values: ``(u, dim)``.

    Returns:
        ``(u,)`` bool.
    """
    return _native.finite_rows(_values(values, "values"))


def _indices(values: npt.ArrayLike, name: str, limit: int | None = None) -> Indices:
    """Converts to ``(n,)`` C-contiguous int64; with `limit`, checks that they are in [0, limit)."""
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
            f"{name} must fit int64, found {int(array.max())}; pass array.view('int64') if only the "
            "bits matter"
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
    """Converts to ``(n, dim)``, C-contiguous; the native function checks the dtype."""
    array = as_array(values, name)
    if array.ndim != 2:
        raise InvalidArgumentError(
            f"{name} must have two dimensions, found shape {array.shape}; reshape them first"
        )
    return np.require(array, None, ("C", "A"))


def _weights(weights: npt.ArrayLike | None) -> Values | None:
    return None if weights is None else np.require(as_array(weights, "weights"), None, ("C", "A"))


def _check_is_array(array: object, name: str) -> None:
    """Rejects objects that cannot be used in place; the native function checks the rest."""
    if not isinstance(array, np.ndarray):
        raise InvalidArgumentError(
            f"{name} must be a NumPy array, found {type(array).__name__}; pass numpy.asarray({name})"
        )
