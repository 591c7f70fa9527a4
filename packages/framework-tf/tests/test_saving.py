"""A model that Keras saved comes back with its rows, and goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring.errors import DataError, InvalidArgumentError
from sparring_tf import Embedding, Optimizer, saved_rows

IDS = np.arange(20, dtype=np.int64) * 10**15 - 7
TARGETS = (np.arange(20) % 3).astype(np.float32)[:, None]


def model_of(sparse: Any, **options: Any) -> Any:
    layers = [keras.Input((), dtype="int64"), Embedding(4, name="rows"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(optimizer=Optimizer(model, sparse, **options), loss="mse")
    return model


@pytest.mark.parametrize("kind", ["update method", "native optimizer"])
def test_a_loaded_model_predicts_and_goes_on_as_the_saved_one(kind: str, tmp_path: Path) -> None:
    if kind == "update method":
        model = model_of("adagrad", learning_rate=0.1, dense=keras.optimizers.Adam(0.01))
    else:
        model = model_of(keras.optimizers.Adam(0.05))
    model.fit(IDS, TARGETS, epochs=3, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    every = np.concatenate([IDS, [999]])
    assert np.array_equal(loaded.predict(every, verbose=0), model.predict(every, verbose=0))
    for each in (model, loaded):
        each.fit(IDS, TARGETS, shuffle=False, epochs=2, verbose=0)
    np.testing.assert_allclose(
        loaded.predict(every, verbose=0), model.predict(every, verbose=0), atol=1e-6
    )


def test_rows_go_on_with_the_optimizer_that_they_had(tmp_path: Path) -> None:
    model = model_of(keras.optimizers.Adam(0.05))
    model.fit(IDS, TARGETS, verbose=0)
    model.save(tmp_path / "model.keras")
    plain = keras.models.load_model(tmp_path / "model.keras", compile=False)
    assert np.array_equal(plain.predict(IDS, verbose=0), model.predict(IDS, verbose=0))
    with pytest.raises(InvalidArgumentError, match="state of Adam"):
        Optimizer(plain, keras.optimizers.Ftrl())
    Optimizer(plain, keras.optimizers.Adam())


def test_a_file_without_the_rows_is_refused(tmp_path: Path) -> None:
    layer = Embedding(4, storage="memory", name="rows")
    layer.save_assets(str(tmp_path))
    (tmp_path / "rows.keys.npy").unlink()
    with pytest.raises(DataError, match="lacks the rows of table 'rows'"):
        layer.load_assets(str(tmp_path))


def test_rows_of_another_dim_are_refused(tmp_path: Path) -> None:
    Embedding(8, storage="memory", name="rows").save_assets(str(tmp_path))
    with pytest.raises(InvalidArgumentError, match="dim 8, the layer's table 4"):
        Embedding(4, storage="memory", name="rows").load_assets(str(tmp_path))


def test_more_rows_than_a_file_holds_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(keras.optimizers.SGD(0.1))
    model.fit(IDS, TARGETS, verbose=0)
    monkeypatch.setattr(saved_rows, "MOST_BYTES", 100)
    with pytest.raises(Exception, match="a Keras file holds up to 100"):
        model.save(tmp_path / "model.keras")
