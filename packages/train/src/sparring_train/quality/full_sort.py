"""Full-sort evaluation: each user's test items are ranked among all items, none sampled."""

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
    """Quality of the rankings of all items by their dot products with each user.

    A larger product goes first, of equal ones the item of the smaller key; an item whose product is NaN
    is not ranked. Memory holds the rankings of some thousand users at once, and a block of products.

    Args:
        user_vectors: ``(u, dim)``.
        item_keys: ``(n,)`` distinct integers.
        item_vectors: ``(n, dim)``.
        relevant: of each user, as a rule of the test period. Users without are left out and counted.
        seen: of each user, items that are not ranked, as a rule those of training. One that is relevant
            as well cannot be found.
        cutoffs: each k.

    Returns:
        k → the means over users.

    Raises:
        InvalidArgumentError: shapes do not fit, or vectors of users are not finite.
        UnsupportedError: sparring-packed is not installed.
    """
    try:
        from sparring_packed import top_k
    except ImportError:
        raise UnsupportedError(
            "full_sort needs the package sparring_packed; install it: pip install sparring-packed"
        ) from None
    users, keys = np.asarray(user_vectors), np.asarray(item_keys)
    if users.ndim != 2:
        raise InvalidArgumentError(f"user_vectors: must be (users, dim), found {users.shape}")
    if len(np.unique(keys)) < keys.size:
        raise InvalidArgumentError("item_keys: found a key twice; give each item once")
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
