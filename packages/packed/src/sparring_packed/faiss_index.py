"""An index of Faiss over rows of a table, with the interface of `top_k`."""

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
    """Rows in memory, in any index that Faiss makes: exact, or one that compares a few rows only.

    Made once, and searched often; rows that change later need a new one. Of equal scores, those at the
    end of an answer are as Faiss chooses.

    Args:
        chunks: keys ``(n,)`` and rows ``(n, dim)``, as of `sparring_packed.top_k`; all are copied.
        factory: what ``faiss.index_factory`` takes: ``Flat`` compares all rows, ``HNSW32`` a few.
        metric: as of `sparring_packed.top_k`.

    Raises:
        InvalidArgumentError: there are no rows, an argument does not fit, or Faiss knows no such index.
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
                "an index of Faiss needs the package faiss; install it: pip install faiss-cpu"
            ) from None
        self.metric = validate_metric(metric)
        pairs = [validate_keys(keys, rows) for keys, rows in chunks]
        if not sum(len(keys) for keys, _ in pairs):
            raise InvalidArgumentError("an index of Faiss needs rows, found none")
        # Faiss marks places that are not filled by -1, which is a key; so it is given places.
        self._keys = np.concatenate([keys for keys, _ in pairs])
        rows = np.concatenate([rows for _, rows in pairs])
        kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
        try:
            self.index = faiss.index_factory(rows.shape[1], factory, kind)
        except RuntimeError as error:
            raise InvalidArgumentError(
                f"factory {factory!r}: Faiss makes no such index: {error}"
            ) from None
        vectors = normalize_vectors(rows) if metric == "cosine" else rows
        if not self.index.is_trained:
            self.index.train(vectors)
        self.index.add(vectors)

    def top_k(self, queries: npt.ArrayLike, k: int, *, exclude: Jagged | None = None) -> TopK:
        """As `sparring_packed.top_k`; an index that is not exact may miss rows.

        Raises:
            InvalidArgumentError: an argument is not as it should be.
        """
        vectors = validate_queries(queries, k)
        if vectors.shape[1] != self.index.d:
            raise InvalidArgumentError(
                f"rows have {self.index.d} elements, queries {vectors.shape[1]}; they must be as many"
            )
        excluded, offsets = validate_exclusion(exclude, len(vectors))
        # As many more as a query excludes: what is left has k.
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
