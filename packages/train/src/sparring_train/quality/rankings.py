"""Metrics of rankings: recall, NDCG, reciprocal rank, hit rate and precision at k; AUC by group.

A ranking contains ids in descending order of their scores, as `sparring_packed.top_k` returns them. Ids
with equal scores are in ascending order. Relevant items are jagged, ``(items, offsets)``:
``items[offsets[i]:offsets[i + 1]]`` are the relevant items of query i. Relevance is binary, and duplicate
items count once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError

__all__ = [
    "GroupedAuc",
    "Jagged",
    "RankingMeans",
    "RankingMetrics",
    "check_jagged",
    "grouped_auc",
    "select_queries",
    "compute_ranking_metrics",
]

Ids = npt.NDArray[np.int64]
Jagged = tuple[npt.ArrayLike, npt.ArrayLike]
"""``(n,)`` integers, and ``(q + 1,)`` offsets of the queries."""


@dataclass(frozen=True, slots=True)
class RankingMetrics:
    """Means over queries with a relevant item; NaN if there are no such queries.

    Args:
        k: number of positions of each ranking that count.
        recall: share of the relevant items that are in the first k positions.
        ndcg: sum of ``1 / log2(position + 1)`` of relevant items, divided by the sum of an ideal ranking.
        mrr: 1 divided by the position of the first relevant item; 0 if none is in the first k.
        hit_rate: share of queries with a relevant item in the first k positions.
        precision: share of the first k positions that have a relevant item.
        num_queries: number of queries in the means.
        num_left_out: number of queries without a relevant item, which are left out.
    """

    k: int
    recall: float
    ndcg: float
    mrr: float
    hit_rate: float
    precision: float
    num_queries: int
    num_left_out: int


def compute_ranking_metrics(
    ranked: npt.ArrayLike,
    relevant: Jagged,
    *,
    k: int,
    counts: npt.ArrayLike | None = None,
) -> RankingMetrics:
    """Computes metrics of rankings at k.

    Args:
        ranked: ``(q, at least k)`` ids per query, the best first.
        relevant: relevant items per query.
        k: at least 1.
        counts: ``(q,)``, number of valid positions per query, if some have fewer than k; None if
            all positions are valid.

    Raises:
        InvalidArgumentError: shapes do not fit, or a ranking contains an id twice.
    """
    means = RankingMeans((k,))
    means.update(ranked, relevant, counts=counts)
    return means.values[k]


class RankingMeans:
    """Computes the metrics of `compute_ranking_metrics` batch by batch, in constant memory.

    Args:
        cutoffs: values of k.
    """

    def __init__(self, cutoffs: Sequence[int] = (10,)) -> None:
        if not cutoffs or any(isinstance(k, bool) or k < 1 for k in cutoffs):
            raise InvalidArgumentError(
                f"cutoffs: found {tuple(cutoffs)}, expected one or more numbers of at least 1"
            )
        self.cutoffs = tuple(dict.fromkeys(cutoffs))
        self.num_left_out = 0
        self.num_queries = 0
        self._sums = {k: np.zeros(5) for k in self.cutoffs}

    def update(
        self, ranked: npt.ArrayLike, relevant: Jagged, *, counts: npt.ArrayLike | None = None
    ) -> None:
        """Adds queries. If it raises an error, as `compute_ranking_metrics` does, no query is added."""
        ids, filled = _check_ranking(ranked, counts, max(self.cutoffs))
        items, offsets = check_jagged(relevant, len(ids), "relevant")
        is_hit, num_relevant = _hits(ids, filled, items, offsets)
        told = num_relevant > 0
        is_hit, num_relevant = is_hit[told], num_relevant[told]
        for k in self.cutoffs:
            self._sums[k] += _sums_at(k, is_hit[:, :k], num_relevant)
        self.num_queries += len(num_relevant)
        self.num_left_out += len(told) - len(num_relevant)

    @property
    def values(self) -> Mapping[int, RankingMetrics]:
        """k → means over the queries that were added."""
        return {k: self._mean(k, self._sums[k]) for k in self.cutoffs}

    def _mean(self, k: int, sums: npt.NDArray[np.float64]) -> RankingMetrics:
        count = self.num_queries
        recall, ndcg, mrr, hit_rate, precision = (
            float(each) / count if count else math.nan for each in sums
        )
        return RankingMetrics(k, recall, ndcg, mrr, hit_rate, precision, count, self.num_left_out)


@dataclass(frozen=True, slots=True)
class GroupedAuc:
    """AUC within groups.

    Args:
        value: mean of the groups' AUCs, weighted by their numbers of samples; NaN if no group has
            both labels, or a score is NaN.
        num_groups: number of groups in the mean.
        num_left_out: number of groups with only one label, which are left out.
    """

    value: float
    num_groups: int
    num_left_out: int


def grouped_auc(scores: npt.ArrayLike, labels: npt.ArrayLike, groups: npt.ArrayLike) -> GroupedAuc:
    """Computes the AUC of each group, for example a user's impressions, and their weighted mean.

    Scores are compared only within a group. If groups are users, a model gains nothing from predicting
    which users click more often (Zhu et al., "Optimized Cost per Click in Taobao Display Advertising",
    2017). Pairs of equal scores count half.

    Args:
        scores: ``(n,)``, larger if a 1 is more likely.
        labels: ``(n,)``, 0 or 1.
        groups: ``(n,)``, equal for samples of the same group.

    Raises:
        InvalidArgumentError: shapes differ, or a label is neither 0 nor 1.
    """
    score, label, group = np.asarray(scores), np.asarray(labels), np.asarray(groups)
    if score.ndim != 1 or not score.shape == label.shape == group.shape:
        raise InvalidArgumentError(
            f"scores, labels and groups: found the shapes {score.shape}, {label.shape} and "
            f"{group.shape}, expected (n,) for all; pass one of each per sample"
        )
    is_one = label == 1
    is_wrong = ~(is_one | (label == 0))
    if is_wrong.any():
        at = int(np.argmax(is_wrong))
        raise InvalidArgumentError(
            f"labels: found {label[at]} at {at}, expected 0 or 1; convert the labels"
        )
    if not len(score):
        return GroupedAuc(math.nan, 0, 0)
    _, number = np.unique(group, return_inverse=True)
    num_ones = np.bincount(number, is_one)
    num_samples = np.bincount(number)
    num_zeros = num_samples - num_ones
    has_both = (num_ones > 0) & (num_zeros > 0)
    num_groups = int(has_both.sum())
    num_left_out = len(has_both) - num_groups
    if np.isnan(score).any() or not num_groups:
        return GroupedAuc(math.nan, num_groups, num_left_out)
    # Mann-Whitney U: the sum of the ranks of a group's positive samples determines how many pairs of a
    # positive and a negative sample are in the right order.
    rank_sums = np.bincount(number, _ranks_within(score, number) * is_one)
    outranked = rank_sums - num_ones * (num_ones + 1) / 2
    aucs = outranked[has_both] / (num_ones * num_zeros)[has_both]
    return GroupedAuc(
        float(np.average(aucs, weights=num_samples[has_both])), num_groups, num_left_out
    )


def check_jagged(jagged: Jagged, num_queries: int, what: str) -> tuple[Ids, Ids]:
    """Validates jagged values, and returns values and offsets.

    Raises:
        InvalidArgumentError: the offsets do not divide the values into `num_queries` queries, or an
            array does not contain integers. The message begins with `what`.
    """
    values, offsets = np.asarray(jagged[0]), np.asarray(jagged[1])
    values = values.astype(np.int64) if not values.size else values
    if (
        values.ndim != 1
        or values.dtype.kind not in "iu"
        or offsets.shape != (num_queries + 1,)
        or offsets.dtype.kind not in "iu"
        or offsets[0] != 0
        or offsets[-1] != len(values)
        or (np.diff(offsets.astype(np.int64)) < 0).any()
    ):
        raise InvalidArgumentError(
            f"{what}: expected (n,) integers and {num_queries + 1} offsets for {num_queries} queries, "
            f"ascending from 0 to n; found {values.dtype} {values.shape} and offsets "
            f"{offsets.dtype} {offsets.shape}" + (f" to {offsets[-1]}" if offsets.size else "")
        )
    return values.astype(np.int64, copy=False), offsets.astype(np.int64, copy=False)


def select_queries(jagged: tuple[Ids, Ids], queries: Ids) -> tuple[Ids, Ids]:
    """Returns the values of some queries, in the order of `queries`."""
    values, offsets = jagged
    begins, lengths = offsets[queries], np.diff(offsets)[queries]
    ends = np.cumsum(lengths)
    places = np.repeat(begins - (ends - lengths), lengths) + np.arange(lengths.sum())
    return values[places], np.concatenate(([0], ends))


def _check_ranking(
    ranked: npt.ArrayLike, counts: npt.ArrayLike | None, k: int
) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """Returns the first k ids of each query, and a mask of the valid ones."""
    ids = np.asarray(ranked)
    if ids.ndim != 2 or ids.shape[1] < k or (ids.dtype.kind not in "iu" and ids.size):
        raise InvalidArgumentError(
            f"ranked: found {ids.dtype} {ids.shape}, expected (queries, at least {k}) integers; pad "
            "shorter rankings with any id, and pass their lengths as counts"
        )
    ids = ids[:, :k].astype(np.int64, copy=False)
    filled = np.full(len(ids), k) if counts is None else np.asarray(counts)
    if filled.shape != (len(ids),) or (filled < 0).any():
        raise InvalidArgumentError(
            f"counts: found the shape {filled.shape}, expected ({len(ids)},) numbers of at least 0"
        )
    is_given = np.arange(k) < filled[:, None]
    # Equal ids are adjacent after sorting. Invalid ids are sorted to the end.
    order = np.lexsort((ids, ~is_given), axis=1)
    in_order = np.take_along_axis(ids, order, axis=1)
    is_both_given = np.arange(1, k) < filled[:, None]
    repeats = (in_order[:, 1:] == in_order[:, :-1]) & is_both_given
    if repeats.any():
        query, place = (int(each[0]) for each in np.nonzero(repeats))
        raise InvalidArgumentError(
            f"ranked: id {in_order[query, place]} is in the ranking of query {query} twice; pass each id "
            "once"
        )
    return ids, is_given


def _hits(
    ids: Ids, is_given: npt.NDArray[np.bool_], items: Ids, offsets: Ids
) -> tuple[npt.NDArray[np.bool_], Ids]:
    """Returns a mask of relevant positions ``(q, k)``, and the number of relevant items ``(q,)``."""
    num_queries = len(ids)
    known = np.unique(items)
    if not len(known):
        return np.zeros(ids.shape, np.bool_), np.zeros(num_queries, np.int64)
    # Encodes a pair of query and item as one number.
    queries = np.repeat(np.arange(num_queries), np.diff(offsets))
    pairs = np.unique(queries * len(known) + np.searchsorted(known, items))
    codes = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    asked = np.arange(num_queries)[:, None] * len(known) + codes
    at = np.minimum(np.searchsorted(pairs, asked), len(pairs) - 1)
    is_hit = (known[codes] == ids) & (pairs[at] == asked) & is_given
    return is_hit, np.bincount(pairs // len(known), minlength=num_queries)


def _sums_at(k: int, is_hit: npt.NDArray[np.bool_], num_relevant: Ids) -> npt.NDArray[np.float64]:
    """Returns sums over queries, in the order of `RankingMetrics`."""
    num_hits = is_hit.sum(axis=1)
    has_hit = num_hits > 0
    discounts = 1 / np.log2(np.arange(2, k + 2))
    best = np.concatenate(([0.0], np.cumsum(discounts)))[np.minimum(num_relevant, k)]
    first = np.argmax(is_hit, axis=1) + 1
    return np.array(
        [
            (num_hits / num_relevant).sum(),
            ((is_hit @ discounts) / best).sum(),
            (has_hit / first).sum(),
            has_hit.sum(),
            num_hits.sum() / k,
        ]
    )


def _ranks_within(
    scores: npt.NDArray[np.floating], groups: npt.NDArray[np.intp]
) -> npt.NDArray[np.float64]:
    """Returns the rank of each score within its group, from 1; equal scores share their mean rank."""
    order = np.lexsort((scores, groups))
    score, group = scores[order], groups[order]
    is_new_group = np.concatenate(([True], group[1:] != group[:-1]))
    is_new = is_new_group | np.concatenate(([True], score[1:] != score[:-1]))
    begins = np.flatnonzero(is_new)
    ends = np.append(begins[1:], len(score))
    group_begins = np.flatnonzero(is_new_group)[np.cumsum(is_new_group) - 1]
    middle = (begins + ends - 1) / 2 - group_begins[begins] + 1
    ranks = np.empty(len(score))
    ranks[order] = np.repeat(middle, ends - begins)
    return ranks
