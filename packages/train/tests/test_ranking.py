"""Metrics of rankings equal scikit-learn, torchmetrics, and manually computed values."""

from __future__ import annotations

import math
from dataclasses import astuple

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("sklearn", reason="compares with scikit-learn")

from sklearn.metrics import ndcg_score, roc_auc_score

from sparring.errors import InvalidArgumentError
from sparring_train.quality.rankings import (
    Jagged,
    RankingMeans,
    compute_ranking_metrics,
    grouped_auc,
)

NUM_QUERIES, NUM_ITEMS = 60, 40
KEYS = np.random.default_rng(5).permutation(10_000)[:NUM_ITEMS] - 5_000


class Case:
    """Distinct scores of all items, for queries of 1 to 15 relevant items."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.scores = random.permuted(
            np.tile(np.arange(1, NUM_ITEMS + 1, dtype=np.float32), (NUM_QUERIES, 1)), axis=1
        )
        self.is_relevant = random.random((NUM_QUERIES, NUM_ITEMS)).argsort(
            axis=1
        ) < random.integers(1, 16, (NUM_QUERIES, 1))
        self.ranked = KEYS[np.argsort(-self.scores, axis=1)]
        self.relevant = jagged([KEYS[each].tolist() for each in self.is_relevant])


def jagged(lists: list[list[int]]) -> Jagged:
    return [item for each in lists for item in each], np.cumsum([0, *map(len, lists)])


@pytest.mark.parametrize("k", [1, 3, 10, 40])
def test_ndcg_equals_scikit_learn(k: int) -> None:
    case = Case(k)
    expected = ndcg_score(case.is_relevant, case.scores, k=k)
    found = compute_ranking_metrics(case.ranked, case.relevant, k=k)
    assert found.ndcg == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("k", [1, 3, 10, 40])
def test_values_equal_torchmetrics(k: int) -> None:
    reason = "torchmetrics is not installed"
    retrieval = pytest.importorskip("torchmetrics.retrieval", reason=reason)
    import torch

    case = Case(100 + k)
    given = (torch.tensor(case.scores.ravel()), torch.tensor(case.is_relevant.ravel()))
    indexes = torch.arange(NUM_QUERIES).repeat_interleave(NUM_ITEMS)
    found = compute_ranking_metrics(case.ranked, case.relevant, k=k)
    for name, metric in {
        "recall": retrieval.RetrievalRecall,
        "ndcg": retrieval.RetrievalNormalizedDCG,
        "mrr": retrieval.RetrievalMRR,
        "hit_rate": retrieval.RetrievalHitRate,
        "precision": retrieval.RetrievalPrecision,
    }.items():
        expected = float(metric(top_k=k)(*given, indexes=indexes))
        assert getattr(found, name) == pytest.approx(expected, rel=1e-6), name
    assert (found.num_queries, found.num_left_out) == (NUM_QUERIES, 0)


def test_values_equal_a_manual_computation() -> None:
    ranked = [[7, -1, 3], [4, 5, 6], [1, 2, 3], [9, 8, 7]]
    # The third has no relevant item; of the fourth, one is given twice, and one is only ranked
    # elsewhere.
    relevant = jagged([[3, 7], [1], [], [8, 8, 4]])
    found = compute_ranking_metrics(ranked, relevant, k=3)
    of_two = 1 + 1 / math.log2(3)
    assert found.recall == pytest.approx((1 + 0 + 1 / 2) / 3)
    assert found.ndcg == pytest.approx(((1 + 1 / 2) / of_two + 0 + 1 / math.log2(3) / of_two) / 3)
    assert found.mrr == pytest.approx((1 + 0 + 1 / 2) / 3)
    assert found.hit_rate == pytest.approx(2 / 3)
    assert found.precision == pytest.approx((2 / 3 + 0 + 1 / 3) / 3)
    assert (found.k, found.num_queries, found.num_left_out) == (3, 3, 1)


def test_unfilled_places_are_not_hits() -> None:
    relevant = jagged([[0, 5], [0]])
    found = compute_ranking_metrics([[5, 0, 0], [0, 0, 0]], relevant, k=3, counts=[1, 0])
    assert (found.recall, found.hit_rate, found.mrr) == (0.25, 0.5, 0.5)
    assert found.precision == pytest.approx(1 / 6)


def test_batches_give_the_values_of_the_whole() -> None:
    case = Case(1)
    items, offsets = case.relevant
    means = RankingMeans((5, 20))
    for begin in range(0, NUM_QUERIES, 7):
        part = np.asarray(offsets)[begin : begin + 8]
        means.update(
            case.ranked[begin : begin + 7],
            (np.asarray(items)[part[0] : part[-1]], part - part[0]),
        )
    for k in (5, 20):
        whole = compute_ranking_metrics(case.ranked, case.relevant, k=k)
        assert astuple(means.values[k]) == pytest.approx(astuple(whole))


def test_no_query_gives_nan() -> None:
    found = compute_ranking_metrics([[1, 2]], jagged([[]]), k=2)
    assert math.isnan(found.recall)
    assert math.isnan(found.ndcg)
    assert (found.num_queries, found.num_left_out) == (0, 1)
    assert RankingMeans().values[10].num_queries == 0


@pytest.mark.parametrize(
    ("ranked", "relevant", "options", "message"),
    [
        ([[1, 2, 1]], ([1], [0, 1]), {"k": 3}, "id 1 is in the ranking of query 0 twice"),
        (
            [[1, 2]],
            ([1], [0, 1]),
            {"k": 3},
            r"found int64 \(1, 2\), expected \(queries, at least 3\)",
        ),
        ([[1.5]], ([1], [0, 1]), {"k": 1}, "found float64"),
        ([[1]], ([1], [0, 1]), {"k": 0}, r"found \(0,\), expected one or more numbers"),
        ([[1]], ([1], [0, 1, 1]), {"k": 1}, "2 offsets for 1 queries"),
        ([[1]], ([1], [0, 2]), {"k": 1}, r"offsets int64 \(2,\) to 2"),
        ([[1], [2]], ([1], [0, 2, 1]), {"k": 1}, "ascending from 0"),
        ([[1]], ([0.5], [0, 1]), {"k": 1}, r"found float64 \(1,\)"),
        ([[1]], ([1], [0, 1]), {"k": 1, "counts": [1, 1]}, r"counts: found the shape \(2,\)"),
    ],
)
def test_inputs_that_do_not_match_are_rejected(
    ranked: npt.ArrayLike, relevant: Jagged, options: dict[str, int], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        compute_ranking_metrics(ranked, relevant, **options)


def test_a_rejected_batch_adds_nothing() -> None:
    means = RankingMeans((1,))
    means.update([[1]], ([1], [0, 1]))
    with pytest.raises(InvalidArgumentError):
        means.update([[1]], ([1], [0, 5]))
    assert (means.values[1].recall, means.values[1].num_queries) == (1.0, 1)


def test_grouped_auc_is_the_weighted_mean_of_scikit_learns() -> None:
    random = np.random.default_rng(2)
    groups = random.choice(np.array(["a", "b", "c", "d", "of one class"]), 500)
    scores = random.integers(0, 12, 500).astype(np.float32)  # Many are equal.
    labels = random.integers(0, 2, 500)
    labels[groups == "of one class"] = 1
    both = ["a", "b", "c", "d"]
    expected = np.average(
        [roc_auc_score(labels[groups == each], scores[groups == each]) for each in both],
        weights=[(groups == each).sum() for each in both],
    )
    found = grouped_auc(scores, labels, groups)
    assert found.value == pytest.approx(expected, abs=1e-12)
    assert (found.num_groups, found.num_left_out) == (4, 1)


def test_grouped_auc_compares_within_groups_only() -> None:
    # The user with large scores clicked less: over all users, the AUC is below a half.
    scores, labels, groups = [1, 2, 3, 10, 11, 12], [0, 1, 1, 0, 0, 1], [1, 1, 1, 2, 2, 2]
    assert grouped_auc(scores, labels, groups).value == 1.0
    assert roc_auc_score(labels, scores) < 0.7


def test_undefined_grouped_auc_is_nan() -> None:
    assert math.isnan(grouped_auc([], [], []).value)
    assert math.isnan(grouped_auc([1, 2], [1, 1], [1, 1]).value)
    assert math.isnan(grouped_auc([math.nan, 2], [0, 1], [1, 1]).value)
    for given in (([1.0], [1, 0], [1]), ([1.0], [2], [1])):
        with pytest.raises(InvalidArgumentError, match=r"expected \(n,\) for all|expected 0 or 1"):
            grouped_auc(*given)
