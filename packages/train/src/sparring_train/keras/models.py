"""Models of sparring-tf with columns as input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from sparring_tf import DLRM, DeepFM, MatrixFactorization
from sparring_train.hookspecs import ModelRequest
from sparring_train.keras.embedding_tables import build_embeddings

__all__ = ["ColumnDLRM", "ColumnDeepFM", "ColumnFactorization"]


class ColumnDLRM(DLRM):
    """A `DLRM` with columns as input."""

    def __init__(self, request: ModelRequest) -> None:
        section = request.section
        super().__init__(
            build_embeddings(request),
            max(len(request.schema.numbers), 1),
            [*section.bottom_mlp, section.embedding_dim],
            [*section.top_mlp, 1],
            seed=request.seed % 2**31,
        )

    def call(self, inputs: tuple[Any, Any], training: bool | None = None) -> Any:
        """Returns logits ``(b, 1)``."""
        return super().call(_with_numbers(inputs), training)


class ColumnDeepFM(DeepFM):
    """A `DeepFM` with columns as input that returns logits."""

    def __init__(self, request: ModelRequest) -> None:
        section = request.section
        super().__init__(
            max(len(request.schema.numbers), 1),
            build_embeddings(request),
            section.hidden_layer,
            section.deep_layer,
            seed=request.seed % 2**31,
        )

    def call(self, inputs: tuple[Any, Any], training: bool | None = None) -> Any:
        """Returns logits ``(b, 1)``."""
        return self.logits(_with_numbers(inputs), training)


def _with_numbers(inputs: tuple[Any, Any]) -> tuple[Any, Any]:
    """Returns numbers ``(b, k)`` and ids. If k is 0, numbers are a column of ones, from which the dense
    layers learn one vector for all examples."""
    numbers, ids = inputs
    return (numbers if numbers.shape[1] else tf.ones([tf.shape(numbers)[0], 1]), ids)


class ColumnFactorization(MatrixFactorization):
    """A `MatrixFactorization` with columns as input."""

    def __init__(self, request: ModelRequest) -> None:
        section, known = request.section, request.label_range
        user, item = (request.schema.feature(each) for each in (section.user, section.item))
        assert user is not None
        assert item is not None
        super().__init__(
            request.tables[user.table_name],
            request.tables[item.table_name],
            mean=0.0 if known is None else known.mean,
            storage=request.storage,
            container=request.container,
        )
        self._section = section
        names = [feature.name for feature in request.schema.features]
        self._places = names.index(section.user), names.index(section.item)

    def call(self, inputs: tuple[Any, Any], training: bool | None = None) -> Any:
        """Returns predicted ratings ``(b,)``."""
        return super().call(self._pairs(inputs[1]), training=training)

    def training_loss(self, numbers: Any, ids: Any, labels: Any, weights: Any) -> Any:
        """Returns the sum over the batch of squared errors and of penalties on the parameters used."""
        section = self._section
        users, items = self._pairs(ids)
        return self.loss_of(
            users,
            items,
            labels,
            embedding_l2=section.embedding_l2,
            bias_l2=section.bias_l2,
            weights=weights,
        )

    def program(self) -> tuple[list[Any], Callable[..., Any]]:
        """Returns the signature and the function: users and items ``(b,)`` to ratings ``(b,)``."""

        def predicted(users: Any, items: Any) -> Any:
            return MatrixFactorization.call(self, (users, items))

        return [tf.TensorSpec([None], tf.int64)] * 2, predicted

    def _pairs(self, ids: Any) -> tuple[Any, Any]:
        if isinstance(ids, dict):
            return ids[self._section.user].values, ids[self._section.item].values
        user, item = self._places
        return ids[:, user], ids[:, item]
