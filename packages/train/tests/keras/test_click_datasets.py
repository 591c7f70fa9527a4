"""Click logs as pipelines of tf.data: the rows that core reads, in `model.fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

import sparring_tf
from sparring.errors import DataError, InvalidArgumentError
from sparring_tf import DLRM, EmbeddingCollection, FeatureConfig, TableConfig
from sparring_train.data.criteo import read_clicks
from sparring_train.data.planted_model import PlantedModel
from sparring_train.keras.click_datasets import click_dataset

from ..data.criteo_files import write_synthetic

FORMATS = ["tsv", "parquet"]


def written(folder: Path, suffix: str = "tsv") -> tuple[Path, Path]:
    return write_synthetic(folder, PlantedModel(seed=3, max_ids=200), 1000, 300, suffix)


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_dataset_has_the_rows_that_core_reads(tmp_path: Path, file_format: Any) -> None:
    path = written(tmp_path, file_format)[0]
    for part in ("all", "train", "test"):
        expected = list(read_clicks(path, 64, part=part, test_fraction=0.3, seed=5))
        dataset = click_dataset(path, 64, part=part, test_fraction=0.3, seed=5)
        # Twice: each epoch begins anew.
        for _ in range(2):
            found = list(dataset)
            assert len(found) == len(expected)
            for ((integers, ids), labels), batch in zip(found, expected, strict=True):
                assert np.array_equal(integers, batch.dense)
                assert np.array_equal(ids, batch.ids)
                assert np.array_equal(labels, batch.labels)


def test_elements_have_known_shapes_and_dtypes(tmp_path: Path) -> None:
    (integers, ids), labels = click_dataset(written(tmp_path)[0], 64).element_spec
    assert integers == tf.TensorSpec([None, 13], tf.float32)
    assert ids == tf.TensorSpec([None, 26], tf.int64)
    assert labels == tf.TensorSpec([None], tf.float32)


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_model_is_fitted_from_a_log(tmp_path: Path, file_format: Any) -> None:
    train_path, test_path = written(tmp_path, file_format)
    tables = [TableConfig(name=f"feature_{number}", embedding_dim=4) for number in range(26)]
    features = {table.name: FeatureConfig(name=table.name, table=table) for table in tables}
    model = DLRM(EmbeddingCollection(features), 13, [8, 4], [8, 1])
    rates = {"learning_rate": 0.1, "dense": keras.optimizers.Adam(0.01)}
    model.compile(
        optimizer=sparring_tf.Optimizer(model, "adagrad", **rates),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
    )
    history = model.fit(click_dataset(train_path, 50), epochs=3, verbose=0)
    losses = history.history["loss"]
    assert losses[-1] < losses[0]
    assert sum(model.embedding_collection.num_rows().values()) > 1000
    assert np.isfinite(model.evaluate(click_dataset(test_path, 50), verbose=0))


def test_bad_arguments_and_files_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        click_dataset(tmp_path / "missing.tsv", 64)
    path = written(tmp_path)[0]
    with pytest.raises(InvalidArgumentError, match="batch_size: found 0"):
        click_dataset(path, 0)
    with pytest.raises(InvalidArgumentError, match="test_fraction"):
        click_dataset(path, 64, test_fraction=1.5)


def test_a_malformed_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.tsv"
    path.write_text("1\tnot a log\n")
    with pytest.raises(tf.errors.OpError, match=r"DataError: .*log\.tsv"):
        list(click_dataset(path, 64))
