"""The models of configurations as one trainer sees them: arrays of a batch, loss, predictions."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from sparring import StepContainer
from sparring_tf import (
    DLRM,
    EmbeddingCollection,
    FeatureConfig,
    MatrixFactorization,
    TableConfig,
)
from sparring_train.config.run import RunConfig
from sparring_train.data.batches import ClickBatch, RatingBatch
from sparring_train.data.criteo_format import NUM_FEATURES, NUM_INTEGERS
from sparring_train.loop.click_source import ClickSource
from sparring_train.loop.rating_source import RatingSource

__all__ = ["ClickTask", "RatingTask", "Task"]


class Task(Protocol):
    """Model, data and loss of a run."""

    @property
    def source(self) -> Any: ...

    @property
    def model(self) -> Any: ...

    @property
    def signature(self) -> list[Any]:
        """Signature of the result of `tensors`, for a graph of any batch size; last, what is learned."""

    def tensors(self, batch: Any) -> list[Any]:
        """A batch for a graph."""

    def loss(self, *tensors: Any) -> Any:
        """Sum over the batch, which may be empty."""

    def predicted(self, *tensors: Any) -> Any:
        """One prediction for each sample."""


class RatingTask:
    """`MatrixFactorization` on MovieLens.

    Args:
        config: the run; `data` is of kind movielens, `model` of kind matrix_factorization.
        container: where the tables live.

    Raises:
        DataError: the file is missing or malformed, or has too few ratings to split.
    """

    def __init__(self, config: RunConfig, container: StepContainer) -> None:
        self.source = RatingSource(config)
        self.model = MatrixFactorization(
            self.source.users,
            self.source.items,
            mean=self.source.mean,
            storage=self.source.storage,
            container=container,
        )

    @property
    def signature(self) -> list[Any]:
        return [tf.TensorSpec([None], dtype) for dtype in (tf.int64, tf.int64, tf.float32)]

    def tensors(self, batch: RatingBatch) -> list[Any]:
        ratings = np.asarray(batch.ratings, np.float32)
        return [tf.convert_to_tensor(each) for each in (batch.users, batch.items, ratings)]

    def loss(self, users: Any, items: Any, ratings: Any) -> Any:
        source = self.source
        return self.model.loss_of(
            users, items, ratings, embedding_l2=source.embedding_l2, bias_l2=source.bias_l2
        )

    def predicted(self, users: Any, items: Any, _: Any) -> Any:
        return self.model((users, items))


class ClickTask:
    """`DLRM` on logs in Criteo format, real or synthetic.

    Args:
        config: the run; `data` is of kind criteo or synthetic_criteo, `model` of kind dlrm.
        container: where the tables live, one for each of the 26 features.
    """

    def __init__(self, config: RunConfig, container: StepContainer) -> None:
        self.source = ClickSource(config)
        tables, shape = self.source.tables, self.source.model
        self.model = DLRM(
            EmbeddingCollection(
                {
                    each.name: FeatureConfig(name=each.name, table=TableConfig.of(each))
                    for each in tables
                },
                storage=self.source.storage,
                container=container,
            ),
            NUM_INTEGERS,
            [*shape.bottom_mlp, tables[0].dim],
            [*shape.top_mlp, 1],
            seed=config.seed % 2**31,
        )

    @property
    def signature(self) -> list[Any]:
        return [
            tf.TensorSpec([None, NUM_INTEGERS], tf.float32),
            tf.TensorSpec([None, NUM_FEATURES], tf.int64),
            tf.TensorSpec([None], tf.float32),
        ]

    def tensors(self, batch: ClickBatch) -> list[Any]:
        labels = np.asarray(batch.labels, np.float32)
        return [tf.convert_to_tensor(each) for each in (batch.dense, batch.ids, labels)]

    def loss(self, integers: Any, ids: Any, labels: Any) -> Any:
        logits = tf.squeeze(self.model((integers, ids), training=True), 1)
        return tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))

    def predicted(self, integers: Any, ids: Any, _: Any) -> Any:
        return tf.sigmoid(tf.squeeze(self.model((integers, ids)), 1))
