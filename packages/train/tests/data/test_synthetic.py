"""The synthetic click log: deterministic, skewed, and with a correct value of the best result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparring.errors import InvalidArgumentError
from sparring_train.columns import ColumnBatch
from sparring_train.config.sections.data import SyntheticCriteoData
from sparring_train.config.sections.table import TableData
from sparring_train.data import clicks
from sparring_train.data.batches import ClickBatch
from sparring_train.data.click_log import ClickLog
from sparring_train.data.dataset import OpenRequest
from sparring_train.data.planted_model import CHUNK_ROWS, PlantedModel
from sparring_train.data.table.dataset import open_table
from sparring_train.quality.predictions import auc

from .criteo_files import click_section, synthetic_log, write_synthetic


@pytest.fixture(scope="module")
def model() -> PlantedModel:
    return PlantedModel(seed=3)


@pytest.fixture(scope="module")
def log(model: PlantedModel) -> ClickLog:
    return synthetic_log(60_000, model)


def is_equal(one: ClickLog | ClickBatch, two: ClickLog | ClickBatch) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(two, name))
        for name in ("ids", "dense", "labels")
    )


def test_the_seed_determines_everything(log: ClickLog) -> None:
    assert is_equal(synthetic_log(60_000, PlantedModel(seed=3)), log)
    assert not is_equal(synthetic_log(60_000, PlantedModel(seed=4)), log)
    synthetic_log(10, PlantedModel(seed=-(2**63)))


def test_a_longer_log_starts_with_a_shorter_one(model: PlantedModel, log: ClickLog) -> None:
    for num_rows in (1, CHUNK_ROWS, CHUNK_ROWS + 1):
        short = synthetic_log(num_rows, model)
        assert len(short) == num_rows
        assert np.array_equal(short.ids, log.ids[:num_rows])
        assert np.array_equal(short.labels, log.labels[:num_rows])


def test_train_and_test_are_different_rows(model: PlantedModel, log: ClickLog) -> None:
    test = synthetic_log(1000, model, "test")
    assert not np.array_equal(test.ids, log.ids[:1000])


def test_labels_follow_the_probabilities(log: ClickLog) -> None:
    order = np.argsort(log.probabilities)
    for part in np.array_split(order, 10):
        expected = log.probabilities[part].mean()
        deviation = (expected * (1 - expected) / len(part)) ** 0.5
        assert log.labels[part].mean() == pytest.approx(expected, abs=5 * deviation)


def best_auc(log: ClickLog) -> float:
    return auc(log.probabilities, log.labels)


def test_the_best_auc_is_far_from_chance_and_from_certainty(log: ClickLog) -> None:
    assert 0.8 < best_auc(log) < 0.87


def test_no_prediction_from_visible_data_beats_the_best(log: ClickLog) -> None:
    random = np.random.default_rng(0)
    for noise in (0.05, 0.5):
        logits = np.log(log.probabilities / (1 - log.probabilities))
        worse = logits + noise * random.normal(size=len(log))
        assert auc(worse, log.labels) < best_auc(log)


@pytest.mark.slow
def test_a_linear_model_of_popular_ids_is_close_to_the_best(
    model: PlantedModel, log: ClickLog
) -> None:
    test = synthetic_log(20_000, model, "test")
    popular = [np.unique(column, return_counts=True) for column in log.ids.T]
    popular_ids = [np.sort(ids[np.argsort(-counts)[:50]]) for ids, counts in popular]

    def columns(of: ClickLog) -> np.ndarray:  # type: ignore[type-arg]
        """(n, 26): a number for each popular id of each feature, one for all others."""
        found = []
        for feature, ids in enumerate(popular_ids):
            at = np.minimum(np.searchsorted(ids, of.ids[:, feature]), len(ids) - 1)
            found.append(np.where(ids[at] == of.ids[:, feature], at, 50) + 51 * feature)
        return np.column_stack(found)

    at, dense = columns(log), log.dense
    weights, slopes = np.zeros(26 * 51), np.zeros(13)
    squares, square_slopes = np.full(26 * 51, 1e-8), np.full(13, 1e-8)
    for _ in range(60):
        predicted = 1 / (1 + np.exp(-weights[at].sum(axis=1) - dense @ slopes))
        error = (predicted - log.labels) / len(log)
        slope = np.bincount(at.reshape(-1), np.repeat(error, 26), 26 * 51)
        squares += slope**2
        weights -= 0.2 * slope / np.sqrt(squares)
        slope = error @ dense
        square_slopes += slope**2
        slopes -= 0.05 * slope / np.sqrt(square_slopes)
    reached = auc(weights[columns(test)].sum(axis=1) + test.dense @ slopes, test.labels)
    assert best_auc(test) - 0.03 < reached < best_auc(test)


def test_ids_follow_the_requested_power_law() -> None:
    for skew in (0.8, 1.0, 1.5):
        model = PlantedModel(seed=2, skew=skew, max_ids=10_000, missing_fraction=0)
        ids = synthetic_log(100_000, model).ids[:, 2]
        counts = np.sort(np.unique(ids, return_counts=True)[1])[::-1]
        ranks = np.arange(20, 200)
        slope = np.polyfit(np.log(ranks), np.log(counts[ranks - 1]), 1)[0]
        assert slope == pytest.approx(-skew, abs=0.1)


def test_an_even_skew_draws_all_ids_equally() -> None:
    model = PlantedModel(skew=0, max_ids=100, missing_fraction=0)
    counts = np.unique(synthetic_log(100_000, model).ids[:, 2], return_counts=True)[1]
    assert len(counts) == 100
    assert counts.min() > 800


def test_cardinalities_range_from_a_handful_to_max_ids() -> None:
    model = PlantedModel(max_ids=5000, skew=0.2, missing_fraction=0)
    found = [len(np.unique(column)) for column in synthetic_log(200_000, model).ids.T]
    assert found == model.cardinalities.tolist()
    assert (min(found), max(found)) == (2, 5000)


def test_ids_are_raw_32_bit_numbers(log: ClickLog) -> None:
    present = log.ids[~log.is_missing_id]
    assert present.min() >= 0
    assert 2**32 * 0.99 < present.max() < 2**32


def test_the_share_of_missing_values_is_the_requested_share() -> None:
    for fraction in (0.0, 0.2):
        log = synthetic_log(20_000, PlantedModel(missing_fraction=fraction))
        assert (log.ids < 0).mean() == pytest.approx(fraction, rel=0.35)
        assert log.is_missing_integer.mean() == pytest.approx(fraction, rel=0.35)


@pytest.mark.parametrize("suffix", [pytest.param("tsv", marks=pytest.mark.slow), "parquet"])
def test_files_equal_the_log_in_memory(tmp_path: Path, suffix: str) -> None:
    model = PlantedModel(seed=9, missing_fraction=0.3)
    rows = (CHUNK_ROWS + 10, 500)
    _, test_path = write_synthetic(tmp_path, model, *rows, suffix)
    section = click_section(tmp_path, split={"files": test_path.name})
    data = open_table(TableData.model_validate(section), OpenRequest(1, "binary"))
    for batches, part, num_rows in zip(
        (data.batches(0), data.test_batches()), ("train", "test"), rows, strict=True
    ):
        log = synthetic_log(num_rows, model, part)  # type: ignore[arg-type]
        read = ColumnBatch.joined(list(batches))
        assert np.array_equal(np.stack([each.ids for each in read.ids.values()], axis=1), log.ids)
        assert np.array_equal(read.numbers, log.dense)
        assert np.array_equal(read.labels, log.labels)


@pytest.mark.parametrize(
    "option", [{"skew": -1}, {"skew": 5}, {"max_ids": 1}, {"missing_fraction": 0.6}]
)
def test_options_out_of_range_are_rejected(option: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(option))):
        PlantedModel(**option)  # type: ignore[arg-type]


def test_the_best_auc_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []
    monkeypatch.setattr(clicks, "auc", lambda *given: computed.append(given) or auc(*given))
    section = SyntheticCriteoData(
        kind="synthetic_criteo", samples=64, test_samples=500, batch_size=64
    )
    data = clicks.SyntheticClickDataset(section, OpenRequest(3, "binary"))
    assert not computed
    assert data.extra() == data.extra()
    assert len(computed) == 1
