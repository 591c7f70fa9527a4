"""A model that Keras saved is loaded with its rows, and training continues."""

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
from sparring_tf.layers.embedding import Embedding
from sparring_tf.optim.optimizer import Optimizer

IDS = np.arange(20, dtype=np.int64) * 10**15 - 7
TARGETS = (np.arange(20) % 3).astype(np.float32)[:, None]


def model_of(sparse: Any, **options: Any) -> Any:
    layers = [keras.Input((), dtype="int64"), Embedding(4, name="rows"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(optimizer=Optimizer(model, sparse, **options), loss="mse")
    return model


@pytest.mark.parametrize("kind", ["update method", "native optimizer"])
def test_a_loaded_model_predicts_and_trains_like_the_saved_one(kind: str, tmp_path: Path) -> None:
    if kind == "update method":
        model = model_of("adam", learning_rate=0.1, dense=keras.optimizers.Adam(0.01))
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


def test_rows_require_the_optimizer_that_they_were_saved_with(tmp_path: Path) -> None:
    model = model_of(keras.optimizers.Adam(0.05))
    model.fit(IDS, TARGETS, verbose=0)
    model.save(tmp_path / "model.keras")
    plain = keras.models.load_model(tmp_path / "model.keras", compile=False)
    assert np.array_equal(plain.predict(IDS, verbose=0), model.predict(IDS, verbose=0))
    with pytest.raises(InvalidArgumentError, match="state of Adam"):
        Optimizer(plain, keras.optimizers.Ftrl())
    Optimizer(plain, keras.optimizers.Adam())


def saved(layer: Any) -> dict[str, Any]:
    """Returns the content of the file that Keras would write."""
    store: dict[str, Any] = {}
    layer.save_own_variables(store)
    return store


@pytest.mark.parametrize("name", ["table_0", "keys_0"])
def test_a_file_without_the_rows_is_rejected(name: str, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    model = model_of(keras.optimizers.Adam(0.05))
    model.fit(IDS, TARGETS, verbose=0)
    model.save_weights(tmp_path / "model.weights.h5")
    with h5py.File(tmp_path / "model.weights.h5", "a") as file:
        found = [path for path in places(file) if path.endswith(f"/{name}")]
        for path in found:
            del file[path]
    assert len(found) == 1
    other = model_of(keras.optimizers.Adam(0.05))
    # Keras replaces it by a ValueError with our text.
    with pytest.raises(ValueError, match="does not contain the rows of table 'rows'"):
        other.load_weights(tmp_path / "model.weights.h5")
    layer = Embedding(4, storage="memory", name="rows")
    with pytest.raises(DataError, match="does not contain the rows of table 'rows'"):
        layer.load_own_variables({})


def places(file: Any) -> list[str]:
    """Names of all arrays in an HDF5 file."""
    found: list[str] = []
    file.visit(found.append)
    return found


def test_weights_files_contain_the_rows(tmp_path: Path) -> None:
    """As saved by callbacks such as `BackupAndRestore`."""
    model = model_of(keras.optimizers.Adam(0.05))
    model.fit(IDS, TARGETS, verbose=0)
    model.save_weights(tmp_path / "model.weights.h5")
    other = model_of(keras.optimizers.Adam(0.05))
    other.fit(IDS + 1, TARGETS, verbose=0)
    other.load_weights(tmp_path / "model.weights.h5")
    assert np.array_equal(other.predict(IDS, verbose=0), model.predict(IDS, verbose=0))
    assert other.layers[0].num_rows() == {"rows": len(IDS)}


def test_an_interrupted_fit_resumes(tmp_path: Path) -> None:
    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise KeyboardInterrupt

    def fitted(*callbacks: Any) -> Any:
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(1)
        model = model_of(keras.optimizers.Adam(0.05))
        model.fit(IDS, TARGETS, shuffle=False, epochs=4, verbose=0, callbacks=list(callbacks))
        return model.predict(IDS, verbose=0)

    def backup() -> Any:
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    with pytest.raises(KeyboardInterrupt):
        fitted(backup(), Stop())
    np.testing.assert_allclose(fitted(backup()), fitted(), atol=1e-6)


def test_rows_of_another_dim_are_rejected() -> None:
    store = saved(Embedding(8, storage="memory", name="rows"))
    with pytest.raises(InvalidArgumentError, match="dim 8, but the layer's table has 4"):
        Embedding(4, storage="memory", name="rows").load_own_variables(store)


def test_scores_are_restored_with_their_rows() -> None:
    """The rows that are evicted next are the same."""
    pytest.importorskip("sparring_hkv")

    def made() -> Any:
        return Embedding(4, storage={"backend": "hkv", "policy": "lfu"}, name="rows")

    layer, loaded = made(), made()
    optimizer = Optimizer(layer, "sgd", learning_rate=0.1)
    for ids in ([1, 2], [2, 3], [2]):
        slices = tf.IndexedSlices(tf.ones([len(ids), 4]), tf.constant(ids, tf.int64), [0, 4])
        optimizer.apply([slices], layer.trainable_variables)
    loaded.load_own_variables(saved(layer))

    def scores(of: Any) -> dict[int, int]:
        chunks = of.agent.container.storage("rows").scan()
        return {
            int(key): int(score)
            for each in chunks
            for key, score in zip(each.keys, each.scores, strict=True)
        }

    assert scores(loaded) == scores(layer)
    assert len(set(scores(layer).values())) > 1


@pytest.mark.parametrize("name", ["keys_0", "rows_0", "scores_0", "table_0"])
def test_damaged_rows_do_not_replace_existing_rows(name: str) -> None:
    layer = Embedding(4, storage="memory", name="rows")
    layer.agent.container.storage("rows").upsert([1, 2], np.ones((2, 4), np.float32))
    whole = saved(layer)
    damages = [whole[name][:1], whole[name].astype(np.float64)]
    if name == "keys_0":
        damages.append(np.array([1, 1], np.int64))
    if name == "table_0":
        damages.append(np.frombuffer(b"[]", np.uint8))
    for damaged in damages:
        with pytest.raises(DataError, match=r"damaged|lacks"):
            layer.load_own_variables({**whole, name: damaged})
        assert layer.num_rows() == {"rows": 2}


def test_rows_beyond_the_capacity_do_not_replace_existing_rows() -> None:
    pytest.importorskip("sparring_hkv")
    options = {"storage": {"backend": "hkv", "policy": "none"}, "name": "rows"}
    large = Embedding(4, **options)
    large.agent.container.storage("rows").upsert(np.arange(5000), np.ones((5000, 4), np.float32))
    small = Embedding(4, vocabulary_size=10, **options)
    small.agent.container.storage("rows").upsert([7], np.ones((1, 4), np.float32))
    with pytest.raises(CapacityError, match="5,000 rows were saved"):
        small.load_own_variables(saved(large))
    assert small.num_rows() == {"rows": 1}


def test_rows_of_one_process_are_rejected_on_several_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with StepContainer() as container:
        layer = Embedding(4, storage="memory", name="rows", container=container)
        store = saved(layer)
        monkeypatch.setattr(container.collective, "world_size", 2)
        with pytest.raises(UnsupportedError, match=r"are on 2 ranks.*save_model"):
            layer.load_own_variables(store)
        monkeypatch.undo()
