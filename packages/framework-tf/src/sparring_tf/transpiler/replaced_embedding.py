"""`ReplacedEmbedding`: the layer that takes the place of a `keras.layers.Embedding`."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from sparring.errors import UnsupportedError
from sparring_tf.layers.embedding import Embedding

__all__ = ["ReplacedEmbedding", "disable_weight"]


@keras.saving.register_keras_serializable("sparring_tf")
class ReplacedEmbedding(Embedding):
    """An `Embedding` that keeps what Keras's layer does with ids.

    Ids are `0` to `num_embeddings` - 1, as there, and others are refused on the CPU. A mask says where id
    0 stands, whose row is read and trained as any other.

    Args:
        embedding_dim: elements of an embedding.
        num_embeddings: how many rows the layer had.
        has_mask: whether it was made with `mask_zero`.
        **options: of `Embedding`.
    """

    def __init__(
        self, embedding_dim: int, *, num_embeddings: int, has_mask: bool, **options: Any
    ) -> None:
        options.pop("padding_id", None)
        super().__init__(embedding_dim, **options)
        self.num_embeddings, self.has_mask = num_embeddings, has_mask
        self.supports_masking = has_mask

    explain_missing_weight = "a table is no matrix; call the layer with ids"

    @property
    def embeddings(self) -> Any:
        """The weight of the layer of Keras, which is not there.

        Raises:
            AttributeError: always.
        """
        raise AttributeError(self.explain_missing_weight)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Embeddings ``(…, embedding_dim)`` of ids ``(…)``."""
        if not inputs.dtype.is_integer:
            inputs = tf.cast(inputs, tf.int32)
        count = tf.cast(self.num_embeddings, inputs.dtype)
        said = (
            f"layer {self.name!r}: an id is none of the {self.num_embeddings} that the layer it replaced "
            "has; for ids of any size write sparring_tf.Embedding(dim) in the model"
        )
        with tf.control_dependencies(
            [
                tf.debugging.assert_non_negative(inputs, message=said),
                tf.debugging.assert_less(inputs, count, message=said),
            ]
        ):
            return super().call(tf.identity(inputs), training)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """False where id 0 stands; None without `has_mask`."""
        return keras.ops.not_equal(inputs, 0) if self.has_mask else None

    def get_config(self) -> dict[str, Any]:
        """Configuration that makes the layer again, without its rows."""
        config = super().get_config()
        return {**config, "num_embeddings": self.num_embeddings, "has_mask": self.has_mask}


def disable_weight(layer: Any, why: str) -> None:
    """Makes the weight of a layer whose rows are in a table raise wherever it is used from now on.

    In a closure, a list, or the model that was given it would stay as it was.

    Args:
        layer: a `keras.layers.Embedding`.
        why: goes into the text of the error.
    """
    weight = layer._embeddings

    def value(_: Any) -> Any:
        raise UnsupportedError(f"a weight is used that was made before distribute. {why}")

    # Its class differs between releases of Keras; all uses read `value`.
    weight.__class__ = type("TakenWeight", (type(weight),), {"value": property(value)})
    weight._value = None
