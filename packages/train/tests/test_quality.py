"""Metrics equal their definitions, counted pair by pair."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.errors import InvalidArgumentError
from sparring_train.quality.predictions import (
    CollectedPredictions,
    MeanLogLoss,
    RootMeanSquareError,
    auc,
    log_loss,
    rmse,
)

few_scores = st.sampled_from([-1.0, 0.0, 0.5, 0.75, float("inf")])
samples = st.lists(st.tuples(st.one_of(few_scores, st.floats(-9, 9)), st.integers(0, 1)))
probable = st.lists(st.tuples(st.floats(0.001, 0.999), st.integers(0, 1)), min_size=1)


def auc_by_pairs(scores: list[float], labels: list[int]) -> float:
    pairs = [
        1.0 if one > zero else 0.5 if one == zero else 0.0
        for one, label_of_one in zip(scores, labels, strict=True)
        for zero, label_of_zero in zip(scores, labels, strict=True)
        if (label_of_one, label_of_zero) == (1, 0)
    ]
    return sum(pairs) / len(pairs) if pairs else math.nan


@given(samples)
def test_auc_is_the_share_of_pairs_in_order(pairs: list[tuple[float, int]]) -> None:
    scores, labels = [score for score, _ in pairs], [label for _, label in pairs]
    expected = auc_by_pairs(scores, labels)
    assert auc(scores, labels) == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_auc_of_perfect_reversed_and_constant_scores() -> None:
    labels = [0, 0, 1, 1, 1]
    assert auc([1, 2, 3, 4, 5], labels) == 1.0
    assert auc([5, 4, 3, 2, 1], labels) == 0.0
    assert auc([7] * 5, labels) == 0.5


def test_auc_stays_exact_for_many_samples() -> None:
    count = 3_000_000  # The sum of ranks exceeds the range of float32.
    labels = np.arange(count) % 2
    assert auc(np.zeros(count, np.float32), labels) == 0.5
    assert auc(labels.astype(np.float32), labels) == 1.0


@pytest.mark.parametrize("labels", [[], [1, 1], [0]])
def test_auc_of_a_single_class_is_nan(labels: list[int]) -> None:
    scores = [0.5] * len(labels)
    assert math.isnan(auc(scores, labels))


def test_nan_scores_give_nan() -> None:
    assert math.isnan(auc([0.1, math.nan], [0, 1]))
    assert math.isnan(log_loss([0.1, math.nan], [0, 1]))
    assert math.isnan(rmse([0.1, math.nan], [0, 1]))


def test_no_samples_give_nan() -> None:
    assert math.isnan(log_loss([], []))
    assert math.isnan(rmse([], []))
    assert math.isnan(CollectedPredictions().auc())


@given(probable)
def test_log_loss_is_the_mean_of_its_definition(pairs: list[tuple[float, int]]) -> None:
    probabilities, labels = [each for each, _ in pairs], [label for _, label in pairs]
    terms = [-math.log(p if label else 1 - p) for p, label in pairs]
    assert log_loss(probabilities, labels) == pytest.approx(sum(terms) / len(terms))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_loss_of_a_certain_mistake_is_large_and_finite(dtype: type) -> None:
    epsilon = float(np.finfo(dtype).eps)
    loss = log_loss(np.array([1, 0], dtype), [0, 1])
    assert loss == pytest.approx(-math.log(epsilon))
    assert log_loss(np.array([1, 0], dtype), [1, 0]) < 1e-6


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=1))
def test_rmse_is_the_root_of_the_mean_square(pairs: list[tuple[float, float]]) -> None:
    expected = math.sqrt(sum((one - two) ** 2 for one, two in pairs) / len(pairs))
    found = rmse([one for one, _ in pairs], [two for _, two in pairs])
    assert found == pytest.approx(expected)


@given(probable, st.lists(st.integers(0, 50), max_size=4))
def test_batches_give_the_same_as_all_samples(
    pairs: list[tuple[float, int]], cuts: list[int]
) -> None:
    scores = np.array([score for score, _ in pairs])
    labels = np.array([label for _, label in pairs])
    collected, loss, error = CollectedPredictions(), MeanLogLoss(), RootMeanSquareError()
    for part in np.split(np.arange(len(pairs)), sorted(cuts)):
        for metric in (collected, loss, error):
            metric.update(scores[part], labels[part])
    assert collected.num_samples == loss.num_samples == error.num_samples == len(pairs)
    assert collected.auc() == pytest.approx(auc(scores, labels), nan_ok=True)
    assert loss.value == pytest.approx(log_loss(scores, labels))
    assert error.value == pytest.approx(rmse(scores, labels))


def test_collected_scores_are_copies() -> None:
    collected, buffer = CollectedPredictions(), np.array([0.1, 0.9])
    collected.update(buffer, [0, 1])
    buffer[:] = 0
    assert collected.auc() == 1.0


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([0.1, 0.2], [1], "shapes"),
        ([[0.1]], [[1]], "shapes"),
        ([0.1, 0.2], [0, 2], "found 2 at 1"),
        ([0.1], [math.nan], "expected 0 or 1"),
        ([1.5], [1], "from 0 to 1"),
    ],
)
def test_invalid_samples_are_rejected_and_not_counted(
    scores: list[float], labels: list[float], message: str
) -> None:
    loss = MeanLogLoss()
    with pytest.raises(InvalidArgumentError, match=message):
        loss.update(scores, labels)
    assert loss.num_samples == 0
