"""`distribute`: Keras models give the same results; replaced, kept and rejected layers; `restore`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras
from keras import layers
from keras.optimizers import SGD, Adagrad

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_tf import Embedding, distribute, distribution_report, restore, trained_table
from sparring_tf.transpiler.replaced_embedding import ReplacedEmbedding

ROWS, DIM, STEPS = 30, 4, 20


def sequential() -> Any:
    return keras.Sequential(
        [keras.Input((3,), dtype="int64"), layers.Embedding(ROWS, DIM), layers.Flatten(), dense()]
    )


def unbuilt() -> Any:
    return keras.Sequential([layers.Embedding(ROWS, DIM), layers.Flatten(), dense()])


def regularized() -> Any:
    score = layers.Dense(1, kernel_regularizer=keras.regularizers.L2(0.1))
    return keras.Sequential(
        [keras.Input((3,), dtype="int64"), layers.Embedding(ROWS, DIM), layers.Flatten(), score]
    )


def dense() -> Any:
    return layers.Dense(1)


def functional() -> Any:
    user, items = keras.Input((), dtype="int32"), keras.Input((4,), dtype="int64")
    joined = layers.Concatenate()(
        [
            layers.Embedding(ROWS, DIM, name="user")(user),
            layers.GlobalAveragePooling1D()(layers.Embedding(ROWS, DIM, name="items")(items)),
        ]
    )
    return keras.Model([user, items], dense()(layers.Dense(6, activation="relu")(joined)))


def shared() -> Any:
    left, right = keras.Input((3,), dtype="int64"), keras.Input((3,), dtype="int64")
    embedding = layers.Embedding(ROWS, DIM)
    parts = [layers.Flatten()(embedding(each)) for each in (left, right)]
    return keras.Model([left, right], dense()(layers.Multiply()(parts)))


def masked() -> Any:
    words = keras.Input((5,), dtype="int64")
    found = layers.Embedding(ROWS, DIM, mask_zero=True)(words)
    return keras.Model(words, dense()(layers.LSTM(5)(found)))


def unheeded_mask() -> Any:
    words = keras.Input((5,), dtype="int64")
    found = layers.Flatten()(layers.Embedding(ROWS, DIM, mask_zero=True)(words))
    return keras.Model(words, dense()(found))


def nested() -> Any:
    words = keras.Input((3,), dtype="int64")
    inner = keras.Sequential([layers.Embedding(ROWS, DIM, name="deep"), layers.Flatten()])
    return keras.Model(words, dense()(inner(words)))


@keras.saving.register_keras_serializable("sparring_tests")
class Pair(layers.Layer):
    """A custom layer with a list and a dict of embeddings."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.tables = [layers.Embedding(ROWS, DIM, name=f"table_{each}") for each in range(2)]
        self.named = {"bias": layers.Embedding(ROWS, 1, name="bias")}

    def call(self, ids: Any) -> Any:
        product = self.tables[0](ids) * self.tables[1](ids)
        return keras.ops.concatenate([product, self.named["bias"](ids)], -1)


class Subclassed(keras.Model):
    """Embeddings as attributes and inside a nested layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = layers.Embedding(ROWS, DIM, name="words")
        self.pair = Pair()
        self.score = dense()

    def call(self, ids: Any) -> Any:
        found = keras.ops.concatenate([self.words(ids), self.pair(ids)], -1)
        return self.score(keras.ops.mean(found, axis=1))


def in_a_graph() -> Any:
    words = keras.Input((3,), dtype="int64")
    return keras.Model(words, dense()(layers.Flatten()(Pair()(words))))


def ids(generator: Any, *shape: int) -> Any:
    return generator.integers(0, ROWS, shape)


def one(*shape: int) -> Callable[[Any], Any]:
    return lambda generator: ids(generator, 6, *shape)


def two(*shapes: tuple[int, ...]) -> Callable[[Any], Any]:
    return lambda generator: [ids(generator, 6, *shape) for shape in shapes]


PROGRAMS: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[Any], Any]]] = {
    "sequential": (sequential, lambda: SGD(0.5), one(3)),
    "sequential, built by its first batch": (unbuilt, lambda: SGD(0.5), one(3)),
    "regularized kernel": (regularized, lambda: SGD(0.5), one(3)),
    "functional": (functional, lambda: SGD(0.5), two((), (4,))),
    "shared": (shared, lambda: SGD(0.5), two((3,), (3,))),
    "masked LSTM": (masked, lambda: SGD(0.5), one(5)),
    "mask that nothing heeds": (unheeded_mask, lambda: SGD(0.5), one(5)),
    "nested": (nested, lambda: SGD(0.5), one(3)),
    "subclassed": (Subclassed, lambda: SGD(0.5), one(3)),
    "layer of one's own": (in_a_graph, lambda: SGD(0.5), one(3)),
    "schedule": (
        sequential,
        lambda: SGD(keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.9)),
        one(3),
    ),
    "accumulated": (functional, lambda: SGD(0.5, gradient_accumulation_steps=2), two((), (4,))),
}


def batches(make: Callable[[Any], Any]) -> list[tuple[Any, Any]]:
    generator = np.random.default_rng(7)
    return [(make(generator), generator.random((6, 1), np.float32)) for _ in range(STEPS)]


def train(model: Any, optimizer: Any, given: list[tuple[Any, Any]]) -> None:
    model.compile(optimizer=optimizer, loss="mse")
    for inputs, target in given:
        model.train_on_batch(inputs, target)


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_the_program_gives_the_same_results(name: str) -> None:
    make, optimizer, batch = PROGRAMS[name]
    check_same(make, optimizer, batches(batch))


def test_adagrad_gives_the_same_results_if_no_batch_repeats_an_id() -> None:
    generator = np.random.default_rng(7)
    given = [
        (generator.permutation(ROWS)[:18].reshape(6, 3), generator.random((6, 1), np.float32))
        for _ in range(STEPS)
    ]
    check_same(sequential, lambda: Adagrad(0.1), given, semantics="lazy")


def check_same(make: Any, optimizer: Any, given: list[tuple[Any, Any]], **options: Any) -> None:
    """Raises unless all weights end within 1e-6, relative to the largest of each."""
    made = []
    for _ in range(2):
        keras.utils.clear_session(free_memory=False)  # so that layers get the same names
        made.append(make())
        made[-1](given[0][0])
    original, model = made
    model.set_weights(original.get_weights())
    before = by_name(original)
    train(original, optimizer(), given)

    model, ours = distribute(model, optimizer(), **options)
    kinds = {type(each) for each in model._flatten_layers()}
    assert ReplacedEmbedding in kinds
    assert layers.Embedding not in kinds
    train(model, ours, given)
    restored = restore(model)
    restored(given[0][0])

    found, expected = by_name(restored), by_name(original)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        scale = np.abs(values).max()
        assert np.abs(found[name] - values).max() <= 1e-6 * scale, name
        assert np.abs(before[name] - values).max() > 1e-3 * scale, name


def by_name(model: Any) -> dict[str, Any]:
    """Values of weights by the names of layer and variable."""
    named = {"/".join(each.path.split("/")[-2:]): each.numpy().copy() for each in model.weights}
    assert len(named) == len(model.weights)
    return named


class WeightInList(keras.Model):
    """A list contains the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.words = layers.Embedding(ROWS, DIM)
        self.words.build()
        self.weights_of = [self.words.embeddings]

    def call(self, ids: Any) -> Any:
        return keras.ops.matmul(self.words(ids), keras.ops.transpose(self.weights_of[0]))


class Doubled(layers.Embedding):
    """A subclass with another `call`."""

    def call(self, inputs: Any) -> Any:
        return 2 * super().call(inputs)


def with_layer(layer: Any) -> Any:
    return keras.Sequential([keras.Input((3,), dtype="int64"), layer, layers.Flatten(), dense()])


def compiled() -> Any:
    model = sequential()
    model.compile("sgd", "mse")
    return model


UNSUPPORTED: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "list of weights": (WeightInList, lambda: SGD(0.1), "has the same variable"),
    "call": (lambda: with_layer(Doubled(ROWS, DIM)), lambda: SGD(0.1), "Doubled defines call"),
    "regularizer": (
        lambda: with_layer(layers.Embedding(ROWS, DIM, embeddings_regularizer="l2")),
        lambda: SGD(0.1),
        "embeddings_regularizer depends on the whole weight",
    ),
    "constraint": (
        lambda: with_layer(layers.Embedding(ROWS, DIM, embeddings_constraint="max_norm")),
        lambda: SGD(0.1),
        "embeddings_constraint depends on the whole weight",
    ),
    "compiled": (compiled, lambda: SGD(0.1), "compile the model that distribute returns"),
    "nothing": (lambda: with_layer(layers.Dense(3)), lambda: SGD(0.1), "no embeddings"),
    "Adam": (sequential, keras.optimizers.Adam, "Adam changes rows"),
    "momentum": (sequential, lambda: SGD(0.1, momentum=0.9), "SGD with momentum=0.9 changes rows"),
    "decay": (sequential, lambda: Adagrad(0.1, weight_decay=0.1), "Adagrad with weight_decay=0.1"),
    "Adagrad": (sequential, lambda: Adagrad(0.1), "squares the gradient of each occurrence"),
    "clipvalue": (sequential, lambda: SGD(0.1, clipvalue=0.5), "clipvalue=0.5 clips the gradient"),
    "norm": (sequential, lambda: SGD(0.1, clipnorm=1.0), "clipnorm depends on all variables"),
}


@pytest.mark.parametrize("name", list(UNSUPPORTED))
def test_unsupported_models_are_rejected_with_the_reason(name: str) -> None:
    make, optimizer, reason = UNSUPPORTED[name]
    model, made = make(), optimizer()
    before = list(model._flatten_layers())
    report = distribution_report(model, made)
    with pytest.raises(UnsupportedError, match="nothing was changed") as caught:
        distribute(model, made)
    assert caught.value.report == report
    assert [each for each in report.unsupported if reason in each.reason], str(report)
    assert reason in str(caught.value)
    assert list(model._flatten_layers()) == before


def logits(words: Any, hidden: Any) -> Any:
    return keras.ops.matmul(hidden, keras.ops.transpose(words.embeddings))


class Output(layers.Layer):
    """A layer that is given an embedding."""

    def call(self, hidden: Any, words: Any) -> Any:
        return logits(words, hidden)


class Unseen(keras.Model):
    """Uses the weight in the way that `kind` specifies."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.words = words = layers.Embedding(ROWS, DIM, name="words")
        words.build()
        self.output_layer, weight = Output(), words.embeddings
        name = "words"
        self.project = {
            "attribute": self.logits,
            "function": lambda hidden: logits(self.words, hidden),
            "layer": lambda hidden: self.output_layer(hidden, words=self.words),
            "computed name": lambda hidden: logits(getattr(self, name), hidden),
            "layer from before": lambda hidden: logits(words, hidden),
            "weight from before": lambda hidden: keras.ops.matmul(hidden, weight[:DIM]),
        }[kind]

    def logits(self, hidden: Any) -> Any:
        return logits(self.words, hidden)

    def call(self, ids: Any) -> Any:
        return self.project(self.words(ids))


@pytest.mark.parametrize(
    "kind",
    ["attribute", "function", "layer", "computed name", "layer from before", "weight from before"],
)
@pytest.mark.parametrize("is_eager", [True, False])
def test_a_use_of_the_weight_raises_when_it_runs(kind: str, is_eager: bool) -> None:
    model, optimizer = distribute(Unseen(kind), SGD(0.1))
    model.compile(optimizer=optimizer, loss="mse", run_eagerly=is_eager)
    with pytest.raises((AttributeError, UnsupportedError)) as caught:
        model.train_on_batch(np.ones((2, 3)), np.ones((2, 3, 1)))
    assert "words: distribute moved its weight into table words" in str(caught.value)
    assert "keep=['words']" in str(caught.value)


def test_outdated_weights_of_a_replaced_layer_are_not_returned() -> None:
    words = layers.Embedding(ROWS, DIM, name="words")
    model, optimizer = distribute(with_layer(words), SGD(0.1))
    model.compile(optimizer=optimizer, loss=lambda *_: tf.nn.l2_loss(words.embeddings))
    for use in (words.get_weights, lambda: model.train_on_batch(np.ones((1, 3)), np.ones(1))):
        with pytest.raises(UnsupportedError, match=r"words: distribute moved its weight"):
            use()
    assert restore(model).get_layer("words").get_weights()[0].shape == (ROWS, DIM)


class Penalized(keras.Model):
    """A custom training step with a penalty."""

    def __init__(self, penalty: Any) -> None:
        super().__init__()
        self.words, self.score, self.penalty = layers.Embedding(ROWS, DIM), dense(), penalty
        self.words.build()
        self.score.build((None, DIM))

    def call(self, ids: Any) -> Any:
        return self.score(self.words(ids))

    def train_step(self, data: Any) -> Any:
        inputs, target, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(inputs, training=True) - target) ** 2)
            loss += self.penalty(self)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


PENALTIES: dict[str, Callable[[Any], Any]] = {
    "of TensorFlow": lambda model: tf.add_n([tf.nn.l2_loss(v) for v in model.trainable_variables]),
    "of Keras": lambda model: sum(keras.ops.sum(v * v) for v in model.trainable_variables),
    "norm": lambda model: sum(keras.ops.norm(v) for v in model.trainable_weights),
}


@pytest.mark.parametrize(
    ("name", "is_eager"),
    [
        # Each in a graph, and one of them also eagerly.
        pytest.param(name, is_eager, marks=pytest.mark.long if is_eager and number else [])
        for number, name in enumerate(PENALTIES)
        for is_eager in (True, False)
    ],
)
def test_a_penalty_over_variables_is_rejected_because_it_would_omit_rows(
    name: str, is_eager: bool
) -> None:
    model, optimizer = distribute(Penalized(PENALTIES[name]), SGD(0.1))
    model.compile(optimizer=optimizer, run_eagerly=is_eager)
    ids, target = np.array([[1, 2, 1]]), np.ones((1, 3, 1), np.float32)
    with pytest.raises(UnsupportedError, match=r"table 'embedding.*would not include the rows"):
        model.train_on_batch(ids, target)
    model.penalty = lambda model: sum(
        tf.nn.l2_loss(each) for each in model.trainable_variables if trained_table(each) is None
    )
    model.compile(optimizer=optimizer, run_eagerly=is_eager)
    assert np.isfinite(model.train_on_batch(ids, target))


def test_two_layers_of_one_name_are_rejected() -> None:
    words = keras.Input((3,), dtype="int64")
    parts = [
        keras.Sequential([layers.Embedding(ROWS, DIM, name="same"), layers.Flatten()], name=name)
        for name in ("a", "b")
    ]
    model = keras.Model(words, dense()(layers.Add()([each(words) for each in parts])))
    with pytest.raises(UnsupportedError, match=r"b\.same .*two layers have the name 'same'"):
        distribute(model, SGD(0.1))


def test_adam_is_accepted_if_it_may_be_lazy() -> None:
    model = sequential()
    before = model.layers[0].get_weights()[0]
    model, optimizer = distribute(model, keras.optimizers.Adam(0.1), semantics="lazy")
    model.compile(optimizer=optimizer, loss="mse")
    for inputs in ([[1, 2, 3]], [[3, 4, 5]]):
        model.train_on_batch(np.array(inputs), np.ones((1, 1)))
    after = restore(model).layers[0].get_weights()[0]
    assert np.array_equal(after[6:], before[6:])
    assert not np.isclose(after[1:6], before[1:6]).any()


def test_kept_and_frozen_layers_and_tables_are_in_the_report() -> None:
    inputs = keras.Input((3,), dtype="int64")
    parts = [
        layers.Embedding(ROWS, DIM, name="trained"),
        layers.Embedding(ROWS, DIM, name="frozen", trainable=False),
        layers.Embedding(ROWS, DIM, name="left"),
        Embedding(DIM, name="ours", trainable=False),
    ]
    joined = layers.Concatenate()([layers.Flatten()(each(inputs)) for each in parts])
    model = keras.Model(inputs, layers.Dense(1, name="score")(joined))
    frozen = parts[1].get_weights()[0]
    model, optimizer = distribute(model, SGD(0.1), keep=["left"])
    assert {each.path: (each.outcome.value, each.reason) for each in optimizer.report.modules} == {
        "trained": ("replaced", "table trained"),
        "frozen": ("replaced", "table frozen; frozen: rows are read only"),
        "left": ("kept", "named in keep"),
        "ours": ("kept", "it already looks up in tables"),
        "score": ("kept", "ordinary variables"),
    }
    train(model, optimizer, [(np.ones((2, 3), int), np.ones((2, 1)))] * 3)
    plain = restore(model)
    assert np.array_equal(plain.get_layer("frozen").get_weights()[0], frozen)
    assert not plain.get_layer("frozen").trainable
    assert model.get_layer("ours").num_rows() == {"ours": 0}
    assert isinstance(plain.get_layer("left"), layers.Embedding)
    with pytest.raises(InvalidArgumentError, match="no layer that distribute created"):
        restore(plain)


def test_an_id_out_of_range_is_rejected() -> None:
    model, _ = distribute(sequential(), SGD(0.1))
    for wrong in (ROWS, -1):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"outside of 0 to {ROWS - 1}"):
            model(np.array([[1, 2, wrong]]))


def test_arguments_of_another_kind_are_rejected() -> None:
    for given, words in (
        ({"semantics": "some"}, "must be 'exact' or 'lazy'"),
        ({"keep": "words"}, r"\['words'\]"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            distribute(sequential(), SGD(0.1), **given)
    with pytest.raises(InvalidArgumentError, match="a Keras model"):
        distribute(layers.Dense(1), SGD(0.1))
    with pytest.raises(InvalidArgumentError, match="a Keras optimizer"):
        distribute(sequential(), "sgd")
    with pytest.raises(InvalidArgumentError, match="restore takes a Keras model, found str"):
        restore("model.keras")
    with pytest.raises(UnsupportedError, match="named in keep, but"):
        distribute(sequential(), SGD(0.1), keep=["nowhere"])
