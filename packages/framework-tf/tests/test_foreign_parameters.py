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


TABLES = pytest.mark.parametrize(
    "make", [of_table, of_kind(Embedding), of_kind(EmbeddingBag)], ids=["table", "layer", "bag"]
)
LAYERS = pytest.mark.parametrize(
    "make", [of_kind(Embedding), of_kind(EmbeddingBag)], ids=["layer", "bag"]
)


@TABLES
@pytest.mark.parametrize(("name", "values"), [("name", ("table", "other")), ("seed", (0, 1))])
def test_initial_rows_depend_on(make: Make, name: str, values: tuple[Any, Any]) -> None:
    first, second = (rows(make(**{name: value})) for value in values)
    assert not np.array_equal(first, second)


@TABLES
def test_rows_start_as_given(make: Make) -> None:
    given = {"initializer": keras.initializers.Constant(3.0)}
    assert (rows(make(**given)) == 3).all()
    if make is not of_table:
        given = {"embeddings_initializer": keras.initializers.Constant(3.0)}
        assert (rows(make(**given)) == 3).all()


@TABLES
def test_the_seed_of_a_keras_initializer_is_the_seed(make: Make) -> None:
    def normal(seed: Any) -> Any:
        return keras.initializers.RandomNormal(seed=seed)

    ours = sparring.Normal(0.0, 0.05)
    found = [rows(make(initializer=normal(seed))) for seed in (None, 1, 2)]
    for seed, each in enumerate(found):
        assert np.array_equal(each, rows(make(initializer=ours, seed=seed)))
    assert np.array_equal(found[1], rows(make(initializer=normal(1), seed=1)))
    serialized = keras.initializers.serialize(normal(1))
    assert np.array_equal(found[1], rows(make(initializer=serialized)))
    with pytest.raises(
        InvalidArgumentError, match="seed=2 and an initializer of Keras with seed=1"
    ):
        make(initializer=normal(1), seed=2)
    with pytest.raises(UnsupportedError, match="SeedGenerator, but initial rows only depend"):
        make(initializer=normal(keras.random.SeedGenerator(1)))


@LAYERS
def test_rows_of_a_float64_layer_are_float64_as_in_keras(make: Make) -> None:
    for settings, expected in (
        ({"dtype": "float64"}, "float64"),
        ({"dtype": "float64", "table_dtype": "float32"}, "float32"),
        ({"dtype": "mixed_float16"}, "float32"),
        ({"dtype": "float16"}, "float32"),
    ):
        layer = make(**settings)
        assert layer.table.dtype == expected
        assert type(layer).from_config(layer.get_config()).table.dtype == expected
    with pytest.warns(UserWarning, match=r"'table' stores rows in float32.*dtype='float64'"):
        of_collection(dtype="float64")


@TABLES
def test_the_dim_is_as_given(make: Make) -> None:
    for name in ("embedding_dim",) if make is of_table else ("embedding_dim", "output_dim"):
        assert rows(make(**{name: 7})).shape == (3, 7)


@TABLES
def test_rows_are_rounded_to_the_dtype(make: Make) -> None:
    name = "dtype" if make is of_table else "table_dtype"
    found = rows(make(**{name: "float16", "initializer": sparring.Constant(1 / 3)}))
    assert (found == np.float32(np.float16(1 / 3))).all()


@TABLES
def test_the_vocabulary_bounds_the_rows(make: Make) -> None:
    given: list[dict[str, Any]] = [{"vocabulary_size": 500}]
    if make is not of_table:
        given.append({"input_dim": 500, "output_dim": 4})
    for settings in given:
        layer = make(**settings)
        with pytest.raises(CapacityError):
            train(layer, range(1000))
    train(make(), range(1000))


@TABLES
def test_ids_that_are_not_admitted_get_no_rows(make: Make) -> None:
    layer = make(admission={"kind": "probability", "p": 0})
    assert train(layer).container.num_rows("table") == 0


@TABLES
def test_rows_expire(make: Make) -> None:
    layer = make(expire={"after_steps": 1})
    optimizer = train(layer, [1])
    for _ in range(20):
        train(layer, [2], optimizer)
    assert optimizer.container.num_rows("table") == 1


@TABLES
def test_the_placement_is_as_given(make: Make) -> None:
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


@TABLES
def test_the_storage_is_as_given(make: Make) -> None:
    kinds = {
        name: type(train(make(storage=name)).container.storage("table"))
        for name in ("memory", "hkv")
    }
    assert kinds["memory"] is not kinds["hkv"]


@pytest.mark.parametrize("make", [of_table, of_kind(EmbeddingBag)], ids=["table", "bag"])
def test_bags_are_combined_as_given(make: Make) -> None:
    bag = tf.constant([[1, 2, 3, 4]], tf.int64)
    found = {name: np.asarray(make(combiner=name)(bag)) for name in ("sum", "mean", "sqrtn")}
    np.testing.assert_allclose(found["sum"], 4 * found["mean"], rtol=1e-5)
    np.testing.assert_allclose(found["sum"], 2 * found["sqrtn"], rtol=1e-5)
    with pytest.raises(InvalidArgumentError, match="combiner"):
        make(combiner="max")


@LAYERS
def test_the_container_is_as_given(make: Make) -> None:
    with StepContainer() as container:
        assert train(make(container=container)).container is container


def of_collection(**settings: Any) -> Any:
    table = TableConfig("table", embedding_dim=4, storage="memory")
    return EmbeddingCollection({"feature": FeatureConfig("feature", table)}, **settings)


@pytest.mark.parametrize(
    "make", [of_kind(Embedding), of_kind(EmbeddingBag), of_collection], ids=["layer", "bag", "all"]
)
def test_tables_of_one_name_raise_unless_one_is_shared(make: Make) -> None:
    """Layers of Keras have separate weights, whatever their names are."""
    first, second = make(), make()
    with pytest.raises(InvalidArgumentError, match=r"tables table: found two layers.*shared=True"):
        Optimizer([first, second], "sgd")
    first, second = make(shared=True), make()
    assert Optimizer([first, second], "sgd").container.tables.keys() == {"table"}
    again = type(first).from_config(first.get_config())
    assert (again.agent.shared, second.agent.shared) == (True, False)
    # Earlier releases stored no value, and shared the rows.
    config = {name: value for name, value in make().get_config().items() if name != "shared"}
    Optimizer([type(first).from_config(config) for _ in range(2)], "sgd")


def test_layers_that_were_replaced_or_copied_may_have_the_name() -> None:
    with StepContainer() as container:
        for _ in range(2):
            Optimizer(of_kind(Embedding)(container=container), "sgd")
    model = keras.Sequential([keras.Input((), dtype="int64"), of_kind(Embedding)()])
    before = Optimizer(model, "sgd")
    copies = keras.models.clone_model(model), type(model).from_config(model.get_config())
    containers = {id(Optimizer(each, "sgd").container) for each in copies}
    assert len(containers | {id(before.container)}) == 3


@pytest.mark.parametrize("settings", [{"mask_zero": True}, {"padding_id": 0}])
def test_the_padding_id_has_no_row(settings: dict[str, Any]) -> None:
    layer = of_kind(Embedding)(**settings)
    assert not rows(layer, [0]).any()
    assert layer.compute_mask(tf.constant([0, 1], tf.int64)).numpy().tolist() == [False, True]
    assert train(layer, [0, 1]).container.num_rows("table") == 1


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("optimizer", ("adam", keras.optimizers.SGD())),
        ("max_ids_per_partition", (255, 10_000, None)),
        ("max_unique_ids_per_partition", (255, 10_000)),
    ],
)
def test_settings_of_sparsecores_are_rejected(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(SparringError):
            of_table(**{name: value})


_SHARED = "name seed initializer vocabulary_size admission expire placement storage embedding_dim"
_LAYERS = _SHARED.removeprefix("name ")
_LAYERS += " output_dim input_dim embeddings_initializer table_dtype container shared"
TESTED: dict[Any, str] = {
    TableConfig: f"{_SHARED} optimizer combiner max_ids_per_partition dtype "
    "max_unique_ids_per_partition",
    Embedding: f"{_LAYERS} mask_zero padding_id",
    EmbeddingBag: f"{_LAYERS} combiner",
    FeatureConfig: "name table input_shape output_shape",
    EmbeddingCollection: "features storage container shared",
    DistributedEmbedding: "feature_configs table_stacking",
}
"""Parameters that the tests of this file cover."""


def parameters(callable_: Any) -> dict[str, Any]:
    """Name → default of the parameters of a class, without ``**options``."""
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    found = list(inspect.signature(callable_.__init__).parameters.values())[1:]
    return {each.name: each.default for each in found if each.kind not in kinds}


@pytest.mark.parametrize("kind", TESTED)
def test_every_parameter_has_a_test(kind: Any) -> None:
    assert parameters(kind).keys() == set(TESTED[kind].split())


# ---- features and collections


def feature(**settings: Any) -> FeatureConfig:
    table = TableConfig("table", embedding_dim=4, storage="memory")
    return FeatureConfig(**{"name": "feature", "table": table, **settings})


def test_effect_of_FeatureConfig_name() -> None:
    layer = DistributedEmbedding(feature(name="film"))
    assert list(layer.feature_configs) == ["film"]
    with pytest.raises(InvalidArgumentError, match="feature 'film'"):
        layer(tf.constant([0.5]))


def test_effect_of_FeatureConfig_table() -> None:
    wide = TableConfig("wide", embedding_dim=9, storage="memory")
    assert rows(DistributedEmbedding(feature(table=wide))).shape == (3, 9)


@pytest.mark.parametrize("name", ["input_shape", "output_shape"])
def test_effect_of_FeatureConfig_shapes(name: str) -> None:
    shape = (None, 4)
    layer = DistributedEmbedding(feature(**{name: shape}))
    again = DistributedEmbedding.from_config(layer.get_config())
    assert getattr(again.feature_configs["feature"], name) == shape
    for wrong in (3, (), ("a",)):
        with pytest.raises(InvalidArgumentError, match=f"{name} must be a tuple"):
            feature(**{name: wrong})
    if name == "output_shape":
        with pytest.raises(InvalidArgumentError, match=r"\(2, 5\) does not end in embedding_dim 4"):
            feature(output_shape=(2, 5))


@pytest.mark.parametrize("kind", [EmbeddingCollection, DistributedEmbedding])
def test_effect_of_features_and_feature_configs(kind: Any) -> None:
    layer = kind({"first": feature(), "second": feature()})
    found = layer({"first": tf.constant([1]), "second": tf.constant([2])})
    assert found.keys() == {"first", "second"}


def test_effect_of_EmbeddingCollection_storage() -> None:
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


def test_effect_of_EmbeddingCollection_container() -> None:
    with StepContainer() as container:
        layer = EmbeddingCollection({"f": feature()}, container=container)
        layer({"f": tf.constant([1])})
        assert "table" in container.tables


def test_effect_of_DistributedEmbedding_table_stacking() -> None:
    for value in (None, ["table"], [["table"]]):
        with pytest.raises(UnsupportedError, match=r"table_stacking.*has no effect.*leave it out"):
            DistributedEmbedding(feature(), table_stacking=value)


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


OF_EVERY_LAYER = pytest.mark.parametrize("make", [of_kind(Embedding), of_kind(EmbeddingBag)])


@OF_EVERY_LAYER
def test_effect_of_layers_activity_regularizer(make: Make) -> None:
    layer = make(activity_regularizer=keras.regularizers.L2(0.5))
    found = rows(layer)
    # As in Keras, by example.
    np.testing.assert_allclose(layer.losses[0], 0.5 * (found**2).sum() / 3, rtol=1e-5)


@OF_EVERY_LAYER
def test_effect_of_layers_trainable(make: Make) -> None:
    layer = make(trainable=False)
    assert not layer.trainable_variables
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([1], tf.int64)))
    assert tape.gradient(loss, layer.trainable_variables) == []


@OF_EVERY_LAYER
def test_effect_of_layers_dtype(make: Make) -> None:
    assert rows(make(dtype="float16")).dtype == np.float16


@OF_EVERY_LAYER
def test_effect_of_layers_autocast(make: Make) -> None:
    # As in Keras, integers are not converted to the layer's dtype.
    for autocast in (True, False):
        layer = make(autocast=autocast)
        assert layer.autocast is autocast
        assert not np.array_equal(rows(layer, [2**24]), rows(layer, [2**24 + 1]))


@OF_EVERY_LAYER
def test_effect_of_layers_name(make: Make) -> None:
    assert not np.array_equal(rows(make(name="table")), rows(make(name="other")))


def test_every_option_of_keras_layers_has_a_test() -> None:
    tests = {name for name in globals() if name.startswith("test_effect_of_layers_")}
    assert {f"test_effect_of_layers_{name}" for name in parameters(keras.layers.Layer)} == tests
