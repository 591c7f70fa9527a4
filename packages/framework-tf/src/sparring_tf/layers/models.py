"""Models of recommendation, the same as `sparring_torch.models` has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import sparring
from sparring import StepContainer
from sparring.adapter import StorageLike, check_factors, shared_settings
from sparring.errors import InvalidArgumentError
from sparring_tf.layers.embedding import Embedding
from sparring_tf.layers.embedding_collection import EmbeddingCollection

__all__ = ["DLRM", "DeepFM", "MatrixFactorization", "TwoTower"]


class MatrixFactorization(keras.Model):
    """Biased matrix factorisation: mean + user bias + item bias + user · item.

    Koren, Bell, Volinsky: "Matrix factorization techniques for recommender systems", Computer
    42(8), 2009. The bias is the first column of a row, so each table has one row an id.

    Args:
        users: table of users; its dim is 1 for the bias and the elements of a vector.
        items: table of items, of the same dim.
        mean: of the ratings that will be trained on.
        storage: what keeps the tables.
        container: where they live; None leaves it to the `Optimizer`.

    Raises:
        InvalidArgumentError: the tables differ in dim or dtype, or have no room for a vector.
    """

    def __init__(
        self,
        users: sparring.TableConfig,
        items: sparring.TableConfig,
        *,
        mean: float,
        storage: StorageLike = "hkv",
        container: StepContainer | None = None,
    ) -> None:
        super().__init__()
        check_factors(users, items)
        self.users = _embedding(users, storage, container)
        self.items = _embedding(items, storage, container)
        self.mean = self.add_weight(
            shape=(),
            initializer=keras.initializers.Constant(mean),
            dtype=users.computing_dtype.name,
            trainable=False,
            autocast=False,
            name="mean",
        )

    def call(self, inputs: tuple[Any, Any], training: bool | None = None) -> Any:
        """Predicted ratings ``(b,)`` for ids of users and of items, ``(b,)`` each."""
        users, items = inputs
        return self._predict(self.users(users), self.items(items))

    def loss_of(
        self,
        users: Any,
        items: Any,
        ratings: Any,
        *,
        embedding_l2: float,
        bias_l2: float,
        weights: Any = None,
    ) -> Any:
        """Sum over the ratings of the squared error and of the penalties on what it met.

        Args:
            users: ids ``(b,)``.
            items: ids ``(b,)``.
            ratings: ``(b,)``.
            embedding_l2: weight of the squared vectors of a rating's user and item.
            bias_l2: weight of their squared biases.
            weights: of the ratings, with their penalties, ``(b,)``; None: 1 each.
        """
        user_rows = self.users(users, training=True)
        item_rows = self.items(items, training=True)
        error = self._predict(user_rows, item_rows) - tf.cast(ratings, user_rows.dtype)
        squares = tf.square(user_rows) + tf.square(item_rows)
        vectors = tf.reduce_sum(squares[:, 1:], axis=1)
        each = tf.square(error) + bias_l2 * squares[:, 0] + embedding_l2 * vectors
        return tf.reduce_sum(each if weights is None else each * tf.cast(weights, each.dtype))

    def _predict(self, user_rows: Any, item_rows: Any) -> Any:
        biases = user_rows[:, 0] + item_rows[:, 0]
        return self.mean.value + biases + tf.reduce_sum(user_rows[:, 1:] * item_rows[:, 1:], axis=1)


class _CollectionModel(keras.Model):  # type: ignore[misc,unused-ignore]
    """A model over an `EmbeddingCollection`, which Keras saves with it.

    Args:
        embedding_collection: the tables; each feature is pooled.
        **options: of `keras.Model`.
    """

    _settings: dict[str, Any]
    """Arguments besides the collection, all plain."""

    def __init__(self, embedding_collection: EmbeddingCollection, **options: Any) -> None:
        super().__init__(**options)
        self.embedding_collection = embedding_collection
        self._features = tuple(embedding_collection.feature_configs)

    def build(self, *_: Any) -> None:
        """Nothing is left to be made: all widths are given."""

    def get_config(self) -> dict[str, Any]:
        """Configuration that makes the model again."""
        collection = keras.saving.serialize_keras_object(self.embedding_collection)
        return {"name": self.name, "embedding_collection": collection, **self._settings}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:  # noqa: ARG003 - Keras gives it
        """The model that `get_config` described."""
        config = dict(config)
        collection = keras.saving.deserialize_keras_object(config.pop("embedding_collection"))
        return cls(embedding_collection=collection, **config)

    def _common_dim(self) -> int:
        """Of the tables, which products are taken of."""
        configs = self.embedding_collection.feature_configs.values()
        dims = sorted({each.table.embedding_dim for each in configs})
        if len(dims) != 1:
            raise InvalidArgumentError(
                f"{type(self).__name__} takes products of embeddings, so all tables need one "
                f"embedding_dim, found {dims}"
            )
        return dims[0]

    def _embed(self, ids: Any, training: bool | None, dtype: Any) -> list[Any]:
        """``(b, dim)`` of each feature."""
        if not isinstance(ids, Mapping):
            ids = dict(zip(self._features, tf.unstack(ids, axis=1), strict=True))
        found = self.embedding_collection(ids, training=training)
        return [tf.cast(found[name], dtype) for name in self._features]


@keras.saving.register_keras_serializable("sparring_tf")
class DLRM(_CollectionModel):
    """Deep learning recommendation model: Naumov et al., arXiv 1906.00091 (2019).

    ::

        numbers (b, k) ──► dense arch ──► (b, dim) ───┬─► dot products ─┬─► over arch ──► logit
        ids of f features ──► tables ──► (b, f, dim) ─┘   of all pairs  │
                              dense arch's output ──────────────────────┘

    The same as `sparring_torch.models.DLRM`.

    Args:
        embedding_collection: the tables, all of one dim, for f features.
        dense_in_features: k.
        dense_arch_layer_sizes: widths of the layers over the numbers; the last one is `dim`.
        over_arch_layer_sizes: widths of the layers over the products; the last one, 1 as a rule,
            is not activated.
        seed: of the initial values of the layers.
        **options: of `keras.Model`.

    Raises:
        InvalidArgumentError: the tables differ in dim, or the dense arch ends in another width.
    """

    def __init__(
        self,
        embedding_collection: EmbeddingCollection,
        dense_in_features: int,
        dense_arch_layer_sizes: Sequence[int],
        over_arch_layer_sizes: Sequence[int],
        *,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(embedding_collection, **options)
        dim, vectors = self._common_dim(), len(self._features) + 1
        if not dense_arch_layer_sizes or dense_arch_layer_sizes[-1] != dim:
            raise InvalidArgumentError(
                f"DLRM: dense_arch_layer_sizes must end in {dim}, the embedding_dim of the tables, "
                f"found {list(dense_arch_layer_sizes)}"
            )
        self._settings = {
            "dense_in_features": dense_in_features,
            "dense_arch_layer_sizes": tuple(dense_arch_layer_sizes),
            "over_arch_layer_sizes": tuple(over_arch_layer_sizes),
            "seed": seed,
        }
        rows, columns = np.triu_indices(vectors, 1)
        self._pairs = tuple((rows * vectors + columns).tolist())
        self.dense_arch = _mlp(
            (dense_in_features, *dense_arch_layer_sizes), is_last_activated=True, seed=seed
        )
        widths = (dim + len(self._pairs), *over_arch_layer_sizes)
        self.over_arch = _mlp(widths, is_last_activated=False, seed=seed + 1000)

    def call(self, inputs: tuple[Any, Any], training: bool | None = None) -> Any:
        """Logits ``(b, 1)``.

        Args:
            inputs: numbers ``(b, k)``, scaled to the order of 1; and a dict of the features' ids, or
                ids ``(b, f)`` in the order of the collection.
            training: whether a gradient will come.
        """
        numbers, ids = inputs
        dense = self.dense_arch(numbers)
        vectors = tf.stack([dense, *self._embed(ids, training, dense.dtype)], axis=1)
        products = tf.matmul(vectors, vectors, transpose_b=True)
        flat = tf.reshape(products, [-1, vectors.shape[1] ** 2])
        pairs = tf.gather(flat, self._pairs, axis=1)
        return self.over_arch(tf.concat([dense, pairs], axis=1))


@keras.saving.register_keras_serializable("sparring_tf")
class DeepFM(_CollectionModel):
    """Factorisation machine and layers over the same embeddings: Guo et al., arXiv 1703.04247.

    ::

        numbers (b, k) ──► dense arch ──► (b, dim) ───┬─► deep (b, deep_fm_dimension) ─┬─► click
        ids of f features ──► tables ──► (b, f, dim) ─┴─► products of all pairs (b, 1) ┤
                              dense arch's output ─────────────────────────────────────┘

    The same as `sparring_torch.models.DeepFM`.

    Args:
        num_dense_features: k.
        embedding_collection: the tables, all of one dim, for f features.
        hidden_layer_size: width of the hidden layer over the numbers.
        deep_fm_dimension: width of the deep part.
        seed: of the initial values of the layers.
        **options: of `keras.Model`.

    Raises:
        InvalidArgumentError: the tables differ in dim.
    """

    def __init__(
        self,
        num_dense_features: int,
        embedding_collection: EmbeddingCollection,
        hidden_layer_size: int,
        deep_fm_dimension: int,
        *,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(embedding_collection, **options)
        dim, vectors = self._common_dim(), len(self._features) + 1
        self._settings = {
            "num_dense_features": num_dense_features,
            "hidden_layer_size": hidden_layer_size,
            "deep_fm_dimension": deep_fm_dimension,
            "seed": seed,
        }
        self.dense_arch = _mlp(
            (num_dense_features, hidden_layer_size, dim), is_last_activated=True, seed=seed
        )
        deep = (vectors * dim, deep_fm_dimension)
        self.deep = _mlp(deep, is_last_activated=True, seed=seed + 1000)
        over = (dim + deep_fm_dimension + 1, 1)
        self.over_arch = _mlp(over, is_last_activated=False, seed=seed + 2000)

    def call(self, inputs: tuple[Any, Any], training: bool | None = None) -> Any:
        """Probabilities of a click ``(b, 1)``, for the loss ``binary_crossentropy``.

        Args:
            inputs: as of `DLRM`.
            training: whether a gradient will come.
        """
        return tf.sigmoid(self.logits(inputs, training))

    def logits(self, inputs: tuple[Any, Any], training: bool | None = None) -> Any:
        """The same before the sigmoid, ``(b, 1)``."""
        numbers, ids = inputs
        dense = self.dense_arch(numbers)
        everything = tf.concat([dense, *self._embed(ids, training, dense.dtype)], axis=1)
        squares = tf.reduce_sum(tf.square(everything), axis=1, keepdims=True)
        of_sum = tf.square(tf.reduce_sum(everything, axis=1, keepdims=True))
        parts = [dense, self.deep(everything), (of_sum - squares) / 2]
        return self.over_arch(tf.concat(parts, axis=1))


@keras.saving.register_keras_serializable("sparring_tf")
class TwoTower(_CollectionModel):
    """A tower of layers over the embedding of a query, and one over that of a candidate.

    ::

        ids of the first feature  ──► (b, dim) ──► query_proj ──► (b, layer_sizes[-1])
        ids of the second feature ──► (b, dim) ──► candidate_proj ──► likewise

    The same as `sparring_torch.models.TwoTower`. A softmax over the batch, each query against all
    candidates in it, trains it for retrieval.

    Args:
        embedding_collection: two features: queries first, then candidates.
        layer_sizes: widths of the layers of each tower; all are activated.
        seed: of the initial values of the layers.
        **options: of `keras.Model`.

    Raises:
        InvalidArgumentError: not two features.
    """

    def __init__(
        self,
        embedding_collection: EmbeddingCollection,
        layer_sizes: Sequence[int],
        *,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(embedding_collection, **options)
        configs = embedding_collection.feature_configs
        if len(configs) != 2:
            raise InvalidArgumentError(
                f"TwoTower takes two features, queries and candidates, found {list(configs)}"
            )
        self._settings = {"layer_sizes": tuple(layer_sizes), "seed": seed}
        query, candidate = ((each.table.embedding_dim, *layer_sizes) for each in configs.values())
        self.query_proj = _mlp(query, is_last_activated=True, seed=seed)
        self.candidate_proj = _mlp(candidate, is_last_activated=True, seed=seed + 1000)

    def call(self, inputs: Any, training: bool | None = None) -> tuple[Any, Any]:
        """Vectors of queries and of candidates, each ``(b, layer_sizes[-1])``.

        Args:
            inputs: a dict of the features' ids, or ids ``(b, 2)``.
            training: whether a gradient will come.
        """
        query, candidate = self._embed(inputs, training, self.compute_dtype)
        return self.query_proj(query), self.candidate_proj(candidate)


def _embedding(
    table: sparring.TableConfig, storage: StorageLike, container: StepContainer | None
) -> Embedding:
    return Embedding(
        table.dim,
        name=table.name,
        table_dtype=table.dtype,
        storage=storage,
        container=container,
        dtype=table.computing_dtype.name,
        **shared_settings(table),
    )


def _mlp(widths: Sequence[int], *, is_last_activated: bool, seed: int) -> Any:
    """Dense layers from each width to the next, with ReLU after each but perhaps the last."""
    layers: list[Any] = [keras.Input((widths[0],))]
    for place, width in enumerate(widths[1:]):
        is_last = place == len(widths) - 2
        layers.append(
            keras.layers.Dense(
                width,
                activation=None if is_last and not is_last_activated else "relu",
                kernel_initializer=keras.initializers.GlorotUniform(seed=seed + place),
            )
        )
    return keras.Sequential(layers)
