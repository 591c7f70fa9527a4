"""`Embedding`: the drop-in for `keras.layers.Embedding` that needs no number of embeddings."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from sparring import StepContainer
from sparring.adapter import StorageLike
from sparring.contracts import AdmissionLike, ExpiryLike, Initializer
from sparring_tf.layers.keras_names import reject_options, resolve_dims, resolve_padding_id
from sparring_tf.layers.layer_configs import options_to_dict
from sparring_tf.layers.table_configs import TableConfig, declaration
from sparring_tf.layers.table_layer import TableLayer
from sparring_tf.lookup.ids import validate_id, validate_ids
from sparring_tf.lookup.table_agent import TableAgent

__all__ = ["Embedding"]


@keras.saving.register_keras_serializable("sparring_tf")
class Embedding(TableLayer):
    """Ids of any shape to embeddings: ``(…)`` → ``(…, embedding_dim)``; ragged ids to ragged ones.

    Ids may be any int64, and none of them is declared beforehand. Rows come into being when
    `sparring_tf.Optimizer` applies their first gradient; until then an id reads as its initial
    value, a function of table name, seed and id alone.

    Args:
        embedding_dim: elements of an embedding.
        output_dim: Keras's name of `embedding_dim`. ``Embedding(1000, 16)`` is
            ``Embedding(input_dim=1000, output_dim=16)``.
        input_dim: Keras's name of `vocabulary_size`: a bound on rows, no range of ids.
        mask_zero: as ``padding_id=0``.
        padding_id: this id reads as zeros, gets no gradient and no row; and the layer's Keras mask
            is false where it stands.
        vocabulary_size: the most rows that the storage may hold; None sets no bound.
        initializer: what an id reads as before it was trained; None means uniform in ±0.05. Keras's
            own are taken, except those that look at the shape of a matrix.
        embeddings_initializer: Keras's name of it.
        table_dtype: of rows, as they are stored: float32, float64, float16 or bfloat16.
        admission: which unseen ids earn a row, as in `TableConfig`; None: all.
        seed: with the table's name and the id it determines an initial embedding.
        placement: which ranks keep the rows, as in `TableConfig`.
        expire: after how long without training rows are removed, as in `TableConfig`.
        storage: what keeps the rows.
        container: where the table lives; None leaves it to the `Optimizer`.
        **options: of `keras.layers.Layer`; `name` is the table's name too.

    Raises:
        InvalidArgumentError: a number out of range, an unknown dtype or initializer.
        UnsupportedError: an option of Keras's layer has no meaning here; it is made in the scope of a
            strategy of `tf.distribute`.
    """

    def __init__(  # noqa: PLR0913 - keras.layers.Embedding is made by keywords too
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
        table_dtype: str = "float32",
        admission: AdmissionLike = None,
        seed: int = 0,
        placement: str = "sharded",
        expire: ExpiryLike = None,
        storage: StorageLike = "hkv",
        container: StepContainer | None = None,
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
            dtype=table_dtype,
            admission=admission,
            seed=seed,
            placement=placement,
            expire=expire,
        )
        self._storage = storage
        self._set_agent(TableAgent([declaration(self.table, storage)], container=container))

    @property
    def output_dim(self) -> int:
        """Keras's name of `embedding_dim`."""
        return self.embedding_dim

    @property
    def input_dim(self) -> int | None:
        """Keras's name of the bound on rows, `vocabulary_size`; None if there is none."""
        return self.table.vocabulary_size

    @property
    def mask_zero(self) -> bool:
        """Whether 0 is the padding id."""
        return self.padding_id == 0

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Embeddings ``(…, embedding_dim)`` of ids ``(…)``.

        Raises:
            InvalidArgumentError: the inputs are no ids.
            UnsupportedError: they are sparse, and only bags may be.
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
        # Flat, because a single id has no dimension to choose from.
        flat = tf.reshape(ids, [-1])
        kept = tf.where(tf.not_equal(flat, self.padding_id))
        (found,) = self._gather([(self.name, tf.gather_nd(flat, kept))], training)
        shape = [tf.size(flat, out_type=tf.int64), self.embedding_dim]
        padded = tf.scatter_nd(kept, found, tf.stack(shape))
        padded = tf.reshape(padded, tf.concat([tf.shape(ids), [self.embedding_dim]], 0))
        padded.set_shape(ids.shape.concatenate([self.embedding_dim]))
        return self._to_compute_dtype(padded)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """False where the padding id stands; None without one."""
        if self.padding_id is None:
            return None
        # While a functional model is made, Keras's own op alone takes its stand-ins for tensors.
        is_symbolic = keras.backend.is_keras_tensor(inputs)
        not_equal = keras.ops.not_equal if is_symbolic else tf.not_equal
        return not_equal(inputs, self.padding_id)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        return (*input_shape, self.embedding_dim)

    def get_config(self) -> dict[str, Any]:
        """Configuration that makes the layer again, without its rows.

        Raises:
            UnsupportedError: the storage was given open.
        """
        return {
            **super().get_config(),
            "embedding_dim": self.embedding_dim,
            "padding_id": self.padding_id,
            **options_to_dict(self.table, self._storage),
        }
