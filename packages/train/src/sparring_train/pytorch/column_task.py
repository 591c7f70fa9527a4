"""Any model on any columns: batches as tensors, the loss, predictions."""

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

    The model is a module with ``forward(numbers, features)``, which gives one number for each
    example: ``(b,)`` or ``(b, 1)``, a logit where the loss is the log loss; with the loss `ranking` it
    gives two vectors, of user and of item, ``(b, dim)`` each. Features are those of its attribute
    ``feature_names``, or all. With a method
    ``training_loss(inputs: ColumnInputs)`` that gives the sum over a batch it brings a loss of its own.

    Args:
        config: the run.
        manager: where kinds of data and of models are looked up.
        container: where the tables live.
        is_saved: the model comes from a snapshot; see `ColumnSource`.
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
        self._logits = LogitCheck(config.model.kind)
        # A loss of the user's own may expect anything.
        self._logits.is_decided = self._named_loss is not None

    def training_inputs(self, batch: ColumnBatch) -> ColumnInputs:
        """This rank's part of a batch as `loss` wants it; all ranks call it."""
        inputs = self.inputs(self._ranks.part(batch))
        if self._ranking is None:
            return inputs
        return replace(inputs, step_items=StepItems.of(batch, self._ranking.item[0], self._ranks))

    def inputs(self, batch: ColumnBatch) -> ColumnInputs:
        """A batch as the model wants it."""
        columns = [batch.ids[name] for name in self._features]
        ids = torch.from_numpy(np.concatenate([column.ids for column in columns]))
        if all(column.lengths is None for column in columns):
            lengths = torch.ones(len(ids), dtype=torch.int64)
        else:
            lengths = torch.from_numpy(np.concatenate([column.counts for column in columns]))
        # What is derived from lengths is known before they leave the host.
        features = KeyedJaggedTensor(self._features, ids, lengths=lengths).sync()
        return ColumnInputs(
            torch.from_numpy(batch.numbers).to(self.device),
            features.to(self.device),
            {
                # Ids of Parquet may be memory that is read only, which torch warns of.
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
        """Summed over the batch, which may be empty."""
        if self._softmax is not None:
            return self._softmax.loss(self.model(inputs.numbers, inputs.features), inputs)
        found = self._forward(inputs)
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

    def states(self) -> dict[str, State]:
        """State besides that of the model."""
        return {} if self._softmax is None else {COUNTS: self._softmax.counts.state()}

    def restore(self, states: Mapping[str, State]) -> None:
        """Takes over what `states` gave."""
        if self._softmax is not None:
            self._softmax.counts.restore(states)

    def _forward(self, inputs: ColumnInputs) -> Tensor:
        return _one_each(self.model(inputs.numbers, inputs.features))

    def program(self) -> nn.Module:
        """The model as it is exported: plain tensors in and out."""
        own: Callable[[], nn.Module] | None = getattr(self.model, "program", None)
        return _Program(self.model, self._features, self._is_click) if own is None else own()

    def program_inputs(self, batch_size: int) -> tuple[Tensor, ...]:
        """An example of what the program takes."""
        ids = torch.zeros((batch_size, len(self._features)), dtype=torch.int64)
        own: Any = getattr(self.model, "program_inputs", None)
        if own is not None:
            example: tuple[Tensor, ...] = own(ids)
            return example
        return torch.zeros((batch_size, len(self._schema.numbers))), ids

    def predict(self, batch: ColumnBatch) -> npt.NDArray[Any]:
        """Probabilities of a click, numbers, or vectors; see `Predict`."""
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
    """Predictions ``(b,)`` of numbers ``(b, k)`` and ids ``(b, f)``."""

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
    """``(b,)`` of ``(b,)`` or ``(b, 1)``."""
    return found.squeeze(1) if found.ndim == 2 else found
