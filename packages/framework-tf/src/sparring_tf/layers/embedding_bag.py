"""`EmbeddingBag`: returns one embedding per bag of ids."""

from __future__ import annotations

from typing import Any

import keras

from sparring import StepContainer
from sparring.adapter import StorageLike
from sparring.contracts import AdmissionLike, ExpiryLike, Initializer
from sparring_tf.layers.keras_names import reject_options, resolve_dims, resolve_table_dtype
from sparring_tf.layers.layer_configs import options_to_dict
from sparring_tf.layers.pooled_lookup import PooledFeature, pool_features
from sparring_tf.layers.table_configs import TableConfig, check_combiner, declaration
from sparring_tf.layers.table_layer import TableLayer
from sparring_tf.lookup.bags import parse_bags
from sparring_tf.lookup.table_agent import TableAgent

__all__ = ["EmbeddingBag"]


@keras.saving.register_keras_serializable("sparring_tf")
class EmbeddingBag(TableLayer):
    """Maps bags of ids to one embedding each: ``(b, n)``, ragged or sparse → ``(b, embedding_dim)``.

    The embedding of an empty bag is zero. For ids, rows and training, see `Embedding`.

    Args:
        embedding_dim: number of elements of an embedding.
        output_dim: see `Embedding`.
        input_dim: see `Embedding`.
        combiner: ``sum``, ``mean`` or ``sqrtn``; weights have the same effect as in
            `tf.nn.embedding_lookup_sparse`.
        vocabulary_size: maximum number of rows in the storage; None means no limit.
        initializer: initial embeddings.
        embeddings_initializer: keras-rs' name of `initializer`.
        table_dtype: see `Embedding`.
        admission: filter that decides which new ids get a row.
        seed: determines initial embeddings, together with the table name and the id. 0 uses the seed of
            an initializer of Keras.
        placement: ``sharded`` or ``replicated``.
        expire: removes rows that were not trained for some time; see `TableConfig`.
        storage: storage backend of the rows.
        container: container of the table. By default, the `Optimizer` creates it.
        shared: see `Embedding`.
        **options: options of `keras.layers.Layer`. `name` is also the name of the table.

    Raises:
        InvalidArgumentError: a number is out of range, or the combiner, dtype or initializer is unknown.
    """

    def __init__(  # noqa: PLR0913 - keyword arguments, as in Embedding
        self,
        embedding_dim: int | None = None,
        output_dim: int | None = None,
        *,
        input_dim: int | None = None,
        combiner: str = "mean",
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
        reject_options(options, "EmbeddingBag")
        super().__init__(**options)
        self.embedding_dim, vocabulary_size = resolve_dims(
            embedding_dim, output_dim, input_dim, vocabulary_size
        )
        self.combiner = combiner
        check_combiner(combiner, self.name)
        self.table = TableConfig(
            name=self.name,
            embedding_dim=self.embedding_dim,
            vocabulary_size=vocabulary_size,
            initializer=embeddings_initializer if initializer is None else initializer,
            combiner=combiner,
            dtype=resolve_table_dtype(table_dtype, self.variable_dtype),
            admission=admission,
            seed=seed,
            placement=placement,
            expire=expire,
        )
        self._storage = storage
        declared = [declaration(self.table, storage)]
        self._set_agent(TableAgent(declared, [[(self.name, "sum")]], container, shared=shared))

    @property
    def output_dim(self) -> int:
        """Keras's name of `embedding_dim`."""
        return self.embedding_dim

    @property
    def input_dim(self) -> int | None:
        """Keras's name of `vocabulary_size`, the maximum number of rows; None if there is no limit."""
        return self.table.vocabulary_size

    def call(self, inputs: Any, weights: Any = None, training: bool | None = None) -> Any:
        """Returns one embedding per bag, ``(b, embedding_dim)``.

        Args:
            inputs: ids: dense ``(b,)`` or ``(b, n)``, ragged ``(b, None)`` or sparse ``(b, m)``.
            weights: one weight per id, in a tensor of the same kind and shape as `inputs`.
            training: whether a backward pass follows.

        Raises:
            InvalidArgumentError: the inputs are not ids, or the weights do not match them.
        """
        with self._errors_on_all_ranks([self.name], training):
            bags = parse_bags(inputs, weights, f"table {self.name!r}")
        feature = PooledFeature(self.name, self.combiner, bags)
        (found,) = pool_features(self, 0, [feature], training)
        return self._to_compute_dtype(found)

    def compute_output_shape(
        self, inputs_shape: Any, weights_shape: Any = None
    ) -> tuple[int | None, ...]:
        """Returns the shape of the output of `call`, as Keras's layers do.

        Args:
            inputs_shape: shape of the ids.
            weights_shape: ignored.
        """
        return (inputs_shape[0], self.embedding_dim)

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration of the layer, without its rows.

        Raises:
            UnsupportedError: the storage is an open `Storage`, not the name of a backend.
        """
        return {
            **super().get_config(),
            "embedding_dim": self.embedding_dim,
            "combiner": self.combiner,
            **options_to_dict(self.table, self._storage),
        }
