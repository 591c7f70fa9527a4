"""Full-sort evaluation: ranks each user's test items among all items, without sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_train.quality.rankings import (
    Jagged,
    RankingMeans,
    RankingMetrics,
    check_jagged,
    select_queries,
)

__all__ = ["full_sort"]

_BLOCK_USERS = 8192


def full_sort(
    user_vectors: npt.ArrayLike,
    item_keys: npt.ArrayLike,
    item_vectors: npt.ArrayLike,
    *,
    relevant: Jagged,
    seen: Jagged | None = None,
    cutoffs: Sequence[int] = (10,),
) -> Mapping[int, RankingMetrics]:
    """Computes metrics of the rankings of all items by their dot products with each user.

    Items are sorted by descending product; items with equal products by key. Items whose product is NaN
    are not ranked. The rankings of some thousand users and a block of products are in memory at a time.

    Args:
        user_vectors: ``(u, dim)``.
        item_keys: ``(n,)`` distinct integers.
        item_vectors: ``(n, dim)``.
        relevant: relevant items per user, usually from the test period. Users without such items
            are left out and counted.
        seen: items per user that are not ranked, usually from the training. Relevant items among
            them cannot be found.
        cutoffs: values of k.

    Returns:
        k → means over users.

    Raises:
        InvalidArgumentError: shapes do not fit, or vectors of users are not finite.
        UnsupportedError: sparring-packed is not installed.
    """
    try:
        from sparring_packed import top_k
    except ImportError:
        raise UnsupportedError(
            "full_sort requires sparring-packed; run: pip install sparring-packed"
        ) from None
    users, keys = np.asarray(user_vectors), np.asarray(item_keys)
    if users.ndim != 2:
        raise InvalidArgumentError(
            f"user_vectors: found {users.shape}, expected (users, dim); pass one vector per user"
        )
    if len(np.unique(keys)) < keys.size:
        raise InvalidArgumentError("item_keys: found a key twice; pass each item once")
    wanted = check_jagged(relevant, len(users), "relevant")
    unwanted = None if seen is None else check_jagged(seen, len(users), "seen")
    means = RankingMeans(cutoffs)
    told = np.flatnonzero(np.diff(wanted[1]))
    means.num_left_out = len(users) - len(told)
    for begin in range(0, len(told), _BLOCK_USERS):
        block = told[begin : begin + _BLOCK_USERS]
        found = top_k(
            [(keys, item_vectors)],
            users[block],
            max(means.cutoffs),
            exclude=None if unwanted is None else select_queries(unwanted, block),
        )
        means.update(found.keys, select_queries(wanted, block), counts=found.counts)
    return means.values
