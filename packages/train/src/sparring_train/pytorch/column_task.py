"""Task of a run: converts batches to tensors, and computes the loss and predictions of its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from sparring import State, StepContainer
from sparring_torch import KeyedJaggedTensor, tables_device
from sparring_train.built_models import build_model
from sparring_train.columns import ColumnBatch, Schema
from sparring_train.config.run import RunConfig
from sparring_train.live.evaluation import is_evaluated
from sparring_train.loop.column_source import ColumnSource
from sparring_train.loop.logit_check import LogitCheck
from sparring_train.loop.named_loss import check_losses, named_loss
from sparring_train.loop.step_items import COUNTS, StepItems
from sparring_train.pytorch.column_inputs import ColumnInputs
from sparring_train.pytorch.embedding_tables import build_embedding_bags
from sparring_train.pytorch.item_softmax import ItemSoftmax
from sparring_train.run.ranks import Ranks

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["ColumnTask"]


class ColumnTask:
    """The data of a run and its model.

    The model is a module with ``forward(numbers, features)``, which returns one number per example,
    ``(b,)`` or ``(b, 1)``; it is a logit for the log loss. With the loss `ranking`, it returns a user
    vector and an item vector, ``(b, dim)`` each. It uses the features that its attribute
    ``feature_names`` lists; without this attribute, all features. A model can define its own loss
    by a method ``training_loss(inputs: ColumnInputs)``, which returns the sum over a batch.

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
        self.model: nn.Module = build_model(
            "torch", nn.Module, build_embedding_bags, self.source.model_request(), manager
        )
        everything = [feature.name for feature in self._schema.features]
        self._features: list[str] = list(getattr(self.model, "feature_names", everything))
        self.device = tables_device(self.model)
        self.model.to(self.device)
        self._ranks = Ranks(container.collective, container.quiesce)
        self._ranking = config.model.ranking(self._schema)
        self._softmax = None if self._ranking is None else ItemSoftmax(self._ranking, self._ranks)
        own: Callable[[ColumnInputs], Tensor] | None = getattr(self.model, "training_loss", None)
        self.loss: Callable[[ColumnInputs], Tensor] = own or self._loss
        self._named_loss = named_loss(config, nn.Module, has_own=own is not None)
        self._logits = LogitCheck(config.model)
        # With a loss of the user, the outputs need not be logits.
        self._logits.is_decided |= self._named_loss is not None
        self._outputs: list[Tensor] | None = [] if is_evaluated(config) else None

    def training_inputs(self, batch: ColumnBatch) -> ColumnInputs:
        """Returns this rank's part of a batch as inputs of `loss`. All ranks call it."""
        inputs = self.inputs(self._ranks.part(batch))
        if self._ranking is None:
            return inputs
        return replace(inputs, step_items=StepItems.of(batch, self._ranking.item[0], self._ranks))

    def inputs(self, batch: ColumnBatch) -> ColumnInputs:
        """Converts a batch to inputs of the model."""
        columns = [batch.ids[name] for name in self._features]
        ids = torch.from_numpy(np.concatenate([column.ids for column in columns]))
        if all(column.lengths is None for column in columns):
            lengths = torch.ones(len(ids), dtype=torch.int64)
        else:
            lengths = torch.from_numpy(np.concatenate([column.counts for column in columns]))
        # Values derived from lengths are computed before lengths are copied to the device.
        features = KeyedJaggedTensor(self._features, ids, lengths=lengths).sync()
        return ColumnInputs(
            torch.from_numpy(batch.numbers).to(self.device),
            features.to(self.device),
            {
                # Ids from Parquet may be in read-only memory, about which torch warns.
                name: torch.from_numpy(np.require(batch.ids[name].ids, requirements="W")).to(
                    self.device
                )
                for name in self._features
            },
            self._floats(batch.labels),
            self._floats(batch.weights),
        )

    def _floats(self, values: npt.NDArray[Any] | None) -> Tensor | None:
        return None if values is None else torch.from_numpy(values).to(self.device)

    def _loss(self, inputs: ColumnInputs) -> Tensor:
        """Returns the sum of the losses over the batch, which may be empty."""
        if self._softmax is not None:
            return self._softmax.loss(self.model(inputs.numbers, inputs.features), inputs)
        found = self._forward(inputs)
        if self._outputs is not None:
            self._outputs.append(found.detach())
        assert inputs.labels is not None
        labels = inputs.labels.to(found.dtype)
        if self._named_loss is not None:
            each = self._named_loss(found, labels)
            check_losses(each.shape, found.shape)
            summed: Tensor = (each if inputs.weights is None else each * inputs.weights).sum()
            return summed
        if self._is_click:
            if not self._logits.is_decided:
                self._logits.observe(found.detach().float().cpu().numpy())
            return binary_cross_entropy_with_logits(
                found, labels, weight=inputs.weights, reduction="sum"
            )
        squares = (found - labels).square()
        return (squares if inputs.weights is None else squares * inputs.weights).sum()

    def take_outputs(self) -> npt.NDArray[Any] | None:
        """Returns the outputs of the model in the losses since the last call, ``(b,)``; None if they are
        not measured, or the model defines its own loss."""
        if not self._outputs:
            return None
        found: npt.NDArray[Any] = torch.cat(self._outputs).float().cpu().numpy()
        self._outputs.clear()
        return found

    def states(self) -> dict[str, State]:
        """Returns the state in addition to the parameters of the model."""
        return {} if self._softmax is None else {COUNTS: self._softmax.counts.state()}

    def restore(self, states: Mapping[str, State]) -> None:
        """Loads the result of `states`."""
        if self._softmax is not None:
            self._softmax.counts.restore(states)

    def _forward(self, inputs: ColumnInputs) -> Tensor:
        return _one_each(self.model(inputs.numbers, inputs.features))

    def program(self) -> nn.Module:
        """Returns the model to export, with plain tensors as inputs and outputs."""
        own: Callable[[], nn.Module] | None = getattr(self.model, "program", None)
        return _Program(self.model, self._features, self._is_click) if own is None else own()

    def program_inputs(self, batch_size: int) -> tuple[Tensor, ...]:
        """Returns example inputs of the program."""
        ids = torch.zeros((batch_size, len(self._features)), dtype=torch.int64)
        own: Any = getattr(self.model, "program_inputs", None)
        if own is not None:
            example: tuple[Tensor, ...] = own(ids)
            return example
        return torch.zeros((batch_size, len(self._schema.numbers))), ids

    def predict(self, batch: ColumnBatch) -> npt.NDArray[Any]:
        """Returns probabilities of a click, numbers, or vectors; see `Predict`."""
        inputs = self.inputs(batch)
        if self._softmax is not None:
            vectors = self._softmax.vectors(*self.model(inputs.numbers, inputs.features))
            found: npt.NDArray[Any] = torch.stack(vectors).float().cpu().numpy()
            return found
        predicted = self._forward(inputs)
        if self._is_click:
            predicted = predicted.sigmoid()
        numbers: npt.NDArray[Any] = predicted.cpu().numpy()
        return numbers


class _Program(nn.Module):
    """Computes predictions ``(b,)`` from numbers ``(b, k)`` and ids ``(b, f)``."""

    def __init__(self, model: nn.Module, features: list[str], is_click: bool) -> None:
        super().__init__()
        self.model = model
        self._features, self._is_click = features, is_click

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        flat = ids.t().reshape(-1)
        features = KeyedJaggedTensor(self._features, flat, lengths=torch.ones_like(flat))
        found = _one_each(self.model(numbers, features))
        return found.sigmoid() if self._is_click else found


def _one_each(found: Tensor) -> Tensor:
    """Reshapes ``(b,)`` or ``(b, 1)`` to ``(b,)``."""
    return found.squeeze(1) if found.ndim == 2 else found
