"""The models equal those of PyTorch, and Keras saves them completely."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

import sparring
from sparring.errors import InvalidArgumentError
from sparring_tf import (
    DLRM,
    DeepFM,
    EmbeddingCollection,
    FeatureConfig,
    MatrixFactorization,
    Optimizer,
    TableConfig,
    TwoTower,
    gather_state,
    restore_state,
    trained_table,
)

NUMBERS = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
IDS = {"user": np.arange(8) % 3, "item": np.arange(8) * 10**12}
LABELS = (np.arange(8) % 2).astype(np.float32)


def tables(num: int = 2, dims: tuple[int, ...] = (4, 4)) -> EmbeddingCollection:
    named = list(zip(IDS, dims, strict=True))[:num]
    return EmbeddingCollection(
        {
            name: FeatureConfig(
                name=name, table=TableConfig(name=f"{name}s", embedding_dim=dim, combiner="sum")
            )
            for name, dim in named
        }
    )


MODELS = {
    "DLRM": lambda: DLRM(tables(), 3, [5, 4], [6, 1]),
    "DeepFM": lambda: DeepFM(3, tables(), 5, 6),
    "TwoTower": lambda: TwoTower(tables(), [5, 4]),
}


def inputs_of(model: Any) -> Any:
    return IDS if isinstance(model, TwoTower) else (NUMBERS, IDS)


def trained(model: Any) -> Any:
    optimizer = Optimizer(model, "adagrad", learning_rate=0.1, dense=keras.optimizers.Adam(0.01))
    if isinstance(model, TwoTower):
        model.compile(optimizer=optimizer, loss=["mse", "mse"])
        zeros = np.zeros((8, 4), np.float32)
        model.fit(IDS, (zeros, zeros), verbose=0)
    else:
        is_logits = isinstance(model, DLRM)
        model.compile(optimizer=optimizer, loss=keras.losses.BinaryCrossentropy(is_logits))
        model.fit((NUMBERS, IDS), LABELS, verbose=0)
    return model


@pytest.mark.parametrize("kind", MODELS)
def test_a_trained_model_is_saved_and_loaded_completely(kind: str, tmp_path: Path) -> None:
    model = trained(MODELS[kind]())
    assert model.embedding_collection.num_rows() == {"users": 3, "items": 8}
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for ours, theirs in zip(
        tf.nest.flatten(loaded(inputs_of(model))),
        tf.nest.flatten(model(inputs_of(model))),
        strict=True,
    ):
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_computes_the_same_as_in_torch(kind: str) -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("sparring_torch.models")
    from sparring_torch import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

    collection = EmbeddingBagCollection(
        [
            EmbeddingBagConfig(
                name=f"{name}s",
                embedding_dim=4,
                feature_names=[name],
                initializer=sparring.Uniform(-0.05, 0.05),
            )
            for name in IDS
        ]
    )
    ours = MODELS[kind]()
    other = {
        "DLRM": lambda: theirs.DLRM(collection, 3, [5, 4], [6, 1]),
        "DeepFM": lambda: theirs.DeepFM(3, collection, 5, 6),
        "TwoTower": lambda: theirs.TwoTower(collection, [5, 4]),
    }[kind]()
    values = [each.detach().numpy() for each in other.parameters() if each.numel()]
    dense = [each for each in ours.trainable_variables if trained_table(each) is None]
    for variable, value in zip(dense, values, strict=True):
        variable.assign(value.T)
    ids = torch.from_numpy(np.concatenate(list(IDS.values())))
    features = KeyedJaggedTensor(list(IDS), ids, lengths=torch.ones(16, dtype=torch.int64))
    given = (features,) if kind == "TwoTower" else (torch.from_numpy(NUMBERS), features)
    with torch.no_grad():
        expected = tf.nest.flatten(other(*given))
    for found, each in zip(tf.nest.flatten(ours(inputs_of(ours))), expected, strict=True):
        np.testing.assert_allclose(found, each, atol=1e-6)


def test_inconsistent_tables_are_rejected() -> None:
    unequal = tables(dims=(4, 5))
    with pytest.raises(InvalidArgumentError, match=r"the same embedding_dim, found \[4, 5\]"):
        DLRM(unequal, 3, [5, 4], [1])
    with pytest.raises(InvalidArgumentError, match=r"the same embedding_dim, found \[4, 5\]"):
        DeepFM(3, unequal, 5, 6)
    with pytest.raises(InvalidArgumentError, match="must end in 4"):
        DLRM(tables(), 3, [5], [1])
    with pytest.raises(InvalidArgumentError, match="two features"):
        TwoTower(tables(1), [4])


def test_ids_may_come_in_columns() -> None:
    model = MODELS["DLRM"]()
    columns = np.stack(list(IDS.values()), axis=1)
    assert np.array_equal(model((NUMBERS, columns)), model((NUMBERS, IDS)))


def test_the_mean_of_ratings_is_saved_with_the_model() -> None:
    def made(mean: float) -> Any:
        users, items = (sparring.TableConfig(name, 3) for name in ("user", "item"))
        return MatrixFactorization(users, items, mean=mean)

    state, model = gather_state(model=made(3.5)), made(0.0)
    restore_state(state, model=model)
    np.testing.assert_allclose(model((IDS["user"], IDS["item"])), 3.5, atol=0.2)
    restore_state(sparring.State({"model": []}), model=model)  # from before it was saved
    np.testing.assert_allclose(model((IDS["user"], IDS["item"])), 3.5, atol=0.2)
