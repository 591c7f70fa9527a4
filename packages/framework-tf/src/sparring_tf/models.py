"""The models that `sparring train` knows: `Dlrm` and `MatrixFactorization`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

import sparring
from sparring.adapter import (
    StepContainer,
    StorageLike,
    check_factors,
    dot_product_dim,
    dot_product_pairs,
    shared_settings,
)
from sparring_tf.embedding import Embedding
from sparring_tf.embedding_collection import EmbeddingCollection
from sparring_tf.table_configs import FeatureConfig, TableConfig

__all__ = ["Dlrm", "MatrixFactorization"]


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
        self.mean = mean

    def call(self, inputs: tuple[Any, Any], training: bool | None = None) -> Any:
        """Predicted ratings ``(b,)`` for ids of users and of items, ``(b,)`` each."""
        users, items = inputs
        return self._predicted(self.users(users), self.items(items))

    def loss_of(
        self, users: Any, items: Any, ratings: Any, *, embedding_l2: float, bias_l2: float
    ) -> Any:
        """Sum over the ratings of the squared error and of the penalties on what it met.

        Args:
            users: ids ``(b,)``.
            items: ids ``(b,)``.
            ratings: ``(b,)``.
            embedding_l2: weight of the squared vectors of a rating's user and item.
            bias_l2: weight of their squared biases.
        """
        user_rows = self.users(users, training=True)
        item_rows = self.items(items, training=True)
        error = self._predicted(user_rows, item_rows) - tf.cast(ratings, user_rows.dtype)
        squares = tf.square(user_rows) + tf.square(item_rows)
        vectors = tf.reduce_sum(squares[:, 1:], axis=1)
        return tf.reduce_sum(tf.square(error) + bias_l2 * squares[:, 0] + embedding_l2 * vectors)

    def _predicted(self, user_rows: Any, item_rows: Any) -> Any:
        biases = user_rows[:, 0] + item_rows[:, 0]
        return self.mean + biases + tf.reduce_sum(user_rows[:, 1:] * item_rows[:, 1:], axis=1)


class Dlrm(keras.Model):
    """Deep learning recommendation model: Naumov et al., arXiv 1906.00091 (2019).

    ::

        integers (b, k) ──► bottom MLP ──► (b, dim) ──┬─► dot products ─┬─► top MLP ──► logit
        ids of f features ──► tables ──► (b, f, dim) ─┘   of all pairs  │
                              bottom MLP's output ──────────────────────┘

    Args:
        tables: one for each feature, all of one dim.
        bottom_mlp: widths of the hidden layers over the integers; a last one of `dim` is added.
        top_mlp: widths of the hidden layers over the products; a last one of 1 is added.
        seed: of the initial values of the layers.
        storage: what keeps the tables.
        container: where they live; None leaves it to the `Optimizer`.

    Raises:
        InvalidArgumentError: the tables differ in dim.
    """

    def __init__(
        self,
        tables: Sequence[sparring.TableConfig],
        *,
        bottom_mlp: Sequence[int],
        top_mlp: Sequence[int],
        seed: int = 0,
        storage: StorageLike = "hkv",
        container: StepContainer | None = None,
    ) -> None:
        super().__init__()
        dim = dot_product_dim(tables)
        self._features = tuple(table.name for table in tables)
        features = {
            table.name: FeatureConfig(name=table.name, table=_table_config(table))
            for table in tables
        }
        self.embeddings = EmbeddingCollection(features, storage=storage, container=container)
        self.bottom = _mlp((*bottom_mlp, dim), is_last_activated=True, seed=seed)
        self.top = _mlp((*top_mlp, 1), is_last_activated=False, seed=seed + 1000)
        self._pairs = tuple(dot_product_pairs(len(tables) + 1).tolist())

    def call(self, inputs: tuple[Any, Any], training: bool | None = None) -> Any:
        """Logits ``(b,)``.

        Args:
            inputs: integers ``(b, k)``, scaled to the order of 1, and ids ``(b, features)``.
            training: whether a gradient will come.
        """
        integers, ids = inputs
        bottom = self.bottom(integers)
        batch = dict(zip(self._features, tf.unstack(ids, axis=1), strict=True))
        found = self.embeddings(batch, training=training)
        vectors = tf.stack([bottom, *(found[name] for name in self._features)], axis=1)
        products = tf.matmul(vectors, vectors, transpose_b=True)
        flat = tf.reshape(products, [-1, vectors.shape[1] ** 2])
        pairs = tf.gather(flat, self._pairs, axis=1)
        return tf.squeeze(self.top(tf.concat([bottom, pairs], axis=1)), 1)


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


def _table_config(table: sparring.TableConfig) -> TableConfig:
    return TableConfig(
        name=table.name,
        embedding_dim=table.dim,
        combiner="sum",
        dtype=table.dtype,
        **shared_settings(table),
    )


def _mlp(widths: Sequence[int], *, is_last_activated: bool, seed: int) -> Any:
    layers = []
    for place, width in enumerate(widths):
        is_last = place == len(widths) - 1
        layers.append(
            keras.layers.Dense(
                width,
                activation=None if is_last and not is_last_activated else "relu",
                kernel_initializer=keras.initializers.GlorotUniform(seed=seed + place),
            )
        )
    return keras.Sequential(layers)
