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

from sparring import StepContainer
from sparring.errors import (
    CapacityError,
    DataError,
    InvalidArgumentError,
    UnsupportedError,
)
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


def test_scores_come_back_with_their_rows(tmp_path: Path) -> None:
    """What is evicted next is what would have been."""
    pytest.importorskip("sparring_hkv")

    def made() -> Any:
        return Embedding(4, storage={"backend": "hkv", "policy": "lfu"}, name="rows")

    layer, loaded = made(), made()
    optimizer = Optimizer(layer, "sgd", learning_rate=0.1)
    for ids in ([1, 2], [2, 3], [2]):
        slices = tf.IndexedSlices(tf.ones([len(ids), 4]), tf.constant(ids, tf.int64), [0, 4])
        optimizer.apply([slices], layer.trainable_variables)
    layer.save_assets(str(tmp_path))
    loaded.load_assets(str(tmp_path))

    def scores(of: Any) -> dict[int, int]:
        chunks = of.agent.container.storage("rows").scan()
        return {
            int(key): int(score)
            for each in chunks
            for key, score in zip(each.keys, each.scores, strict=True)
        }

    assert scores(loaded) == scores(layer)
    assert len(set(scores(layer).values())) > 1


@pytest.mark.parametrize("name", ["keys", "rows", "scores"])
def test_damaged_rows_leave_those_that_are_there(name: str, tmp_path: Path) -> None:
    layer = Embedding(4, storage="memory", name="rows")
    layer.agent.container.storage("rows").upsert([1, 2], np.ones((2, 4), np.float32))
    layer.save_assets(str(tmp_path))
    path = tmp_path / f"rows.{name}.npy"
    saved = np.load(path)
    damages = [saved[:1], saved.astype(np.float64)]
    if name == "keys":
        damages.append(np.array([1, 1], np.int64))
    for damaged in damages:
        np.save(path, damaged)
        with pytest.raises(DataError, match="damaged"):
            layer.load_assets(str(tmp_path))
        assert layer.num_rows() == {"rows": 2}


def test_rows_that_find_no_room_leave_those_that_are_there(tmp_path: Path) -> None:
    pytest.importorskip("sparring_hkv")
    options = {"storage": {"backend": "hkv", "policy": "none"}, "name": "rows"}
    large = Embedding(4, **options)
    large.agent.container.storage("rows").upsert(np.arange(5000), np.ones((5000, 4), np.float32))
    large.save_assets(str(tmp_path))
    small = Embedding(4, vocabulary_size=10, **options)
    small.agent.container.storage("rows").upsert([7], np.ones((1, 4), np.float32))
    with pytest.raises(CapacityError, match="5,000 rows were saved"):
        small.load_assets(str(tmp_path))
    assert small.num_rows() == {"rows": 1}


def test_rows_of_one_process_are_refused_on_several_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StepContainer() as container:
        layer = Embedding(4, storage="memory", name="rows", container=container)
        layer.save_assets(str(tmp_path))
        monkeypatch.setattr(container.collective, "world_size", 2)
        with pytest.raises(UnsupportedError, match=r"lie on 2 ranks.*container\.load"):
            layer.load_assets(str(tmp_path))
        monkeypatch.undo()
