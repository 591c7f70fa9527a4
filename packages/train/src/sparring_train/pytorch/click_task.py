"""Training on clicks: `DLRM` on logs in Criteo format, real or synthetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from sparring import StepContainer
from sparring_torch import (
    DLRM,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    KeyedJaggedTensor,
    tables_device,
)
from sparring_train.config.run import RunConfig
from sparring_train.data.batches import ClickBatch
from sparring_train.data.criteo_format import NUM_INTEGERS
from sparring_train.loop.click_source import FEATURES, ClickSource

__all__ = ["ClickTask"]

_FEATURES = list(FEATURES)


@dataclass(frozen=True, slots=True)
class ClickInputs:
    """A batch of clicks as tensors."""

    dense: Tensor
    """``(b, 13)``"""
    features: KeyedJaggedTensor
    labels: Tensor
    """``(b,)``"""


class _ClickProgram(nn.Module):
    """Probabilities of a click ``(b,)``, of numbers ``(b, 13)`` and ids ``(b, 26)``."""

    def __init__(self, model: DLRM) -> None:
        super().__init__()
        self.model = model

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        flat = ids.t().reshape(-1)
        features = KeyedJaggedTensor(_FEATURES, flat, lengths=torch.ones_like(flat))
        logits: Tensor = self.model(dense, features)
        return logits.squeeze(1).sigmoid()


class ClickTask:
    """The model of clicks, and its loss.

    Args:
        config: the run; `data` is of kind criteo or synthetic_criteo, `model` of kind dlrm.
        container: where the tables live, one for each of the 26 features.
    """

    def __init__(self, config: RunConfig, container: StepContainer) -> None:
        self.source = ClickSource(config)
        tables = [EmbeddingBagConfig.of(table) for table in self.source.tables]
        sizes = self.source.model
        self.model = DLRM(
            EmbeddingBagCollection(tables, storage=self.source.storage, container=container),
            dense_in_features=NUM_INTEGERS,
            dense_arch_layer_sizes=[*sizes.bottom_mlp, sizes.embedding_dim],
            over_arch_layer_sizes=[*sizes.top_mlp, 1],
        )
        self.device = tables_device(self.model)
        self.model.to(self.device)

    def inputs(self, batch: ClickBatch) -> ClickInputs:
        """A batch as `loss` wants it."""
        # Feature after feature, as the collection wants it; each bag holds one id.
        ids = torch.from_numpy(np.ascontiguousarray(batch.ids.T).reshape(-1))
        lengths = torch.ones(len(ids), dtype=torch.int64)
        # What is derived from lengths is known before they leave the host.
        features = KeyedJaggedTensor(_FEATURES, ids, lengths=lengths).sync()
        return ClickInputs(
            torch.from_numpy(batch.dense).to(self.device),
            features.to(self.device),
            torch.from_numpy(batch.labels).to(self.device),
        )

    def loss(self, inputs: ClickInputs) -> Tensor:
        """Log loss summed over the batch, which may be empty."""
        logits: Tensor = self.model(inputs.dense, inputs.features).squeeze(1)
        return binary_cross_entropy_with_logits(
            logits, inputs.labels.to(logits.dtype), reduction="sum"
        )

    def program(self) -> nn.Module:
        """The model as it is exported: plain tensors in and out."""
        return _ClickProgram(self.model)

    def program_inputs(self, batch_size: int) -> tuple[Tensor, ...]:
        """An example of what the program takes."""
        ids = torch.zeros((batch_size, len(_FEATURES)), dtype=torch.int64)
        return torch.zeros((batch_size, NUM_INTEGERS)), ids

    def predict(self, batch: ClickBatch) -> npt.NDArray[Any]:
        """Probabilities of a click."""
        inputs = self.inputs(batch)
        probabilities: npt.NDArray[Any] = (
            self.model(inputs.dense, inputs.features).squeeze(1).sigmoid().cpu().numpy()
        )
        return probabilities
