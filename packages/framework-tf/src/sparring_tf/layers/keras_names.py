"""Arguments of `keras.layers.Embedding` and keras-rs, as the layers of this package mean them."""

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
    "resolve_padding_id",
    "reject_options",
]

_REMEDIES = {
    "embeddings_regularizer": (
        "write activity_regularizer=…, which adds the penalty of the embeddings that a batch looked up, "
        "or weight_decay of the optimizer"
    ),
    "embeddings_constraint": "leave it out: rows that a batch did not look up are not visited",
    "weights": "write container.assign(layer.name, ids, matrix) of the Optimizer, once it is made",
    "lora_rank": "leave it out: rows are created one by one and have no low-rank form",
    "lora_alpha": "leave it out: rows are created one by one and have no low-rank form",
    "sparse": "leave it out: gradients of rows are always sparse",
    "quantization_config": "write table_dtype='float16' or 'bfloat16'",
    "mask_zero": "give ragged or sparse ids, which contain no padding",
    # Of keras-rs' DistributedEmbedding.
    "optimizer": "write sparring_tf.Optimizer(model, …), which updates the rows of all tables",
    "update_stats": "leave it out: buffers have no fixed size here",
    "pipeline_execution_with_tensor_core": "leave it out: it is for TPUs",
    "sparse_core_embedding_config": "leave it out: it is for TPUs",
}
"""Option of a layer of Keras or keras-rs that has no meaning here → what to do instead."""

_ABSENT = {
    "embeddings": (
        "rows are no weights, and an id has one once it was trained. Read rows of ids with layer(ids), "
        "and all rows with optimizer.container.storage(table).scan()"
    ),
    "get_embedding_tables": "read all rows with optimizer.container.storage(table).scan()",
    "preprocess": "call the layer with the ids themselves",
    "enable_lora": "rows are created one by one and have no low-rank form",
}
"""Attribute of layers of Keras and keras-rs that layers with tables lack → what to write instead."""


class AbsentAttributeError(UnsupportedError, AttributeError):
    """An attribute of a layer of Keras has no meaning for tables: write what the message says."""


def check_attribute(layer: str, name: str) -> None:
    """Explains an attribute of layers of Keras and keras-rs that layers with tables do not have.

    Args:
        layer: class of the layer.
        name: the attribute that was asked for.

    Raises:
        AbsentAttributeError: it is one of those; the message says what to write instead.
    """
    if name in _ABSENT:
        raise AbsentAttributeError(f"sparring_tf.{layer} has no attribute {name}: {_ABSENT[name]}")


_OF_KERAS_ALONE = frozenset(
    {"ones", "random_normal", "random_uniform", "orthogonal", "lecun_normal", "lecun_uniform"}
    | {"he_normal", "he_uniform", "glorot_normal", "glorot_uniform", "variance_scaling"}
)
"""Initializer names that only Keras has."""


def resolve_dims(
    given: int | None, output_dim: int | None, input_dim: int | None, vocabulary_size: int | None
) -> tuple[int, int | None]:
    """The elements of an embedding, and the most rows.

    Args:
        given: first argument: `embedding_dim`, or `input_dim` where `output_dim` is given too.
        output_dim: Keras's name of `embedding_dim`.
        input_dim: Keras's name of the number of ids; the most rows here.
        vocabulary_size: the most rows.

    Raises:
        InvalidArgumentError: none, or both names of one thing.
    """
    if given is not None and output_dim is not None and input_dim is None:
        given, input_dim = None, given
    if (given is None) == (output_dim is None):
        raise InvalidArgumentError(
            "give the elements of an embedding once: Embedding(16), Embedding(1000, 16), "
            "embedding_dim=16 or output_dim=16"
        )
    dim = output_dim if given is None else given
    assert dim is not None
    if input_dim is None:
        return dim, vocabulary_size
    if vocabulary_size is not None:
        raise InvalidArgumentError(
            f"input_dim={input_dim} and vocabulary_size={vocabulary_size} both say the most rows; give "
            "one of them"
        )
    _warn_of_bound(input_dim)
    return dim, input_dim


_warned: list[int] = []
"""The `input_dim` whose meaning was said, once in a process."""


def _warn_of_bound(input_dim: int) -> None:
    if not _warned:
        _warned.append(input_dim)
        warnings.warn(
            f"input_dim={input_dim} is the most rows that the storage on a rank holds, and a step that "
            "needs more raises CapacityError. It is no range of ids, as in Keras: ids may be any "
            "int64, and tables grow with them. Leave it out to set no bound (said once)",
            stacklevel=4,
        )


def resolve_padding_id(padding_id: int | None, mask_zero: bool) -> int | None:
    """The padding id: 0 under Keras's `mask_zero`.

    Raises:
        InvalidArgumentError: two different ones.
    """
    if mask_zero and padding_id not in (None, 0):
        raise InvalidArgumentError(
            f"mask_zero=True makes 0 the padding id, and padding_id={padding_id} another; give one"
        )
    return 0 if mask_zero else padding_id


def reject_options(options: MutableMapping[str, Any], layer: str) -> None:
    """Rejects options of layers of Keras and keras-rs that have no meaning here.

    Options that are None or False, their defaults, are removed.

    Args:
        options: of a layer; `input_length`, which Keras 3 ignores too, is removed.
        layer: its class, for messages.

    Raises:
        UnsupportedError: an option has another value; the message says what to write instead.
    """
    options.pop("input_length", None)
    for name, remedy in _REMEDIES.items():
        given = options.pop(name, None)
        if given is not None and given is not False:
            raise UnsupportedError(
                f"sparring_tf.{layer} does not support {name}, found {given!r}; {remedy}"
            )


def convert_initializer(given: Any, table: str) -> Initializer | str | dict[str, Any] | None:
    """An initializer of this package for one of Keras; others as they are.

    Raises:
        UnsupportedError: Keras's looks at more than one row.
    """
    if given == "uniform":
        # Keras's name and range, which are the default here.
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
            f"initializer of table {table!r}: {name} of Keras computes a whole matrix, and a row here is "
            "made of its own id; write sparring.Normal(stddev=…), sparring.Uniform(low, high) or "
            f"keras.initializers of {', '.join(kinds)}",
            table=table,
        )
    return kinds[name](given.get_config())
