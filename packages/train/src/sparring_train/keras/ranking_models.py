"""Models that return a user vector and an item vector, for the loss `ranking`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from sparring_train.hookspecs import ModelRequest
from sparring_train.keras.embedding_tables import build_embeddings

__all__ = ["SequenceNetwork", "TwoTowers"]


class TwoTowers(keras.Model):  # type: ignore[misc,unused-ignore]
    """See `TwoTowersModel`. The same network as in PyTorch."""

    def __init__(self, request: ModelRequest) -> None:
        super().__init__()
        section = request.section
        self._user, self._item = tuple(section.user), tuple(section.item)
        self.feature_names = (*section.user, *section.item)
        self.embeddings = build_embeddings(request, self.feature_names)
        dim, seed = section.embedding_dim, request.seed % 2**31
        self.user_tower = _tower(len(section.user) * dim, section.layers, dim, seed)
        self.item_tower = _tower(len(section.item) * dim, section.layers, dim, seed + 1000)

    def call(self, inputs: tuple[Any, Any], training: bool | None = None) -> tuple[Any, Any]:
        """Returns vectors of users and items, ``(b, dim)`` each."""
        found = self.embeddings(_by_name(inputs[1], self.feature_names), training=training)
        users, items = ([found[name] for name in names] for names in (self._user, self._item))
        return _through(users, self.user_tower), _through(items, self.item_tower)


def _tower(width: int, layers: Sequence[int], dim: int, seed: int) -> Any:
    if not layers:
        return None
    made: list[Any] = [keras.Input((width,))]
    for place, units in enumerate((*layers, dim)):
        initial = keras.initializers.GlorotUniform(seed=seed + place)
        activation = "relu" if place < len(layers) else None
        made.append(keras.layers.Dense(units, activation=activation, kernel_initializer=initial))
    return keras.Sequential(made)


def _through(embeddings: list[Any], tower: Any) -> Any:
    return tf.add_n(embeddings) if tower is None else tower(tf.concat(embeddings, axis=1))


def _by_name(ids: Any, names: Sequence[str]) -> dict[str, Any]:
    if isinstance(ids, dict):
        return ids
    return dict(zip(names, tf.unstack(ids, axis=1), strict=True))


class SequenceNetwork(keras.Model):  # type: ignore[misc,unused-ignore]
    """See `SequenceModel`. The same network as in PyTorch."""

    def __init__(self, request: ModelRequest) -> None:
        super().__init__()
        section, seed = request.section, request.seed % 2**31
        self._history, self._item = section.history, section.item
        self.feature_names = (section.history, section.item)
        self.embeddings = build_embeddings(request, self.feature_names, is_pooled=False)
        dim = section.embedding_dim
        self._length = section.length
        self.positions = self.add_weight(
            shape=(section.length, dim),
            initializer=keras.initializers.RandomNormal(stddev=0.02, seed=seed),
            name="positions",
        )
        self.norm = _norm(dim)
        self.dropout = keras.layers.Dropout(section.dropout, seed=seed)
        self.blocks = [
            AttentionBlock(section, seed + 1000 * (each + 1)) for each in range(section.blocks)
        ]

    def call(self, inputs: tuple[Any, Any], training: bool | None = None) -> tuple[Any, Any]:
        """Returns vectors of the histories and of items, ``(b, dim)`` each."""
        found = self.embeddings(inputs[1], training=training)
        history, is_there = _last(found[self._history], self._length)
        states = self.dropout(self.norm(history + self.positions), training=training)
        places = tf.range(self._length)
        is_before = places[:, None] >= places
        # A position without an item attends to itself, so that the softmax is defined.
        sees = (is_before & is_there[:, None, :]) | (places[:, None] == places)
        for block in self.blocks:
            states = block(states, sees[:, None], training=training)
        return states[:, -1], found[self._item].values


def _norm(dim: int) -> Any:
    norm = keras.layers.LayerNormalization(epsilon=1e-5)
    norm.build((None, dim))
    return norm


def _last(history: Any, length: int) -> tuple[Any, Any]:
    """Returns the last embeddings of each history ``(b, length, dim)``, right-aligned, and their mask."""
    values = history.values
    ends, lengths = history.row_limits(), history.row_lengths()
    back = tf.range(length, 0, -1, dtype=tf.int64)
    is_there = back <= lengths[:, None]
    # Missing positions read the row of zeros after the last embedding.
    places = tf.where(is_there, ends[:, None] - back, tf.shape(values, tf.int64)[0])
    padded = tf.concat([values, tf.zeros([1, values.shape[1]], values.dtype)], 0)
    return tf.gather(padded, places), is_there


class AttentionBlock(keras.layers.Layer):  # type: ignore[misc,unused-ignore]
    """Self-attention and a feed-forward layer, each with a residual connection and layer norm."""

    def __init__(self, section: Any, seed: int) -> None:
        super().__init__()
        dim = section.embedding_dim
        self._heads = section.heads
        widths = (
            (dim, 3 * dim),
            (dim, dim),
            (dim, section.hidden_layer),
            (section.hidden_layer, dim),
        )
        layers = [_dense(*each, seed + place) for place, each in enumerate(widths)]
        self.attention_in, self.attention_out, self.layer_in, self.layer_out = layers
        self.attention_norm, self.layer_norm = _norm(dim), _norm(dim)
        self.dropouts = [
            keras.layers.Dropout(section.dropout, seed=seed + 10 + each) for each in (0, 1)
        ]

    def build(self, *_: Any) -> None:
        """Does nothing, because the constructor builds all layers."""

    def call(self, states: Any, sees: Any, training: bool | None = None) -> Any:
        shape, heads = tf.shape(states), self._heads
        size, length, dim = shape[0], states.shape[1], states.shape[2]
        parts = tf.reshape(self.attention_in(states), [size, length, 3, heads, dim // heads])
        queries, keys, values = tf.unstack(tf.transpose(parts, [2, 0, 3, 1, 4]))
        scores = tf.matmul(queries, keys, transpose_b=True) / (dim // heads) ** 0.5
        scores = tf.where(sees, scores, scores.dtype.min)
        mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores), values), [0, 2, 1, 3])
        mixed = self.attention_out(tf.reshape(mixed, [size, length, dim]))
        states = self.attention_norm(states + self.dropouts[0](mixed, training=training))
        deep = self.layer_out(tf.nn.gelu(self.layer_in(states)))
        return self.layer_norm(states + self.dropouts[1](deep, training=training))


def _dense(width: int, units: int, seed: int) -> Any:
    dense = keras.layers.Dense(
        units, kernel_initializer=keras.initializers.GlorotUniform(seed=seed)
    )
    dense.build((None, width))
    return dense
