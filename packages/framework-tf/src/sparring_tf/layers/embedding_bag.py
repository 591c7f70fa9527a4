"""`EmbeddingBag`: one embedding for each bag of ids."""

from __future__ import annotations

from typing import Any

import keras

from sparring import StepContainer
from sparring.adapter import StorageLike
from sparring.contracts import AdmissionLike, ExpiryLike, Initializer
from sparring_tf.layers.keras_names import reject_options, resolve_dims
from sparring_tf.layers.layer_configs import options_to_dict
from sparring_tf.layers.pooled_lookup import PooledFeature, pool_features
from sparring_tf.layers.table_configs import TableConfig, check_combiner, declaration
from sparring_tf.layers.table_layer import TableLayer
from sparring_tf.lookup.bags import parse_bags
from sparring_tf.lookup.table_agent import TableAgent

__all__ = ["EmbeddingBag"]


@keras.saving.register_keras_serializable("sparring_tf")
class EmbeddingBag(TableLayer):
    """Bags of ids to one embedding each: ``(b, n)``, ragged or sparse → ``(b, embedding_dim)``.

    An empty bag is zeros. For ids, rows and training see `Embedding`.

    Args:
        embedding_dim: elements of an embedding; `output_dim` and `input_dim` as in `Embedding`.
        output_dim: see there.
        input_dim: see there.
        combiner: ``sum``, ``mean`` or ``sqrtn``; with weights as `tf.nn.embedding_lookup_sparse`.
        vocabulary_size: as in `Embedding`, and so are the next eight.
        initializer: initial embeddings.
        embeddings_initializer: keras-rs' name of it.
        table_dtype: of embeddings as they are stored.
        admission: which unseen ids earn a row.
        seed: with the name and the id it determines an initial embedding.
        placement: ``sharded`` or ``replicated``.
        expire: after how long without training rows are removed, as in `TableConfig`.
        storage: what keeps the rows.
        container: where the table lives; None leaves it to the `Optimizer`.
        **options: of `keras.layers.Layer`; `name` is the table's name too.

    Raises:
        InvalidArgumentError: a number out of range, an unknown combiner, dtype or initializer.
    """

    def __init__(  # noqa: PLR0913 - as Embedding
        self,
        embedding_dim: int | None = None,
        output_dim: int | None = None,
        *,
        input_dim: int | None = None,
        combiner: str = "mean",
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
            dtype=table_dtype,
            admission=admission,
            seed=seed,
            placement=placement,
            expire=expire,
        )
        self._storage = storage
        declared = [declaration(self.table, storage)]
        self._set_agent(TableAgent(declared, [[(self.name, "sum")]], container))

    @property
    def output_dim(self) -> int:
        """Keras's name of `embedding_dim`."""
        return self.embedding_dim

    @property
    def input_dim(self) -> int | None:
        """Keras's name of the bound on rows, `vocabulary_size`; None if there is none."""
        return self.table.vocabulary_size

    def call(self, inputs: Any, weights: Any = None, training: bool | None = None) -> Any:
        """One embedding for each bag, ``(b, embedding_dim)``.

        Args:
            inputs: dense ``(b,)`` or ``(b, n)``, ragged ``(b, None)`` or sparse ``(b, m)`` ids.
            weights: of the same kind and shape; each embedding is multiplied by its own.
            training: whether a gradient will come.

        Raises:
            InvalidArgumentError: the inputs are no ids, or weights do not fit them.
        """
        with self._errors_on_all_ranks([self.name], training):
            bags = parse_bags(inputs, weights, f"table {self.name!r}")
        feature = PooledFeature(self.name, self.combiner, bags)
        (found,) = pool_features(self, 0, [feature], training)
        return self._to_compute_dtype(found)

    def compute_output_shape(
        self, inputs_shape: Any, weights_shape: Any = None
    ) -> tuple[int | None, ...]:
        return (inputs_shape[0], self.embedding_dim)

    def get_config(self) -> dict[str, Any]:
        """Configuration that makes the layer again, without its rows.

        Raises:
            UnsupportedError: the storage was given open.
        """
        return {
            **super().get_config(),
            "embedding_dim": self.embedding_dim,
            "combiner": self.combiner,
            **options_to_dict(self.table, self._storage),
        }
