"""`Embedding`: a replacement for `keras.layers.Embedding` without a fixed number of embeddings."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from sparring import StepContainer
from sparring.adapter import StorageLike
from sparring.contracts import AdmissionLike, ExpiryLike, Initializer
from sparring_tf.layers.keras_names import (
    reject_options,
    resolve_dims,
    resolve_padding_id,
    resolve_table_dtype,
)
from sparring_tf.layers.layer_configs import options_to_dict
from sparring_tf.layers.table_configs import TableConfig, declaration
from sparring_tf.layers.table_layer import TableLayer
from sparring_tf.lookup.ids import validate_id, validate_ids
from sparring_tf.lookup.table_agent import TableAgent

__all__ = ["Embedding"]


@keras.saving.register_keras_serializable("sparring_tf")
class Embedding(TableLayer):
    """Maps ids of any shape to embeddings: ``(…)`` → ``(…, embedding_dim)``. Ragged ids are supported.

    Every int64 is a valid id, and ids need not be declared. A row is created when
    `sparring_tf.Optimizer` applies its first gradient. Until then, an id reads as its initial value, a
    function of only the table name, the seed and the id.

    Args:
        embedding_dim: number of elements of an embedding.
        output_dim: Keras's name of `embedding_dim`. ``Embedding(1000, 16)`` is equivalent to
            ``Embedding(input_dim=1000, output_dim=16)``.
        input_dim: Keras's name of `vocabulary_size`. It limits the number of rows, not the range of ids.
        mask_zero: equivalent to ``padding_id=0``.
        padding_id: an id that reads as zeros, gets no gradient and no row, and is False in the layer's
            Keras mask.
        vocabulary_size: maximum number of rows in the storage; None means no limit.
        initializer: initial embeddings; None means uniform in ±0.05. Keras's initializers are accepted,
            except those that depend on the shape of a matrix.
        embeddings_initializer: Keras's name of `initializer`.
        table_dtype: dtype of stored rows: float32, float64, float16, bfloat16 or int8. None means
            float64 if the layer's variables are float64, and otherwise float32.
        admission: filter that decides which new ids get a row; see `TableConfig`. None admits all.
        seed: determines initial embeddings, together with the table name and the id. 0 uses the seed of
            an initializer of Keras.
        placement: which ranks store the rows; see `TableConfig`.
        expire: removes rows that were not trained for some time; see `TableConfig`.
        storage: storage backend of the rows.
        container: container of the table. By default, the `Optimizer` creates it.
        shared: whether other layers may use the same rows: a second layer that has the name of a table
            in the same container raises an error unless one of both has ``shared=True``.
        **options: options of `keras.layers.Layer`. `name` is also the name of the table.

    Raises:
        InvalidArgumentError: a number is out of range, or the dtype or initializer is unknown.
        UnsupportedError: an option of Keras's layer has no meaning here, or the layer is created in the
            scope of a strategy of `tf.distribute`.
    """

    def __init__(  # noqa: PLR0913 - keyword arguments, as of keras.layers.Embedding
        self,
        embedding_dim: int | None = None,
        output_dim: int | None = None,
        *,
        input_dim: int | None = None,
        mask_zero: bool = False,
        padding_id: int | None = None,
        vocabulary_size: int | None = None,
        initializer: Initializer | str | dict[str, Any] | None = None,
        embeddings_initializer: Any = None,
        table_dtype: str | None = None,
        admission: AdmissionLike = None,
        seed: int = 0,
        placement: str = "sharded",
        expire: ExpiryLike = None,
        storage: StorageLike = "hkv",
        container: StepContainer | None = None,
        shared: bool = False,
        **options: Any,
    ) -> None:
        reject_options(options, "Embedding")
        super().__init__(**options)
        self.embedding_dim, vocabulary_size = resolve_dims(
            embedding_dim, output_dim, input_dim, vocabulary_size
        )
        padding = resolve_padding_id(padding_id, mask_zero)
        self.padding_id = validate_id(padding, f"padding_id of table {self.name!r}")
        self.table = TableConfig(
            name=self.name,
            embedding_dim=self.embedding_dim,
            vocabulary_size=vocabulary_size,
            initializer=embeddings_initializer if initializer is None else initializer,
            combiner=None,
            dtype=resolve_table_dtype(table_dtype, self.variable_dtype),
            admission=admission,
            seed=seed,
            placement=placement,
            expire=expire,
        )
        self._storage = storage
        self._set_agent(
            TableAgent([declaration(self.table, storage)], container=container, shared=shared)
        )

    @property
    def output_dim(self) -> int:
        """Keras's name of `embedding_dim`."""
        return self.embedding_dim

    @property
    def input_dim(self) -> int | None:
        """Keras's name of `vocabulary_size`, the maximum number of rows; None if there is no limit."""
        return self.table.vocabulary_size

    @property
    def mask_zero(self) -> bool:
        """Whether 0 is the padding id."""
        return self.padding_id == 0

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Returns embeddings ``(…, embedding_dim)`` of ids ``(…)``.

        Args:
            inputs: ids of any shape, dense or ragged.
            training: whether a backward pass follows.

        Raises:
            InvalidArgumentError: the inputs are not ids.
            UnsupportedError: the ids are sparse, which only bags support.
        """
        with self._errors_on_all_ranks([self.name], training):
            ids = validate_ids(inputs, f"table {self.name!r}", is_sparse_ok=False)
        if isinstance(ids, tf.RaggedTensor):
            return tf.ragged.map_flat_values(lambda flat: self._embed(flat, training), ids)
        return self._embed(ids, training)

    def _embed(self, ids: Any, training: bool | None) -> Any:
        if self.padding_id is None:
            (found,) = self._gather([(self.name, ids)], training)
            return self._to_compute_dtype(found)
        # Flattened, because a single id has no dimension to select from.
        flat = tf.reshape(ids, [-1])
        kept = tf.where(tf.not_equal(flat, self.padding_id))
        (found,) = self._gather([(self.name, tf.gather_nd(flat, kept))], training)
        shape = [tf.size(flat, out_type=tf.int64), self.embedding_dim]
        padded = tf.scatter_nd(kept, found, tf.stack(shape))
        padded = tf.reshape(padded, tf.concat([tf.shape(ids), [self.embedding_dim]], 0))
        padded.set_shape(ids.shape.concatenate([self.embedding_dim]))
        return self._to_compute_dtype(padded)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Returns a mask that is False for the padding id, or None if there is no padding id.

        Args:
            inputs: ids of any shape.
            previous_mask: ignored.
        """
        if self.padding_id is None:
            return None
        # While Keras creates a functional model, only its own op accepts its symbolic tensors.
        is_symbolic = keras.backend.is_keras_tensor(inputs)
        not_equal = keras.ops.not_equal if is_symbolic else tf.not_equal
        return not_equal(inputs, self.padding_id)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Returns the shape of the output of `call`, as Keras's layers do.

        Args:
            input_shape: shape of the ids.
        """
        return (*input_shape, self.embedding_dim)

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration of the layer, without its rows.

        Raises:
            UnsupportedError: the storage is an open `Storage`, not the name of a backend.
        """
        return {
            **super().get_config(),
            "embedding_dim": self.embedding_dim,
            "padding_id": self.padding_id,
            **options_to_dict(self.table, self._storage),
        }
