"""Exact top-k search: finds the rows with the best scores for each query, in blocks of rows.

``sparring_packed_select`` multiplies rows with queries in registers, and keeps the rows that are better
than the worst of the current k best. Memory is bounded by about 2 k candidates per query.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from sparring.contracts import Keys
from sparring.errors import InvalidArgumentError
from sparring_packed import library as native

__all__ = [
    "BLOCK_ROWS",
    "Jagged",
    "Metric",
    "TopK",
    "TopKSearch",
    "validate_exclusion",
    "validate_keys",
    "validate_metric",
    "validate_queries",
    "normalize_vectors",
    "top_k",
]

Metric = Literal["dot", "cosine", "l2"]
Jagged = tuple[npt.ArrayLike, npt.ArrayLike]
"""``(n,)`` ids and ``(q + 1,)`` offsets: query i has ``ids[offsets[i]:offsets[i + 1]]``."""
Floats = npt.NDArray[np.float32]

BLOCK_ROWS = 1 << 16
"""Maximum number of rows per call of the native library, which normalizes or measures them first."""
_THREAD_QUERIES = 12
"""Minimum number of queries per thread: a tile of the native library."""
_THREAD_PRODUCTS = 1 << 25
"""Minimum number of products per thread, which take about 1 ms."""
_SPARE = 32
"""Minimum number of candidates in addition to k."""

_LAYOUT: Sequence[Literal["C", "A"]] = ("C", "A")
"""Layout for C: contiguous rows and aligned elements."""

_BEST = np.dtype([("id", np.int64), ("score", np.float32), ("reserved", np.uint32)])
"""The struct SparringPackedBest."""


@dataclass(frozen=True, slots=True)
class TopK:
    """The best rows of each query, in descending order of their scores.

    Args:
        keys: ``(q, k)``; -1 if a query has fewer than k rows.
        scores: ``(q, k)`` float32; -inf if a query has fewer than k rows.
        counts: ``(q,)``, number of rows of each query.
    """

    keys: Keys
    scores: Floats
    counts: npt.NDArray[np.int64]

    @classmethod
    def empty(cls, num_queries: int, k: int) -> TopK:
        """Creates a result without rows.

        Args:
            num_queries: number q of queries.
            k: number of rows per query.
        """
        return cls(
            np.full((num_queries, k), -1, np.int64),
            np.full((num_queries, k), -np.inf, np.float32),
            np.zeros(num_queries, np.int64),
        )


def top_k(
    chunks: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]],
    queries: npt.ArrayLike,
    k: int,
    *,
    exclude: Jagged | None = None,
    metric: Metric = "dot",
) -> TopK:
    """Returns the keys of the k best rows for each query by comparing it with every row.

    A larger score is better, and the smaller key wins for equal scores. Rows with a score of NaN are left
    out.

    Args:
        chunks: keys ``(n,)`` and rows ``(n, dim)``, with each key in one chunk. For arrays, pass
            ``[(keys, rows)]``; for a storage ``((each.keys, each.rows) for each in storage.scan())``.
        queries: ``(q, dim)``.
        k: number of rows per query, at least 1.
        exclude: keys to exclude for each query, ``(keys, offsets)``.
        metric: ``dot``, the dot product; ``cosine``, the dot product divided by both lengths, 0 for a row
            of zeros; ``l2``, the negative squared distance. Computed in float32 in a fixed order of
            additions, so results have the same bits on all CPUs and for any chunks. NumPy computes the
            lengths for ``cosine`` and ``l2``; their bits may depend on its release and the kind of CPU.

    Raises:
        InvalidArgumentError: an argument is invalid.

    Examples:
        >>> import numpy as np
        >>> from sparring_packed import top_k
        >>> keys, rows = np.array([10, 20, 30]), np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> top_k([(keys, rows)], [[2.0, 1.0]], k=2).keys
        array([[30, 10]])
    """
    search = TopKSearch(queries, k, exclude=exclude, metric=metric)
    for keys, rows in chunks:
        search.add(keys, rows)
    return search.result()


class TopKSearch:
    """Incremental `top_k` over rows that are added in chunks.

    `queries`, `k`, `exclude` and `metric` are those of `top_k`.

    Raises:
        InvalidArgumentError: an argument is invalid.

    Examples:
        >>> import numpy as np
        >>> from sparring_packed import TopKSearch
        >>> search = TopKSearch([[2.0, 1.0]], k=2)
        >>> search.add([10, 20], np.array([[1.0, 0.0], [0.0, 1.0]]))
        >>> search.add([30], np.array([[1.0, 1.0]]))
        >>> search.result().keys
        array([[30, 10]])
    """

    def __init__(
        self,
        queries: npt.ArrayLike,
        k: int,
        *,
        exclude: Jagged | None = None,
        metric: Metric = "dot",
    ) -> None:
        given = validate_queries(queries, k)
        self.metric = validate_metric(metric)
        self.k = int(k)
        self._queries = given
        self._squares = np.einsum("ij,ij->i", self._queries, self._queries)
        if metric == "cosine":
            self._queries = normalize_vectors(self._queries)
        elif metric == "l2":
            self._queries = 2 * self._queries
        count = len(self._queries)
        self._excluded, self._offsets = validate_exclusion(exclude, count)
        self._best = np.empty((count, self.k + max(self.k, _SPARE)), _BEST)
        self._counts = np.zeros(count, np.int64)

    @property
    def memory_bytes(self) -> int:
        """Size of the search's buffers, which does not depend on the number of added rows."""
        return self._queries.nbytes + self._best.nbytes

    def check_dim(self, dim: int, what: str = "rows") -> None:
        """Raises InvalidArgumentError if `what` and the queries differ in their number of elements.

        Args:
            dim: number of elements found.
            what: name of the vectors in the message.
        """
        if dim != self._queries.shape[1]:
            raise InvalidArgumentError(
                f"top_k: {what} have {dim} elements, but queries have {self._queries.shape[1]}; pass "
                "queries of the same dim"
            )

    def add(self, keys: npt.ArrayLike, rows: npt.ArrayLike) -> None:
        """Compares rows with the queries. Not thread-safe.

        Args:
            keys: ``(n,)`` integers; no key is added twice.
            rows: ``(n, dim)``.

        Raises:
            InvalidArgumentError: the shapes do not match.
        """
        ids, vectors = validate_keys(keys, rows)
        self.check_dim(vectors.shape[1])
        for begin in range(0, len(ids), BLOCK_ROWS):
            end = begin + BLOCK_ROWS
            self._add_block(ids[begin:end], vectors[begin:end])

    def result(self) -> TopK:
        """Returns the best of all added rows. More rows may be added afterwards."""
        self._select(is_last=True)
        found = TopK.empty(len(self._counts), self.k)
        keys, scores = found.keys, found.scores
        is_filled = np.arange(self.k) < self._counts[:, None]
        best = self._best[:, : self.k]
        keys[is_filled] = best["id"][is_filled]
        scores[is_filled] = best["score"][is_filled]
        if self.metric == "l2":
            # Rounding can result in a negative distance.
            scores = np.minimum(scores - self._squares[:, None], np.float32(0))
            order = np.lexsort((keys, -scores), axis=1)
            keys, scores = (np.take_along_axis(each, order, axis=1) for each in (keys, scores))
        return TopK(keys, scores, self._counts.copy())

    def _add_block(self, ids: Keys, rows: Floats) -> None:
        starts = None
        if self.metric == "cosine":
            rows = normalize_vectors(rows)
        elif self.metric == "l2":
            starts = -np.einsum("ij,ij->i", rows, rows)
        self._select(ids, rows, starts)

    def _select(
        self,
        ids: Keys | None = None,
        rows: Floats | None = None,
        starts: Floats | None = None,
        *,
        is_last: bool = False,
    ) -> None:
        """Keeps the best rows of all queries. Threads share the queries."""
        count, num_rows = len(self._counts), 0 if ids is None else len(ids)
        work = count * max(num_rows * self._queries.shape[1], self._best.shape[1])
        most = min(len(os.sched_getaffinity(0)), -(-count // _THREAD_QUERIES))
        num_threads = max(1, min(most, work // _THREAD_PRODUCTS))
        ends = [count * each // num_threads for each in range(num_threads + 1)]

        def select(begin: int, end: int) -> None:
            arguments = native.Select(
                num_queries=end - begin,
                num_rows=num_rows,
                dim=self._queries.shape[1],
                queries=_address(self._queries, begin),
                k=self.k,
                capacity=self._best.shape[1],
                best=_address(self._best, begin),
                counts=_address(self._counts, begin),
                is_last=is_last,
            )
            if ids is not None and rows is not None:
                arguments.ids, arguments.rows = ids.ctypes.data, rows.ctypes.data
            if starts is not None:
                arguments.starts = starts.ctypes.data
            if self._excluded is not None and self._offsets is not None:
                arguments.excluded = _address(self._excluded, 0)
                arguments.excluded_offsets = _address(self._offsets, begin)
            native.call("select", arguments)

        if num_threads == 1:
            return select(0, count)
        # Threads are not kept, because a process may fork. Starting them takes far less than the work.
        with ThreadPoolExecutor(num_threads) as threads:
            list(threads.map(select, ends[:-1], ends[1:]))
        return None


def validate_metric(metric: Metric) -> Metric:
    """Returns `metric`. Raises InvalidArgumentError if it is unknown."""
    if metric not in get_args(Metric):
        raise InvalidArgumentError(
            f"top_k: metric must be one of {', '.join(get_args(Metric))}; found {metric!r}"
        )
    return metric


def validate_queries(queries: npt.ArrayLike, k: int) -> Floats:
    """Returns ``(q, dim)``. Raises InvalidArgumentError if the queries or `k` are invalid."""
    given = np.asarray(queries)
    if given.ndim != 2 or given.dtype.kind not in "fiu":
        raise InvalidArgumentError(
            f"top_k: queries must be numbers (queries, dim), found {given.dtype} {given.shape}"
        )
    with np.errstate(over="ignore"):
        vectors = np.require(given, np.float32, _LAYOUT)
    if not np.isfinite(vectors).all():
        raise InvalidArgumentError(
            "top_k: queries must be finite in float32, found NaN or infinity"
        )
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise InvalidArgumentError(f"top_k: k must be an integer of at least 1, found {k!r}")
    return vectors


def validate_keys(keys: npt.ArrayLike, rows: npt.ArrayLike) -> tuple[Keys, Floats]:
    """Returns ``(n,)`` and ``(n, dim)``. Raises InvalidArgumentError if their shapes do not match."""
    ids, vectors = np.asarray(keys), np.asarray(rows)
    if ids.ndim != 1 or vectors.ndim != 2 or len(ids) != len(vectors) or not _are_ids(ids):
        raise InvalidArgumentError(
            f"top_k: keys and rows must be (n,) int64 and (n, dim), found {ids.dtype} {ids.shape} and "
            f"{vectors.shape}"
        )
    return np.require(ids, np.int64, _LAYOUT), np.require(vectors, np.float32, _LAYOUT)


def validate_exclusion(exclude: Jagged | None, num_queries: int) -> tuple[Keys | None, Keys | None]:
    """Returns excluded keys, ascending per query, and their offsets; None without exclusions.

    Raises:
        InvalidArgumentError: the keys or offsets do not match the queries.
    """
    if exclude is None:
        return None, None
    keys, offsets = np.asarray(exclude[0]), np.asarray(exclude[1])
    if (
        keys.ndim != 1
        or not _are_ids(keys)
        or offsets.shape != (num_queries + 1,)
        or offsets.dtype.kind not in "iu"
        or offsets[0] != 0
        or offsets[-1] != len(keys)
        or (np.diff(offsets.astype(np.int64)) < 0).any()
    ):
        raise InvalidArgumentError(
            f"top_k: exclude must be (n,) ids and {num_queries + 1} non-decreasing offsets from 0 to n "
            f"for {num_queries} queries; found {keys.dtype} {keys.shape} and offsets {offsets.dtype} "
            f"{offsets.shape}"
        )
    ends = np.require(offsets, np.int64, _LAYOUT)
    queries = np.searchsorted(ends[1:], np.arange(len(keys)), side="right")
    return keys[np.lexsort((keys, queries))].astype(np.int64), ends


def normalize_vectors(vectors: Floats) -> Floats:
    """Divides vectors by their lengths, except vectors of zeros."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    divided: Floats = vectors / np.where(lengths > 0, lengths, np.float32(1))[:, None]
    return divided


def _are_ids(keys: npt.NDArray[Any]) -> bool:
    return not keys.size or (keys.dtype.kind in "iu" and keys.dtype != np.uint64)


def _address(array: npt.NDArray[Any], row: int) -> int:
    return int(array.ctypes.data + row * array.strides[0])
