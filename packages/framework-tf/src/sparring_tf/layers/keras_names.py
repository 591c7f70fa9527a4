"""Translates arguments of `keras.layers.Embedding` and keras-rs for the layers of this package."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import keras

import sparring
from sparring.contracts import Initializer
from sparring.errors import InvalidArgumentError, UnsupportedError

__all__ = [
    "check_attribute",
    "resolve_dims",
    "convert_initializer",
    "resolve_seed",
    "resolve_table_dtype",
    "resolve_padding_id",
    "reject_options",
]

_REMEDIES = {
    "embeddings_regularizer": (
        "write activity_regularizer=…, which penalizes the embeddings that a batch looked up, "
        "or weight_decay of the optimizer"
    ),
    "embeddings_constraint": "leave it out: rows that a batch did not look up are not changed",
    "weights": "call container.assign(layer.name, ids, matrix) of the Optimizer after creating it",
    "lora_rank": "leave it out: rows are created one by one and have no low-rank form",
    "lora_alpha": "leave it out: rows are created one by one and have no low-rank form",
    "sparse": "leave it out: gradients of rows are always sparse",
    "quantization_config": "write table_dtype='float16' or 'bfloat16'",
    "mask_zero": "give ragged or sparse ids, which contain no padding",
    # Options of keras-rs' DistributedEmbedding.
    "optimizer": "write sparring_tf.Optimizer(model, …), which updates the rows of all tables",
    "update_stats": "leave it out: buffers have no fixed size here",
    "pipeline_execution_with_tensor_core": "leave it out: it is for TPUs",
    "sparse_core_embedding_config": "leave it out: it is for TPUs",
}
"""Option of a layer of Keras or keras-rs that has no meaning here → the alternative."""

_ABSENT = {
    "embeddings": (
        "rows are created when they are trained, and are not a weight. Read the rows of ids with "
        "layer(ids), and all rows with optimizer.container.storage(table).scan()"
    ),
    "get_embedding_tables": "read all rows with optimizer.container.storage(table).scan()",
    "preprocess": "call the layer with the ids themselves",
    "enable_lora": "rows are created one by one and have no low-rank form",
}
"""Attribute of layers of Keras and keras-rs that layers with tables do not have → the alternative."""


class AbsentAttributeError(UnsupportedError, AttributeError):
    """An attribute of a Keras layer has no meaning for tables. The message contains the alternative."""


def check_attribute(layer: str, name: str) -> None:
    """Explains why an attribute of layers of Keras and keras-rs does not exist here.

    Args:
        layer: class of the layer.
        name: name of the attribute.

    Raises:
        AbsentAttributeError: the attribute only exists in Keras or keras-rs. The message contains the
            alternative.
    """
    if name in _ABSENT:
        raise AbsentAttributeError(f"sparring_tf.{layer} has no attribute {name}: {_ABSENT[name]}")


_OF_KERAS_ALONE = frozenset(
    {"ones", "random_normal", "random_uniform", "orthogonal", "lecun_normal", "lecun_uniform"}
    | {"he_normal", "he_uniform", "glorot_normal", "glorot_uniform", "variance_scaling"}
)
"""Names of initializers that only Keras has."""


def resolve_dims(
    given: int | None, output_dim: int | None, input_dim: int | None, vocabulary_size: int | None
) -> tuple[int, int | None]:
    """Returns the number of elements of an embedding and the maximum number of rows.

    Args:
        given: first argument: `embedding_dim`, or `input_dim` if `output_dim` is also given.
        output_dim: Keras's name of `embedding_dim`.
        input_dim: Keras's name of the number of ids; here the maximum number of rows.
        vocabulary_size: maximum number of rows.

    Raises:
        InvalidArgumentError: `embedding_dim` is missing, or a value is given under both of its names.
    """
    if given is not None and output_dim is not None and input_dim is None:
        given, input_dim = None, given
    if (given is None) == (output_dim is None):
        raise InvalidArgumentError(
            "Embedding: give the number of elements of an embedding exactly once: Embedding(16), "
            "Embedding(1000, 16), embedding_dim=16 or output_dim=16"
        )
    dim = output_dim if given is None else given
    assert dim is not None
    if input_dim is None:
        return dim, vocabulary_size
    if vocabulary_size is not None:
        raise InvalidArgumentError(
            f"Embedding: input_dim={input_dim} and vocabulary_size={vocabulary_size} are two names of "
            "the maximum number of rows; give one of them"
        )
    _warn_of_bound(input_dim)
    return dim, input_dim


_warned: list[int] = []
"""The `input_dim` values for which the warning was shown; it appears once per process."""


def _warn_of_bound(input_dim: int) -> None:
    if not _warned:
        _warned.append(input_dim)
        warnings.warn(
            f"input_dim={input_dim} is the maximum number of rows in the storage of each rank; a step "
            "that needs more raises CapacityError. Unlike in Keras, it does not limit the range of "
            "ids, which may be any int64. Leave it out for no limit (this warning appears once)",
            stacklevel=4,
        )


def resolve_padding_id(padding_id: int | None, mask_zero: bool) -> int | None:
    """Returns the padding id, which is 0 if `mask_zero` is set.

    Raises:
        InvalidArgumentError: both are given and differ.
    """
    if mask_zero and padding_id not in (None, 0):
        raise InvalidArgumentError(
            f"Embedding: mask_zero=True sets the padding id 0, but padding_id={padding_id}; give one "
            "of them"
        )
    return 0 if mask_zero else padding_id


def reject_options(options: MutableMapping[str, Any], layer: str) -> None:
    """Rejects options of layers of Keras and keras-rs that have no meaning here.

    Options that are None or False, their defaults, are removed.

    Args:
        options: options of the layer. `input_length`, which Keras 3 also ignores, is removed.
        layer: class of the layer, for error messages.

    Raises:
        UnsupportedError: an option has a value that is not supported. The message contains the
            alternative.
    """
    options.pop("input_length", None)
    for name, remedy in _REMEDIES.items():
        given = options.pop(name, None)
        if given is not None and given is not False:
            raise UnsupportedError(
                f"sparring_tf.{layer} does not support {name}, found {given!r}; {remedy}"
            )


def resolve_table_dtype(given: str | None, variable_dtype: str) -> str:
    """Returns the dtype of stored rows.

    Args:
        given: the argument `table_dtype`; None stores rows as Keras stores weights, but at least in
            float32.
        variable_dtype: dtype in which a Keras layer would store weights.
    """
    if given is not None:
        return given
    return "float64" if variable_dtype == "float64" else "float32"


def resolve_seed(given: int, initializer: Any, table: str) -> int:
    """Returns the seed of a table: `given`, or the seed of an initializer of Keras.

    Args:
        given: the argument `seed`, 0 by default.
        initializer: the initializer, before `convert_initializer`.
        table: name of the table.

    Raises:
        InvalidArgumentError: the seeds differ.
        UnsupportedError: the seed of the initializer is not an integer.
    """
    if isinstance(initializer, Mapping) and "class_name" in initializer:
        initializer = keras.initializers.deserialize(dict(initializer))
    if not isinstance(initializer, keras.initializers.Initializer):
        return given
    seed = initializer.get_config().get("seed")
    if seed is None:
        return given
    if not isinstance(seed, int):
        raise UnsupportedError(
            f"initializer of table {table!r}: found a {type(initializer).__name__} of Keras with a "
            "SeedGenerator, but initial rows only depend on the table name, the seed and the id; pass "
            "an integer: seed=1",
            table=table,
        )
    if given not in (0, seed):
        raise InvalidArgumentError(
            f"table {table!r}: found seed={given} and an initializer of Keras with seed={seed}; give one "
            "of them",
            table=table,
        )
    return seed


def convert_initializer(given: Any, table: str) -> Initializer | str | dict[str, Any] | None:
    """Converts an initializer of Keras to one of sparring, and returns others unchanged.

    Raises:
        UnsupportedError: Keras's initializer depends on more than one row.
    """
    if given == "uniform":
        # In Keras, this name means the range that is the default here.
        return None
    if isinstance(given, str) and given in _OF_KERAS_ALONE:
        given = keras.initializers.get(given)
    if isinstance(given, Mapping) and "class_name" in given:
        given = keras.initializers.deserialize(dict(given))
    if not isinstance(given, keras.initializers.Initializer):
        return given  # type: ignore[no-any-return]
    kinds: dict[str, Callable[[dict[str, Any]], Initializer]] = {
        "Zeros": lambda _: sparring.Constant(0.0),
        "Ones": lambda _: sparring.Constant(1.0),
        "Constant": lambda own: sparring.Constant(own["value"]),
        "RandomUniform": lambda own: sparring.Uniform(own["minval"], own["maxval"]),
        "RandomNormal": lambda own: sparring.Normal(own["mean"], own["stddev"]),
        "TruncatedNormal": lambda own: sparring.TruncatedNormal(own["mean"], own["stddev"]),
    }
    name = type(given).__name__
    if name not in kinds:
        raise UnsupportedError(
            f"initializer of table {table!r}: {name} of Keras computes a whole matrix, but a row here "
            "only depends on its id; use sparring.Normal(stddev=…), sparring.Uniform(low, high), or "
            f"one of keras.initializers: {', '.join(kinds)}",
            table=table,
        )
    return kinds[name](given.get_config())
