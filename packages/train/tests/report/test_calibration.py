"""Groups of predictions for the calibration plot have exact means."""

from __future__ import annotations

import numpy as np
import pytest

from sparring_train.quality.calibration import CalibrationCounts


def test_groups_have_exact_means_and_similar_sizes() -> None:
    random = np.random.default_rng(3)
    rates = random.beta(1, 20, 40_000)
    predictions, labels = (rates * 0.5).astype(np.float32), random.random(40_000) < rates
    counts = CalibrationCounts()
    for part in np.array_split(np.arange(40_000), 7):
        counts.update(predictions[part], labels[part].astype(np.float32))
    groups = counts.groups(20)
    sizes = np.array([each.num_samples for each in groups])
    assert len(groups) == 20
    assert sizes.sum() == 40_000
    assert sizes.min() > 1500
    assert sizes.max() < 2500
    predicted = np.array([each.predicted for each in groups])
    observed = np.array([each.observed for each in groups])
    assert (np.diff(predicted) > 0).all()
    assert np.average(predicted, weights=sizes) == pytest.approx(predictions.mean(), rel=1e-5)
    assert np.average(observed, weights=sizes) == pytest.approx(labels.mean())
    # The predictions are half of the rates.
    assert observed[-5:] == pytest.approx(2 * predicted[-5:], rel=0.2)


def test_extreme_predictions_are_counted_and_nan_is_left_out() -> None:
    counts = CalibrationCounts()
    counts.update(np.array([0.0, 1.0, np.nan, 1.0]), np.array([0.0, 1.0, 1.0, 0.0]))
    found = [(each.num_samples, each.predicted, each.observed) for each in counts.groups()]
    assert found == [(1, 0.0, 0.0), (2, 1.0, 0.5)]
    assert CalibrationCounts().groups() == []
