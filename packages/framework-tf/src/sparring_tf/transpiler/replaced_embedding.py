"""`ReplacedEmbedding`: the replacement of a `keras.layers.Embedding`."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from sparring.errors import UnsupportedError
from sparring_tf.layers.embedding import Embedding

__all__ = ["ReplacedEmbedding", "disable_weight"]


@keras.saving.register_keras_serializable("sparring_tf")
class ReplacedEmbedding(Embedding):
    """An `Embedding` that treats ids like Keras's layer.

    Ids are `0` to `num_embeddings` - 1, and other ids are rejected on the CPU. Id 0 is masked if
    `has_mask` is set, but its row is read and trained like any other.

    Args:
        embedding_dim: number of elements of an embedding.
        num_embeddings: number of rows of the replaced layer.
        has_mask: whether the replaced layer was created with `mask_zero`.
        **options: options of `Embedding`.
    """

    def __init__(
        self, embedding_dim: int, *, num_embeddings: int, has_mask: bool, **options: Any
    ) -> None:
        options.pop("padding_id", None)
        super().__init__(embedding_dim, **options)
        self.num_embeddings, self.has_mask = num_embeddings, has_mask
        self.supports_masking = has_mask

    explain_missing_weight = "a table is not a weight matrix; call the layer with ids"

    @property
    def embeddings(self) -> Any:
        """The weight of Keras's layer, which does not exist.

        Raises:
            AttributeError: always.
        """
        raise AttributeError(self.explain_missing_weight)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Returns embeddings ``(…, embedding_dim)`` of ids ``(…)``."""
        if not inputs.dtype.is_integer:
            inputs = tf.cast(inputs, tf.int32)
        count = tf.cast(self.num_embeddings, inputs.dtype)
        said = (
            f"layer {self.name!r}: found an id outside of 0 to {self.num_embeddings - 1}, the ids "
            "of the replaced layer; for arbitrary ids, use sparring_tf.Embedding(dim) in the model"
        )
        with tf.control_dependencies(
            [
                tf.debugging.assert_non_negative(inputs, message=said),
                tf.debugging.assert_less(inputs, count, message=said),
            ]
        ):
            return super().call(tf.identity(inputs), training)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Returns a mask that is False for id 0, or None without `has_mask`."""
        return keras.ops.not_equal(inputs, 0) if self.has_mask else None

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration of the layer, without its rows."""
        config = super().get_config()
        return {**config, "num_embeddings": self.num_embeddings, "has_mask": self.has_mask}


def disable_weight(layer: Any, why: str) -> None:
    """Makes every further use of a replaced layer's weight raise an error.

    Otherwise a closure, a list, or the original model would continue to use the outdated weight.

    Args:
        layer: a `keras.layers.Embedding`.
        why: text that is appended to the error message.
    """
    weight = layer._embeddings

    def value(_: Any) -> Any:
        raise UnsupportedError(
            f"this weight was replaced by a table in distribute and cannot be used. {why}"
        )

    # The class of weights differs between releases of Keras, but all uses read `value`.
    weight.__class__ = type("TakenWeight", (type(weight),), {"value": property(value)})
    weight._value = None
