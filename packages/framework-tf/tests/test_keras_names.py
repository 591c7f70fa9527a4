"""Layers accept the arguments of keras.layers.Embedding and keras-rs, or name the alternative."""

from __future__ import annotations

import warnings
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

import sparring
import sparring_tf
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_tf import (
    DistributedEmbedding,
    Embedding,
    EmbeddingBag,
    FeatureConfig,
    Optimizer,
    TableConfig,
)
from sparring_tf.layers import keras_names


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
def test_names_of_keras_set_dim_and_bound(make: Any, kind: Any) -> None:
    layer = make(kind)
    assert (layer.embedding_dim, layer.table.vocabulary_size) == (16, 1000)
    again = kind.from_config(layer.get_config())
    assert (again.embedding_dim, again.table.vocabulary_size) == (16, 1000)


def test_the_meaning_of_input_dim_is_warned_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras_names, "_warned", [])
    with pytest.warns(UserWarning, match=r"input_dim=1000 .* does not limit the range of ids"):
        Embedding(1000, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Embedding(2000, 16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "number of elements of an embedding exactly once"),
        ({"embedding_dim": 4, "input_dim": 9, "output_dim": 4}, "once"),
        (
            {"output_dim": 4, "input_dim": 9, "vocabulary_size": 9},
            "two names of the maximum",
        ),
        (
            {"output_dim": 4, "mask_zero": True, "padding_id": 7},
            "mask_zero=True sets the padding id 0",
        ),
    ],
)
def test_two_names_of_one_setting_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Embedding(**options)


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("embeddings_regularizer", "l2", "activity_regularizer"),
        ("embeddings_constraint", "non_neg", "leave it out"),
        ("weights", [np.zeros((2, 4))], r"container\.assign"),
        ("embeddings_initializer", keras.initializers.HeNormal(), "sparring.Normal"),
        ("embeddings_initializer", "he_normal", "sparring.Normal"),
    ],
)
def test_unsupported_options_of_keras_name_the_alternative(
    option: str, value: Any, word: str
) -> None:
    with pytest.raises(UnsupportedError, match=word):
        Embedding(4, **{option: value})
    Embedding(4, input_length=7)


def test_initializers_of_keras_initialize_rows() -> None:
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
        "movies",
        1000,
        4,
        keras.initializers.RandomNormal(stddev=0.1),
        combiner="mean",
        placement="auto",
        max_ids_per_partition=256,
        max_unique_ids_per_partition=256,
    )
    feature = FeatureConfig("movie", table, (2, 3), (2, 4))
    assert (feature.input_shape, feature.output_shape) == ((2, 3), (2, 4))
    layer = DistributedEmbedding({"movie": feature}, table_stacking="auto", update_stats=False)
    assert layer({"movie": tf.constant([[1, 2, 3], [4, 5, 6]])})["movie"].shape == (2, 4)
    again = DistributedEmbedding.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert again.feature_configs["movie"].input_shape == (2, 3)


Pair = namedtuple("Pair", ["seen", "bought"])


@pytest.mark.parametrize(
    "structure",
    [
        lambda movie, _: movie,
        lambda movie, user: [movie, user],
        lambda movie, user: (movie, user, movie),
        lambda movie, user: {"film": {"seen": [movie, movie], "by": user}, "user": (user,)},
        lambda movie, user: {"pair": Pair(movie, user)},
    ],
    ids=["single", "list", "tuple", "nested", "named"],
)
def test_features_may_be_nested(structure: Any, tmp_path: Path) -> None:
    movies = TableConfig("movies", 1000, 4, combiner="sum")
    users = TableConfig("users", 1000, 3, combiner=None)
    features = structure(
        FeatureConfig("movie", movies, (2, 3), (2, 4)), FeatureConfig("user", users, (2,), (2, 3))
    )
    layer = DistributedEmbedding(features, name="all")
    # Ids and expected embeddings in the same structure, from layers with tables of the same names.
    bag, single = EmbeddingBag(4, combiner="sum", name="movies"), Embedding(3, name="users")
    movie_ids, user_ids = (
        tf.constant([[1, 2, 3], [4, 5, 6]], tf.int64),
        tf.constant([7, 8], tf.int64),
    )
    ids, expected = (
        structure(*own) for own in ((movie_ids, user_ids), (bag(movie_ids), single(user_ids)))
    )
    found = layer(ids)
    keras.tree.assert_same_structure(found, expected)
    keras.tree.map_structure(np.testing.assert_allclose, found, expected)
    weighted = layer(ids, structure(tf.fill([2, 3], 2.0), None))
    doubled = structure(2 * bag(movie_ids), single(user_ids))
    keras.tree.map_structure(np.testing.assert_allclose, weighted, doubled)

    inputs = structure(keras.Input((3,), dtype="int64"), keras.Input((), dtype="int64"))
    joined = keras.layers.Concatenate()(
        [*keras.tree.flatten(layer(inputs)), keras.ops.ones((2, 1))]
    )
    model = keras.Model(inputs, joined)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(ids), model(ids))
    loaded = again.get_layer("all")
    assert loaded.get_config() == layer.get_config()
    assert list(loaded.feature_configs) == list(layer.feature_configs)
    assert next(iter(loaded.feature_configs.values())).input_shape == (2, 3)


@pytest.mark.parametrize(
    ("kind", "combiner", "is_weighted"),
    [
        pytest.param(
            kind,
            combiner,
            is_weighted,
            # All pairs of two of the three.
            marks=[] if (at_kind + at_combiner + is_weighted) % 2 else pytest.mark.long,
        )
        for at_kind, kind in enumerate(("one", "dense", "ragged", "sparse"))
        for at_combiner, combiner in enumerate(("sum", "mean", "sqrtn"))
        for is_weighted in (False, True)
    ],
)
def test_nested_outputs_equal_keras_rs(kind: str, combiner: str, is_weighted: bool) -> None:
    keras_rs = pytest.importorskip(
        "keras_rs", reason="keras-rs is not installed: pip install keras-rs"
    )
    matrix = np.random.default_rng(1).standard_normal((100, 4)).astype(np.float32)
    ids, weights = np.arange(12).reshape(3, 4) * 7, np.linspace(0.5, 2, 12).reshape(3, 4)
    made = {
        "one": lambda each: tf.constant(each[:, 0]),
        "dense": tf.constant,
        "ragged": lambda each: tf.RaggedTensor.from_tensor(each, [1, 4, 2]),
        "sparse": tf.sparse.from_dense,
    }[kind]
    # Sparse tensors do not contain id 0.
    batch = {"film": [made(ids), made(ids)]}
    given = (batch, {"film": [made(weights.astype(np.float32))] * 2}) if is_weighted else (batch,)
    if kind == "sparse" and is_weighted:
        given = (
            batch,
            {"film": [tf.sparse.map_values(lambda _: 2.0 + tf.range(11.0), made(ids))] * 2},
        )

    found = []
    for package in (keras_rs.layers, sparring_tf):
        table = package.TableConfig("films", 100, 4, "zeros", combiner=combiner)
        feature = package.FeatureConfig("film", table, (3, None), (3, 4))
        layer = package.DistributedEmbedding({"film": [feature, feature]})
        if package is sparring_tf:
            optimizer = Optimizer(layer, keras.optimizers.SGD())
            optimizer.container.assign("films", np.arange(100), matrix)
        else:
            layer(*given)
            layer.variables[0].assign(matrix)
        found.append(layer(*given))
    keras.tree.map_structure(
        lambda theirs, ours: np.testing.assert_allclose(ours, theirs, rtol=1e-5), *found
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"film": [tf.constant([1])]}, "missing user, unknown nothing"),
        (
            {"film": [tf.constant([1])], "user": tf.constant([1]), "z": tf.constant([1])},
            "unknown z",
        ),
        ({"film": tf.constant([1]), "user": tf.constant([1])}, "at 'film': found .*; give a list"),
        ({"film": [], "user": tf.constant([1])}, "at 'film': missing 0"),
        ([tf.constant([1])], "found list; give a dict"),
    ],
)
def test_inputs_of_another_structure_are_rejected(values: Any, message: str) -> None:
    feature = FeatureConfig("film", TableConfig("movies", 1000, 4))
    layer = DistributedEmbedding({"film": [feature], "user": feature}, name="all")
    with pytest.raises(InvalidArgumentError, match=f"layer 'all', ids.*{message}"):
        layer(values)


def test_invalid_structures_and_equal_paths_are_rejected() -> None:
    feature = FeatureConfig("film", TableConfig("movies", 1000, 4))
    with pytest.raises(InvalidArgumentError, match=r"feature 'a\.1': must be a .*FeatureConfig"):
        DistributedEmbedding({"a": [feature, "film"]})
    with pytest.raises(InvalidArgumentError, match=r"the path 'a\.b'"):
        DistributedEmbedding({"a": {"b": feature}, "a.b": feature})
    with pytest.raises(InvalidArgumentError, match="at least one feature"):
        DistributedEmbedding([])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("embeddings", r"are not a weight.*layer\(ids\).*scan\(\)"),
        ("get_embedding_tables", r"scan\(\)"),
        ("preprocess", "call the layer with the ids"),
        ("enable_lora", "no low-rank form"),
    ],
)
def test_attributes_that_only_keras_has_are_explained(name: str, message: str) -> None:
    layer = Embedding(4)
    with pytest.raises(AttributeError, match=f"Embedding has no attribute {name}: .*{message}"):
        getattr(layer, name)
    assert not hasattr(layer, name)
    with pytest.raises(AttributeError, match="'Embedding' object has no attribute 'embedings'"):
        layer.embedings  # noqa: B018 - the access is the test


def test_attributes_of_kerass_embedding_can_be_read() -> None:
    layer = Embedding(16, vocabulary_size=1000, mask_zero=True)
    assert (layer.input_dim, layer.output_dim, layer.mask_zero) == (1000, 16, True)
    bag = EmbeddingBag(16)
    assert (bag.input_dim, bag.output_dim) == (None, 16)


@pytest.mark.parametrize("kind", [Embedding, EmbeddingBag])
def test_a_function_that_xla_compiles_is_rejected(kind: Any) -> None:
    layer, ids = kind(4, name="item"), tf.constant([1, 2], tf.int64)

    def look_up(ids: Any) -> Any:
        return tf.reduce_sum(layer(ids))

    for compiled in (look_up, tf.function(look_up)):
        # TensorFlow replaces our error by its own with the same text.
        with pytest.raises(Exception, match=r"'item'.*jit_compile=True.*leave jit_compile out"):
            tf.function(compiled, jit_compile=True)(ids)
    # The advice of the message: the rest of the model is compiled.
    rest = tf.function(lambda embeddings: tf.reduce_sum(embeddings**2), jit_compile=True)
    with tf.GradientTape() as tape:
        loss = rest(layer(ids))
    (gradient,) = tape.gradient(loss, layer.trainable_variables)
    np.testing.assert_allclose(gradient.values, 2 * layer(ids), rtol=1e-6)
    tf.function(look_up)(ids)
