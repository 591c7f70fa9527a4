"""Layers take the arguments of keras.layers.Embedding and keras-rs, or answer with the word to use."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

import sparring
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_tf import (
    DistributedEmbedding,
    Embedding,
    EmbeddingBag,
    FeatureConfig,
    Optimizer,
    TableConfig,
    keras_names,
)


@pytest.mark.filterwarnings("ignore:input_dim")
@pytest.mark.parametrize(
    "make",
    [
        lambda kind: kind(1000, 16),
        lambda kind: kind(1000, output_dim=16),
        lambda kind: kind(input_dim=1000, output_dim=16),
        lambda kind: kind(16, vocabulary_size=1000),
    ],
)
@pytest.mark.parametrize("kind", [Embedding, EmbeddingBag])
def test_names_of_keras_mean_dim_and_bound(make: Any, kind: Any) -> None:
    layer = make(kind)
    assert (layer.embedding_dim, layer.table.vocabulary_size) == (16, 1000)
    again = kind.from_config(layer.get_config())
    assert (again.embedding_dim, again.table.vocabulary_size) == (16, 1000)


def test_what_input_dim_means_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras_names, "_said", [])
    with pytest.warns(UserWarning, match=r"input_dim=1000 is the most rows .* no range of ids"):
        Embedding(1000, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Embedding(2000, 16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give the elements of an embedding once"),
        ({"embedding_dim": 4, "input_dim": 9, "output_dim": 4}, "once"),
        ({"output_dim": 4, "input_dim": 9, "vocabulary_size": 9}, "both say the most rows"),
        ({"output_dim": 4, "mask_zero": True, "padding_id": 7}, "mask_zero=True makes 0"),
    ],
)
def test_two_names_of_one_thing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Embedding(**options)


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("embeddings_regularizer", "l2", "activity_regularizer"),
        ("embeddings_constraint", "non_neg", "nothing"),
        ("weights", [np.zeros((2, 4))], r"container\.assign"),
        ("embeddings_initializer", keras.initializers.HeNormal(), "sparring.Normal"),
        ("embeddings_initializer", "he_normal", "sparring.Normal"),
    ],
)
def test_other_options_of_keras_are_answered(option: str, value: Any, word: str) -> None:
    with pytest.raises(UnsupportedError, match=word):
        Embedding(4, **{option: value})
    Embedding(4, input_length=7)


def test_initializers_of_keras_make_rows() -> None:
    named = [("zeros", 0.0), ("ones", 1.0), (keras.initializers.Constant(3.0), 3.0)]
    for given, expected in named:
        assert np.all(Embedding(4, embeddings_initializer=given)(tf.constant([1])) == expected)
    drawn = Embedding(4, initializer=keras.initializers.RandomNormal(stddev=2.0))
    assert drawn.table.initializer == sparring.Normal(0.0, 2.0)
    assert Embedding.from_config(drawn.get_config()).get_config() == drawn.get_config()
    assert Embedding(4, embeddings_initializer="uniform").table.initializer is None


@pytest.mark.parametrize("recurrent", [keras.layers.GRU, keras.layers.LSTM])
def test_mask_zero_hides_id_0_from_recurrent_layers_and_gives_it_no_row(recurrent: Any) -> None:
    words = Embedding(50, 4, mask_zero=True, name="words")
    model = keras.Sequential(
        [keras.Input((None,), dtype="int64"), words, recurrent(3), keras.layers.Dense(1)]
    )
    model.compile(optimizer=Optimizer(model, keras.optimizers.Adam(0.1)), loss="mse")
    short = np.array([[4, 5], [6, 7]], np.int64)
    padded = np.pad(short, ((0, 0), (0, 3)))
    model.fit(padded, np.ones((2, 1)), verbose=0)
    assert words.num_rows() == {"words": 4}
    np.testing.assert_allclose(
        model.predict(padded, verbose=0), model.predict(short, verbose=0), atol=1e-6
    )
    assert np.array_equal(words.compute_mask(padded), padded != 0)
    again = Embedding.from_config(words.get_config())
    assert again.padding_id == 0


def test_a_program_of_keras_rs_runs() -> None:
    table = TableConfig(
        name="movies",
        vocabulary_size=1000,
        embedding_dim=4,
        initializer=keras.initializers.RandomNormal(stddev=0.1),
        combiner="mean",
        placement="auto",
        max_ids_per_partition=256,
        max_unique_ids_per_partition=256,
    )
    feature = FeatureConfig(name="movie", table=table, input_shape=(2, 3), output_shape=(2, 4))
    layer = DistributedEmbedding({"movie": feature}, table_stacking="auto")
    assert layer({"movie": tf.constant([[1, 2, 3], [4, 5, 6]])})["movie"].shape == (2, 4)
    again = DistributedEmbedding.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    with pytest.raises(InvalidArgumentError, match="output_shape"):
        FeatureConfig(name="movie", table=table, output_shape=(2, 5))
    with pytest.raises(UnsupportedError, match=r"sparring_tf\.Optimizer"):
        TableConfig(name="movies", embedding_dim=4, optimizer="adagrad")
