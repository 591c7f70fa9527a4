"""Task of a run: converts batches to tensors, and computes the loss and predictions of its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from sparring import State, StepContainer
from sparring_train.built_models import build_model
from sparring_train.columns import ColumnBatch, Schema
from sparring_train.config.run import RunConfig
from sparring_train.keras.embedding_tables import build_embeddings
from sparring_train.keras.item_softmax import ItemSoftmax, normalize_pair
from sparring_train.loop.column_source import ColumnSource
from sparring_train.loop.logit_check import LogitCheck
from sparring_train.loop.named_loss import check_losses, named_loss
from sparring_train.loop.step_items import COUNTS, StepItems
from sparring_train.run.ranks import Ranks

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["ColumnTask"]


class ColumnTask:
    """The data of a run and its model.

    The model is called with ``(numbers, ids)``. Numbers are ``(b, k)``. Ids are a matrix ``(b, f)``
    if each example has one id per feature, otherwise a dict feature → `tf.RaggedTensor`. It returns
    one number per example, ``(b,)`` or ``(b, 1)``, which is a logit for the log loss. With the loss
    `ranking`, it returns a user vector and an item vector, ``(b, dim)`` each. It uses the features
    that its attribute ``feature_names`` lists; without this attribute, all features. A model can
    define its own loss by a method ``training_loss(numbers, ids, labels, weights)``, which returns
    the sum over a batch.

    Args:
        config: configuration of the run.
        manager: finds kinds of data and models.
        container: container of the tables.
        is_saved: whether the model comes from a snapshot; see `ColumnSource`.
    """

    def __init__(
        self,
        config: RunConfig,
        manager: PluginManager,
        container: StepContainer,
        *,
        is_saved: bool = False,
    ) -> None:
        self.source = ColumnSource(config, manager, container, is_saved=is_saved)
        self._schema: Schema = self.source.schema
        self._is_click = config.model.loss == "log_loss"
        self.model: Any = build_model(
            "tensorflow", keras.Model, build_embeddings, self.source.model_request(), manager
        )
        everything = [feature.name for feature in self._schema.features]
        self._names: list[str] = list(getattr(self.model, "feature_names", everything))
        self._ranks = Ranks(container.collective, container.quiesce)
        self._ranking = config.model.ranking(self._schema)
        own: Callable[..., Any] | None = getattr(self.model, "training_loss", None)
        self._loss_of = own or self._plain_loss
        self._named_loss = named_loss(config, keras.losses.Loss, has_own=own is not None)
        self._logits = LogitCheck(config.model)
        # With a loss of the user, the outputs need not be logits.
        has_loss = own is not None or self._named_loss is not None
        self._logits.is_decided |= has_loss or not self._is_click
        self.outputs: Any = None
        """Outputs of the model in the last loss, ``(b,)``; None if the model defines its own loss."""
        self._softmax: ItemSoftmax | None = None
        if self._ranking is not None and own is None:
            self._softmax = ItemSoftmax(self._ranking, container)

    def make_layers(self) -> None:
        """Creates the layers by calling the model with an empty batch."""
        empty = (tf.zeros([0, *spec.shape[1:]], spec.dtype) for spec in self.input_signature)
        self.predicted(*empty)

    @property
    def input_signature(self) -> list[Any]:
        """Signature of the result of `inputs`, for any batch size."""
        return [
            tf.TensorSpec([None, len(self._schema.numbers)], tf.float32),
            *self._id_signature(),
        ]

    @property
    def training_signature(self) -> list[Any]:
        """Signature of the result of `training_tensors`."""
        answers = self._schema.has_weights + (self._schema.label is not None)
        step = () if self._softmax is None else self._softmax.signature
        return [*self.input_signature, *[tf.TensorSpec([None], tf.float32)] * answers, *step]

    def _id_signature(self) -> list[Any]:
        if self._schema.is_matrix:
            return [tf.TensorSpec([None, len(self._names)], tf.int64)]
        return [tf.TensorSpec([None], tf.int64)] * 2 * len(self._names)

    def training_tensors(self, batch: ColumnBatch) -> list[Any]:
        """Returns this rank's part of a batch as inputs of `loss`. All ranks call it."""
        part = self._ranks.part(batch)
        answers = [each for each in (part.weights, part.labels) if each is not None]
        floats = [tf.convert_to_tensor(np.asarray(each, np.float32)) for each in answers]
        tensors = [*self.inputs(part), *floats]
        if not self._logits.is_decided:
            numbers, ids, _ = self._inputs(tuple(tensors))
            found = self._called(numbers, ids, training=False)
            self._logits.observe(tf.cast(found, tf.float32).numpy())
        if self._ranking is None or self._softmax is None:
            return tensors
        step = StepItems.of(batch, self._ranking.item[0], self._ranks)
        return [*tensors, *self._softmax.tensors(step)]

    def inputs(self, batch: ColumnBatch) -> list[Any]:
        """Returns numbers and ids of a batch."""
        columns = [batch.ids[name] for name in self._names]
        if self._schema.is_matrix:
            ids = [np.stack([column.ids for column in columns], axis=1)]
        else:
            ids = [array for column in columns for array in (column.ids, column.counts)]
        return [tf.convert_to_tensor(each) for each in (batch.numbers, *ids)]

    def loss(self, *tensors: Any) -> Any:
        """Returns the sum of the losses over the batch, which may be empty."""
        numbers, ids, rest = self._inputs(tensors)
        weights = rest.pop(0) if self._schema.has_weights else None
        labels = None if self._schema.label is None else rest.pop(0)
        if self._softmax is None:
            return self._loss_of(numbers, ids, labels, weights)
        pair = self.model((numbers, ids), training=True)
        return self._softmax.loss(pair, labels, weights, step=rest)

    def states(self) -> dict[str, State]:
        """Returns the state in addition to the parameters of the model."""
        return {} if self._softmax is None else {COUNTS: self._softmax.counts.state()}

    def restore(self, states: Mapping[str, State]) -> None:
        """Loads the result of `states`."""
        if self._softmax is not None:
            self._softmax.counts.restore(states)

    def predicted(self, *tensors: Any) -> Any:
        """Returns one prediction per example: a probability, a number, or vectors; see `Predict`."""
        numbers, ids, _ = self._inputs(tensors)
        if self._ranking is not None:
            vectors = normalize_pair(self._ranking, *self.model((numbers, ids), training=False))
            return tf.cast(tf.stack(vectors), tf.float32)
        found = self._called(numbers, ids, training=False)
        return tf.sigmoid(found) if self._is_click else found

    def program(self) -> tuple[list[Any], Callable[..., Any]]:
        """Returns the signature and the function of the exported program. If the model defines
        none, the function computes predictions from numbers ``(b, k)`` and ids ``(b, f)``."""
        own: Any = getattr(self.model, "program", None)
        if own is not None:
            made: tuple[list[Any], Callable[..., Any]] = own()
            return made
        if self._schema.is_matrix:
            return self.input_signature, self.predicted

        def predicted(numbers: Any, ids: Any) -> Any:
            columns = tf.unstack(ids, axis=1)
            one_each = (part for each in columns for part in (each, tf.ones_like(each)))
            return self.predicted(numbers, *one_each)

        ids = tf.TensorSpec([None, len(self._names)], tf.int64)
        return [self.input_signature[0], ids], predicted

    def _inputs(self, tensors: tuple[Any, ...]) -> tuple[Any, Any, list[Any]]:
        """Returns numbers, ids as inputs of the model, and the other tensors."""
        numbers, *rest = tensors
        if self._schema.is_matrix:
            return numbers, rest[0], rest[1:]
        pairs = iter(rest[: 2 * len(self._names)])
        ids = {
            name: tf.RaggedTensor.from_row_lengths(next(pairs), next(pairs), validate=False)
            for name in self._names
        }
        return numbers, ids, rest[2 * len(self._names) :]

    def _called(self, numbers: Any, ids: Any, training: bool) -> Any:
        found = self.model((numbers, ids), training=training)
        # Other shapes are rejected before the first step; see `check_outputs`.
        is_column = found.shape.rank == 2 and found.shape[1] in (1, None)
        return tf.squeeze(found, 1) if is_column else found

    def _plain_loss(self, numbers: Any, ids: Any, labels: Any, weights: Any) -> Any:
        self.outputs = found = self._called(numbers, ids, training=True)
        if self._named_loss is not None:
            # Keras' losses are means over the last axis.
            each = self._named_loss(tf.cast(labels, found.dtype)[:, None], found[:, None])
            check_losses(each.shape, found.shape)
        elif self._is_click:
            each = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, found.dtype), found)
        else:
            each = tf.square(found - tf.cast(labels, found.dtype))
        return tf.reduce_sum(each if weights is None else each * tf.cast(weights, each.dtype))
