"""A Faiss index over rows of a table, with the interface of `top_k`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_packed.top_k_search import (
    Jagged,
    Metric,
    TopK,
    normalize_vectors,
    validate_exclusion,
    validate_keys,
    validate_metric,
    validate_queries,
)

__all__ = ["FaissIndex"]


class FaissIndex:
    """Rows in memory in a Faiss index: an exact one, or one that compares only a part of the rows.

    Create it once and search it often. It does not change if the rows change later. If several rows
    have the lowest score of a result, Faiss decides which of them the result contains.

    Args:
        chunks: keys ``(n,)`` and rows ``(n, dim)``, as in `sparring_packed.top_k`; all are copied.
        factory: argument of ``faiss.index_factory``: ``Flat`` compares all rows, ``HNSW32`` a part.
        metric: see `sparring_packed.top_k`.

    Raises:
        InvalidArgumentError: there are no rows, an argument is invalid, or Faiss cannot create the index.
        UnsupportedError: Faiss is not installed.
    """

    def __init__(
        self,
        chunks: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]],
        *,
        factory: str = "Flat",
        metric: Metric = "dot",
    ) -> None:
        try:
            import faiss
        except ImportError:
            raise UnsupportedError(
                "FaissIndex requires the package faiss, which is not installed; run: pip install "
                "faiss-cpu"
            ) from None
        self.metric = validate_metric(metric)
        pairs = [validate_keys(keys, rows) for keys, rows in chunks]
        if not sum(len(keys) for keys, _ in pairs):
            raise InvalidArgumentError(
                "FaissIndex requires at least one row, found none; pass the chunks of a table with rows"
            )
        # The index contains positions, because Faiss marks missing results by -1, which is a valid key.
        self._keys = np.concatenate([keys for keys, _ in pairs])
        rows = np.concatenate([rows for _, rows in pairs])
        kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
        try:
            self.index = faiss.index_factory(rows.shape[1], factory, kind)
        except RuntimeError as error:
            raise InvalidArgumentError(
                f"FaissIndex: Faiss cannot create an index for factory {factory!r}: {error}; use for "
                "example 'Flat'"
            ) from None
        vectors = normalize_vectors(rows) if metric == "cosine" else rows
        if not self.index.is_trained:
            self.index.train(vectors)
        self.index.add(vectors)

    def top_k(self, queries: npt.ArrayLike, k: int, *, exclude: Jagged | None = None) -> TopK:
        """Returns the best rows, like `sparring_packed.top_k`. An inexact index may miss some of them.

        Args:
            queries: ``(q, dim)``.
            k: number of rows per query, at least 1.
            exclude: keys to exclude for each query, ``(keys, offsets)``.

        Raises:
            InvalidArgumentError: an argument is invalid.
        """
        vectors = validate_queries(queries, k)
        if vectors.shape[1] != self.index.d:
            raise InvalidArgumentError(
                f"top_k: queries have {vectors.shape[1]} elements, but rows have {self.index.d}; pass "
                "queries of the same dim"
            )
        excluded, offsets = validate_exclusion(exclude, len(vectors))
        # Requests additional rows, so that k remain after the excluded ones are removed.
        spare = 0 if offsets is None else int(np.diff(offsets).max(initial=0))
        found = TopK.empty(len(vectors), k)
        if not len(vectors):
            return found
        if self.metric == "cosine":
            vectors = normalize_vectors(vectors)
        scores, places = self.index.search(vectors, min(k + spare, len(self._keys)))
        keys = self._keys[places]
        is_wanted = (places >= 0) & ~np.isnan(scores)
        if excluded is not None and offsets is not None:
            for query, each in enumerate(keys):
                unwanted = excluded[offsets[query] : offsets[query + 1]]
                is_wanted[query] &= ~np.isin(each, unwanted)
        scores = -scores if self.metric == "l2" else scores
        order = np.lexsort((keys, -scores, ~is_wanted), axis=1)[:, :k]
        width = order.shape[1]
        is_kept = np.take_along_axis(is_wanted, order, axis=1)
        found.keys[:, :width][is_kept] = np.take_along_axis(keys, order, axis=1)[is_kept]
        found.scores[:, :width][is_kept] = np.take_along_axis(scores, order, axis=1)[is_kept]
        found.counts[:] = is_kept.sum(axis=1)
        return found
