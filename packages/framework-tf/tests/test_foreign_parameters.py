"""Every parameter with a name of Keras or keras-rs has an effect, or raises if it is not default.

The parameters are read from the signatures: a new one without an entry here fails.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

import sparring
from sparring import StepContainer
from sparring.errors import CapacityError, InvalidArgumentError, SparringError, UnsupportedError
from sparring_tf import (
    DistributedEmbedding,
    Embedding,
    EmbeddingBag,
    EmbeddingCollection,
    FeatureConfig,
    Optimizer,
    TableConfig,
)
from sparring_tf.layers.keras_names import _REMEDIES

pytestmark = pytest.mark.filterwarnings("ignore:input_dim")

Make = Callable[..., Any]
"""Creates a layer with the settings of a test, which replace defaults."""
Check = Callable[[Make], None]


def of_table(**settings: Any) -> Any:
    table = TableConfig(**{"name": "table", "embedding_dim": 4, "storage": "memory", **settings})
    return DistributedEmbedding(FeatureConfig("feature", table))


def of_kind(kind: Any) -> Make:
    def make(**settings: Any) -> Any:
        dims = {"embedding_dim", "output_dim"} & settings.keys()
        default = {} if dims else {"embedding_dim": 4}
        return kind(**{"name": "table", "storage": "memory", **default, **settings})

    return make


def rows(layer: Any, ids: Any = (1, 2, 3)) -> Any:
    """Returns one embedding per id, ``(n, dim)``."""
    return np.asarray(layer(tf.constant(ids, tf.int64)))


def train(layer: Any, ids: Any = (1, 2, 3), optimizer: Any = None, gradient: float = 1.0) -> Any:
    """One step with equal gradients; returns the optimizer."""
    optimizer = optimizer or Optimizer(layer, keras.optimizers.SGD(1.0))
    with tf.GradientTape() as tape:
        loss = gradient * tf.reduce_sum(layer(tf.constant(ids, tf.int64)))
    variables = layer.trainable_variables
    optimizer.apply(tape.gradient(loss, variables), variables)
    return optimizer


# ---- effects of parameters


def rejects(*values: Any, name: str) -> Check:
    def check(make: Make) -> None:
        for value in values:
            with pytest.raises(SparringError):
                make(**{name: value})

    return check


def changes_initial_rows(name: str, *values: Any) -> Check:
    def check(make: Make) -> None:
        first, second = (rows(make(**{name: value})) for value in values)
        assert not np.array_equal(first, second)

    return check


def sets_rows(name: str) -> Check:
    def check(make: Make) -> None:
        assert (rows(make(**{name: keras.initializers.Constant(3.0)})) == 3).all()

    return check


def sets_dim(name: str) -> Check:
    def check(make: Make) -> None:
        assert rows(make(**{name: 7})).shape == (3, 7)

    return check


def rounds_rows(name: str) -> Check:
    def check(make: Make) -> None:
        found = rows(make(**{name: "float16", "initializer": sparring.Constant(1 / 3)}))
        assert (found == np.float32(np.float16(1 / 3))).all()

    return check


def bounds_rows(**settings: Any) -> Check:
    def check(make: Make) -> None:
        layer = make(**settings)
        with pytest.raises(CapacityError):
            train(layer, range(1000))
        train(make(), range(1000))

    return check


def check_admission(make: Make) -> None:
    layer = make(admission={"kind": "probability", "p": 0})
    assert train(layer).container.num_rows("table") == 0


def check_expiry(make: Make) -> None:
    layer = make(expire={"after_steps": 1})
    optimizer = train(layer, [1])
    for _ in range(20):
        train(layer, [2], optimizer)
    assert optimizer.container.num_rows("table") == 1


def check_placement(make: Make) -> None:
    kept = {}
    for placement in ("replicated", "sharded", "auto", "default_device"):
        layer = make(placement=placement)
        kept[placement] = train(layer).container.tables["table"].placement
    # keras-rs' values without a SparseCore: rows are sharded over the ranks.
    assert kept == {
        "replicated": "replicated",
        **dict.fromkeys(("sharded", "auto", "default_device"), "sharded"),
    }
    with pytest.raises(
        UnsupportedError, match=r"sparsecore.*SparseCore of a TPU.*placement='auto'"
    ):
        make(placement="sparsecore")
    with pytest.raises(InvalidArgumentError, match=r"placement of table 'table'.*found 'gpu'"):
        make(placement="gpu")


def check_storage(make: Make) -> None:
    kinds = {
        name: type(train(make(storage=name)).container.storage("table"))
        for name in ("memory", "hkv")
    }
    assert kinds["memory"] is not kinds["hkv"]


def check_combiner(make: Make) -> None:
    bag = tf.constant([[1, 2, 3, 4]], tf.int64)
    found = {name: np.asarray(make(combiner=name)(bag)) for name in ("sum", "mean", "sqrtn")}
    np.testing.assert_allclose(found["sum"], 4 * found["mean"], rtol=1e-5)
    np.testing.assert_allclose(found["sum"], 2 * found["sqrtn"], rtol=1e-5)
    with pytest.raises(InvalidArgumentError, match="combiner"):
        make(combiner="max")


def check_container(make: Make) -> None:
    with StepContainer() as container:
        assert train(make(container=container)).container is container


def check_padding(**settings: Any) -> Check:
    def check(make: Make) -> None:
        layer = make(**settings)
        assert not rows(layer, [0]).any()
        assert layer.compute_mask(tf.constant([0, 1], tf.int64)).numpy().tolist() == [False, True]
        assert train(layer, [0, 1]).container.num_rows("table") == 1

    return check


SHARED: dict[str, Check] = {
    "name": changes_initial_rows("name", "table", "other"),
    "seed": changes_initial_rows("seed", 0, 1),
    "initializer": sets_rows("initializer"),
    "vocabulary_size": bounds_rows(vocabulary_size=500),
    "admission": check_admission,
    "expire": check_expiry,
    "placement": check_placement,
    "storage": check_storage,
}
OF_TABLE: dict[str, Check] = {
    **SHARED,
    "embedding_dim": sets_dim("embedding_dim"),
    "optimizer": rejects("adam", keras.optimizers.SGD(), name="optimizer"),
    "combiner": check_combiner,
    "max_ids_per_partition": rejects(255, 10_000, None, name="max_ids_per_partition"),
    "max_unique_ids_per_partition": rejects(255, 10_000, name="max_unique_ids_per_partition"),
    "dtype": rounds_rows("dtype"),
}
OF_LAYERS: dict[str, Check] = {
    **{name: check for name, check in SHARED.items() if name != "name"},
    "embedding_dim": sets_dim("embedding_dim"),
    "output_dim": sets_dim("output_dim"),
    "input_dim": bounds_rows(input_dim=500, output_dim=4),
    "embeddings_initializer": sets_rows("embeddings_initializer"),
    "table_dtype": rounds_rows("table_dtype"),
    "container": check_container,
}
OF_EMBEDDING = {
    **OF_LAYERS,
    "mask_zero": check_padding(mask_zero=True),
    "padding_id": check_padding(padding_id=0),
}
OF_BAG = {**OF_LAYERS, "combiner": check_combiner}
CHECKS: dict[str, tuple[Any, Make, dict[str, Check]]] = {
    "TableConfig": (TableConfig, of_table, OF_TABLE),
    "Embedding": (Embedding, of_kind(Embedding), OF_EMBEDDING),
    "EmbeddingBag": (EmbeddingBag, of_kind(EmbeddingBag), OF_BAG),
}


def parameters(callable_: Any) -> dict[str, Any]:
    """Name → default of the parameters of a class, without ``**options``."""
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    found = list(inspect.signature(callable_.__init__).parameters.values())[1:]
    return {each.name: each.default for each in found if each.kind not in kinds}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, (_, _, own) in CHECKS.items() for name in own]
)
def test_a_parameter_has_an_effect_or_raises(kind: str, name: str) -> None:
    _, make, checks = CHECKS[kind]
    checks[name](make)


@pytest.mark.parametrize("kind", CHECKS)
def test_every_parameter_has_a_check(kind: str) -> None:
    made, _, checks = CHECKS[kind]
    assert parameters(made).keys() == checks.keys()


# ---- features and collections


def feature(**settings: Any) -> FeatureConfig:
    table = TableConfig("table", embedding_dim=4, storage="memory")
    return FeatureConfig(**{"name": "feature", "table": table, **settings})


def check_feature_name() -> None:
    layer = DistributedEmbedding(feature(name="film"))
    assert list(layer.feature_configs) == ["film"]
    with pytest.raises(InvalidArgumentError, match="feature 'film'"):
        layer(tf.constant([0.5]))


def check_feature_table() -> None:
    wide = TableConfig("wide", embedding_dim=9, storage="memory")
    assert rows(DistributedEmbedding(feature(table=wide))).shape == (3, 9)


def check_shape(name: str) -> Callable[[], None]:
    def check() -> None:
        shape = (None, 4)
        layer = DistributedEmbedding(feature(**{name: shape}))
        again = DistributedEmbedding.from_config(layer.get_config())
        assert getattr(again.feature_configs["feature"], name) == shape
        for wrong in (3, (), ("a",)):
            with pytest.raises(InvalidArgumentError, match=f"{name} must be a tuple"):
                feature(**{name: wrong})

    return check


def check_output_shape() -> None:
    check_shape("output_shape")()
    with pytest.raises(InvalidArgumentError, match=r"\(2, 5\) does not end in embedding_dim 4"):
        feature(output_shape=(2, 5))


def check_features(kind: Any) -> Callable[[], None]:
    def check() -> None:
        layer = kind({"first": feature(), "second": feature()})
        found = layer({"first": tf.constant([1]), "second": tf.constant([2])})
        assert found.keys() == {"first", "second"}

    return check


def check_collection_storage() -> None:
    table = TableConfig("table", embedding_dim=4)
    layers = [
        EmbeddingCollection({"feature": FeatureConfig("feature", table)}, storage=name)
        for name in ("memory", "hkv")
    ]
    found = {
        type(Optimizer(layer, keras.optimizers.SGD()).container.storage("table"))
        for layer in layers
        if layer({"feature": tf.constant([1])})
    }
    assert len(found) == 2


def check_collection_container() -> None:
    with StepContainer() as container:
        layer = EmbeddingCollection({"f": feature()}, container=container)
        layer({"f": tf.constant([1])})
        assert "table" in container.tables


def check_table_stacking() -> None:
    for value in (None, ["table"], [["table"]]):
        with pytest.raises(UnsupportedError, match=r"table_stacking.*has no effect.*leave it out"):
            DistributedEmbedding(feature(), table_stacking=value)


OTHER_CHECKS: dict[Any, dict[str, Callable[[], None]]] = {
    FeatureConfig: {
        "name": check_feature_name,
        "table": check_feature_table,
        "input_shape": check_shape("input_shape"),
        "output_shape": check_output_shape,
    },
    EmbeddingCollection: {
        "features": check_features(EmbeddingCollection),
        "storage": check_collection_storage,
        "container": check_collection_container,
    },
    DistributedEmbedding: {
        "feature_configs": check_features(DistributedEmbedding),
        "table_stacking": check_table_stacking,
    },
}


@pytest.mark.parametrize("kind", OTHER_CHECKS)
def test_every_parameter_of_features_and_collections_has_an_effect_or_raises(kind: Any) -> None:
    checks = OTHER_CHECKS[kind]
    assert parameters(kind).keys() == checks.keys()
    for check in checks.values():
        check()


# ---- options of Keras's and keras-rs' layers

REJECTED: dict[str, Any] = {
    "embeddings_regularizer": "l2",
    "embeddings_constraint": "non_neg",
    "weights": [np.zeros((2, 4))],
    "lora_rank": 2,
    "lora_alpha": 2.0,
    "sparse": True,
    "quantization_config": "int8",
    "mask_zero": True,
    "optimizer": "adam",
    "update_stats": True,
    "pipeline_execution_with_tensor_core": True,
    "sparse_core_embedding_config": object(),
}
KERAS_RS: dict[str, tuple[Any, dict[str, Any]]] = {
    "TableConfig": (
        TableConfig,
        {
            "name": ..., "vocabulary_size": ..., "embedding_dim": ..., "initializer": ...,
            "optimizer": ...,
            "combiner": "mean", "placement": "auto",
            "max_ids_per_partition": 256, "max_unique_ids_per_partition": 256,
        },
    ),
    "FeatureConfig": (
        FeatureConfig, {"name": ..., "table": ..., "input_shape": ..., "output_shape": ...}
    ),
    "DistributedEmbedding": (
        DistributedEmbedding,
        {"feature_configs": ..., "table_stacking": "auto", "update_stats": False},
    ),
    "EmbedReduce": (
        EmbeddingBag,
        {
            "input_dim": ..., "output_dim": ..., "embeddings_initializer": "uniform",
            "embeddings_regularizer": None, "embeddings_constraint": None, "mask_zero": False,
            "weights": None, "combiner": "mean",
        },
    ),
}  # fmt: skip
"""Class of keras-rs 0.4 → ours, its parameters and defaults; ... without a plain default."""


@pytest.mark.parametrize("kind", [Embedding, EmbeddingBag, DistributedEmbedding])
@pytest.mark.parametrize("name", _REMEDIES)
def test_options_without_a_meaning_raise_unless_they_are_the_default(kind: Any, name: str) -> None:
    make = (lambda **own: kind(feature(), **own)) if kind is DistributedEmbedding else of_kind(kind)
    if name in parameters(kind):
        return  # Embedding(mask_zero=True) has a meaning, tested above.
    with pytest.raises(UnsupportedError, match=f"{kind.__name__} does not support {name}"):
        make(**{name: REJECTED[name]})
    make(**{name: None})


def test_every_parameter_of_keras_embedding_is_known() -> None:
    theirs = parameters(keras.layers.Embedding)
    assert theirs.keys() <= parameters(Embedding).keys() | _REMEDIES.keys()
    defaults = {name: value for name, value in theirs.items() if name in _REMEDIES}
    assert set(map(bool, defaults.values())) == {False}


@pytest.mark.parametrize("name", KERAS_RS)
def test_every_parameter_of_keras_rs_is_known_with_its_default(name: str) -> None:
    ours, theirs = KERAS_RS[name]
    assert theirs.keys() <= parameters(ours).keys() | _REMEDIES.keys()
    positional = [each for each in parameters(ours) if each in theirs]
    if name in ("TableConfig", "FeatureConfig"):
        assert positional == list(theirs)
    defaults = {each: value for each, value in theirs.items() if value is not ...}
    if name == "TableConfig":
        rows(of_table(**defaults))
    elif name == "DistributedEmbedding":
        DistributedEmbedding(feature(), **defaults)
    elif name == "EmbedReduce":
        EmbeddingBag(9, 4, **defaults)


def test_keras_rs_has_the_parameters_that_are_known() -> None:
    keras_rs = pytest.importorskip(
        "keras_rs", reason="keras-rs is not installed: pip install keras-rs"
    )
    for name, (_, known) in KERAS_RS.items():
        theirs = parameters(getattr(keras_rs.layers, name))
        assert list(theirs) == list(known)
        plain = {each: value for each, value in known.items() if value is not ...}
        assert {each: theirs[each] for each in plain} == plain


def check_regularizer(make: Make) -> None:
    layer = make(activity_regularizer=keras.regularizers.L2(0.5))
    found = rows(layer)
    # As in Keras, by example.
    np.testing.assert_allclose(layer.losses[0], 0.5 * (found**2).sum() / 3, rtol=1e-5)


def check_trainable(make: Make) -> None:
    layer = make(trainable=False)
    assert not layer.trainable_variables
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([1], tf.int64)))
    assert tape.gradient(loss, layer.trainable_variables) == []


def check_layer_dtype(make: Make) -> None:
    assert rows(make(dtype="float16")).dtype == np.float16


def check_autocast(make: Make) -> None:
    # As in Keras, integers are not converted to the layer's dtype.
    for autocast in (True, False):
        layer = make(autocast=autocast)
        assert layer.autocast is autocast
        assert not np.array_equal(rows(layer, [2**24]), rows(layer, [2**24 + 1]))


OF_EVERY_LAYER: dict[str, Check] = {
    "activity_regularizer": check_regularizer,
    "trainable": check_trainable,
    "dtype": check_layer_dtype,
    "autocast": check_autocast,
    "name": changes_initial_rows("name", "table", "other"),
}


@pytest.mark.parametrize("kind", [Embedding, EmbeddingBag])
def test_every_option_of_keras_layers_has_its_effect(kind: Any) -> None:
    assert parameters(keras.layers.Layer).keys() == OF_EVERY_LAYER.keys()
    for check in OF_EVERY_LAYER.values():
        check(of_kind(kind))
