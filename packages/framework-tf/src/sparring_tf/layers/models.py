"""Recommendation models, equal to the models of `sparring_torch.models`."""

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
    """Biased matrix factorization: mean + user bias + item bias + user · item.

    Koren, Bell, Volinsky: "Matrix factorization techniques for recommender systems", Computer
    42(8), 2009. The first column of a row is the bias, so biases need no tables of their own.

    Args:
        users: table of users. Its dim is the number of factors, plus 1 for the bias.
        items: table of items, with the same dim.
        mean: mean of the ratings in the training data.
        storage: storage backend of the tables.
        container: container of the tables. By default, the `Optimizer` creates it.

    Raises:
        InvalidArgumentError: the tables differ in dim or dtype, or their dim is less than 2.
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
        """Returns predicted ratings ``(b,)``.

        Args:
            inputs: pair of user ids and item ids, each ``(b,)``.
            training: ignored.
        """
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
        """Returns the loss: squared errors plus L2 penalties, summed over all ratings.

        A rating's penalties depend on the rows of its user and its item.

        Args:
            users: user ids ``(b,)``.
            items: item ids ``(b,)``.
            ratings: ratings ``(b,)``.
            embedding_l2: L2 penalty of the user's and the item's vectors, without biases.
            bias_l2: L2 penalty of their biases.
            weights: weights ``(b,)`` of the ratings and their penalties. Defaults to 1.
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
    """A model with an `EmbeddingCollection`, which Keras saves with the model.

    Args:
        embedding_collection: the tables. Each feature is pooled.
        **options: options of `keras.Model`.
    """

    _settings: dict[str, Any]
    """JSON values of all arguments except the collection."""

    def __init__(self, embedding_collection: EmbeddingCollection, **options: Any) -> None:
        super().__init__(**options)
        self.embedding_collection = embedding_collection
        self._features = tuple(embedding_collection.feature_configs)

    def build(self, *_: Any) -> None:
        """Does nothing, because all widths are arguments of the constructor."""

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration of the model."""
        collection = keras.saving.serialize_keras_object(self.embedding_collection)
        return {"name": self.name, "embedding_collection": collection, **self._settings}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:  # noqa: ARG003 - Keras passes it
        """Creates a model from the result of `get_config`."""
        config = dict(config)
        collection = keras.saving.deserialize_keras_object(config.pop("embedding_collection"))
        return cls(embedding_collection=collection, **config)

    def _common_dim(self) -> int:
        """Returns the dim, which must be the same for all tables, because embeddings are multiplied."""
        configs = self.embedding_collection.feature_configs.values()
        dims = sorted({each.table.embedding_dim for each in configs})
        if len(dims) != 1:
            raise InvalidArgumentError(
                f"{type(self).__name__} multiplies embeddings, so all tables must have the same "
                f"embedding_dim, found {dims}"
            )
        return dims[0]

    def _embed(self, ids: Any, training: bool | None, dtype: Any) -> list[Any]:
        """Returns embeddings ``(b, dim)`` of each feature."""
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

    Equal to `sparring_torch.models.DLRM`.

    Args:
        embedding_collection: tables with one dim, for f features.
        dense_in_features: number k of dense features.
        dense_arch_layer_sizes: widths of the dense arch's layers; the last one must be `dim`.
        over_arch_layer_sizes: widths of the over arch's layers. The last layer, usually of width 1,
            has no activation.
        seed: seed of the layers' initial values.
        **options: options of `keras.Model`.

    Raises:
        InvalidArgumentError: the tables differ in dim, or the last width of the dense arch is not `dim`.
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
        """Returns logits ``(b, 1)``.

        Args:
            inputs: pair of the dense features and the ids. Dense features are ``(b, k)``, scaled to
                about 1. Ids are a dict from feature to ids, or an array ``(b, f)`` in the order of
                the collection's features.
            training: whether a backward pass follows.
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
    """A factorization machine and a deep network over the same embeddings: Guo et al., arXiv 1703.04247.

    ::

        numbers (b, k) ──► dense arch ──► (b, dim) ───┬─► deep (b, deep_fm_dimension) ─┬─► click
        ids of f features ──► tables ──► (b, f, dim) ─┴─► products of all pairs (b, 1) ┤
                              dense arch's output ─────────────────────────────────────┘

    Equal to `sparring_torch.models.DeepFM`.

    Args:
        num_dense_features: number k of dense features.
        embedding_collection: tables with one dim, for f features.
        hidden_layer_size: width of the dense arch's hidden layer.
        deep_fm_dimension: width of the deep network's output.
        seed: seed of the layers' initial values.
        **options: options of `keras.Model`.

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
        """Returns click probabilities ``(b, 1)``, for the loss ``binary_crossentropy``.

        Args:
            inputs: see `DLRM`.
            training: whether a backward pass follows.
        """
        return tf.sigmoid(self.logits(inputs, training))

    def logits(self, inputs: tuple[Any, Any], training: bool | None = None) -> Any:
        """Returns the logits ``(b, 1)`` of `call`.

        `inputs` and `training` are those of `call`.
        """
        numbers, ids = inputs
        dense = self.dense_arch(numbers)
        everything = tf.concat([dense, *self._embed(ids, training, dense.dtype)], axis=1)
        squares = tf.reduce_sum(tf.square(everything), axis=1, keepdims=True)
        of_sum = tf.square(tf.reduce_sum(everything, axis=1, keepdims=True))
        parts = [dense, self.deep(everything), (of_sum - squares) / 2]
        return self.over_arch(tf.concat(parts, axis=1))


@keras.saving.register_keras_serializable("sparring_tf")
class TwoTower(_CollectionModel):
    """One tower of layers over the embedding of a query, and one over the embedding of a candidate.

    ::

        ids of the first feature  ──► (b, dim) ──► query_proj ──► (b, layer_sizes[-1])
        ids of the second feature ──► (b, dim) ──► candidate_proj ──► (b, layer_sizes[-1])

    Equal to `sparring_torch.models.TwoTower`. For retrieval, it is trained with a softmax over the
    batch, in which each query is compared with the candidates of all examples.

    Args:
        embedding_collection: collection with two features: the query, then the candidate.
        layer_sizes: widths of the layers of each tower. All layers have an activation.
        seed: seed of the layers' initial values.
        **options: options of `keras.Model`.

    Raises:
        InvalidArgumentError: the number of features is not two.
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
                f"TwoTower requires two features, queries and candidates, found {list(configs)}; pass a "
                "collection with these two"
            )
        self._settings = {"layer_sizes": tuple(layer_sizes), "seed": seed}
        query, candidate = ((each.table.embedding_dim, *layer_sizes) for each in configs.values())
        self.query_proj = _mlp(query, is_last_activated=True, seed=seed)
        self.candidate_proj = _mlp(candidate, is_last_activated=True, seed=seed + 1000)

    def call(self, inputs: Any, training: bool | None = None) -> tuple[Any, Any]:
        """Returns vectors of queries and of candidates, each ``(b, layer_sizes[-1])``.

        Args:
            inputs: a dict from feature to ids, or an array of ids ``(b, 2)``.
            training: whether a backward pass follows.
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
    """Creates dense layers with ReLU; the last layer has it only if `is_last_activated`."""
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
