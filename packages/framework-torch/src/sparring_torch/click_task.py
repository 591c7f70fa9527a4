"""Training on clicks: `Dlrm` on logs in Criteo format, real or synthetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from sparring import StepContainer, TableConfig
from sparring.config import CriteoData, DlrmModel, RunConfig, SyntheticCriteoData
from sparring.data import (
    COLUMNS,
    NUM_FEATURES,
    NUM_INTEGERS,
    ClickBatch,
    PlantedModel,
    read_clicks,
    rebatch,
)
from sparring.metrics import CollectedPredictions, MeanLogLoss, auc, log_loss
from sparring.ranks import Ranks
from sparring.step import StorageChoice
from sparring_torch.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.models import Dlrm

__all__ = ["ClickTask"]

_FEATURES = list(COLUMNS[-NUM_FEATURES:])
_EVALUATION_BATCH_SIZE = 8192

Batches = Callable[[], Iterator[ClickBatch]]


@dataclass(frozen=True, slots=True)
class ClickInputs:
    """A batch of clicks as tensors."""

    dense: Tensor
    """``(b, 13)``"""
    features: KeyedJaggedTensor
    labels: Tensor
    """``(b,)``"""


class ClickTask:
    """Streams a click log through a DLRM, in the order of the log.

    Args:
        config: the run; `data` is of kind criteo or synthetic_criteo, `model` of kind dlrm.
        container: where the tables live, one for each of the 26 features.
    """

    def __init__(self, config: RunConfig, container: StepContainer) -> None:
        data, model = config.data, config.model
        assert isinstance(model, DlrmModel)
        self._extra: dict[str, Any] = {}
        self.steps_per_epoch: int | None = None
        if isinstance(data, SyntheticCriteoData):
            self._train, self._test = self._synthetic(data, config.seed)
            self.steps_per_epoch = -(-data.samples // data.batch_size)
        else:
            assert isinstance(data, CriteoData)
            self._train, self._test = _logged(data, config.seed % 2**64)
        tables = [
            config.tables.table_config(TableConfig(name, model.embedding_dim, seed=config.seed))
            for name in _FEATURES
        ]
        self.model = Dlrm(
            tables,
            num_integers=NUM_INTEGERS,
            bottom_mlp=model.bottom_mlp,
            top_mlp=model.top_mlp,
            storage=StorageChoice(config.storage.backend, config.storage.options),
            container=container,
        )

    def batches(self, epoch: int) -> Iterator[ClickBatch]:
        """The training part of the log, once."""
        return self._train()

    def inputs(self, batch: ClickBatch) -> ClickInputs:
        """A batch as `loss` wants it."""
        # Feature after feature, as the collection wants it; each bag holds one id.
        ids = torch.from_numpy(np.ascontiguousarray(batch.ids.T).reshape(-1))
        return ClickInputs(
            torch.from_numpy(batch.dense),
            KeyedJaggedTensor(_FEATURES, ids, lengths=torch.ones(len(ids), dtype=torch.int64)),
            torch.from_numpy(batch.labels),
        )

    def loss(self, inputs: ClickInputs) -> Tensor:
        """Log loss summed over the batch, which may be empty."""
        logits: Tensor = self.model(inputs.dense, inputs.features)
        return binary_cross_entropy_with_logits(
            logits, inputs.labels.to(logits.dtype), reduction="sum"
        )

    def evaluate(self, ranks: Ranks) -> dict[str, float]:
        """AUC and log loss on the test part."""
        predictions, mean_log_loss = CollectedPredictions(), MeanLogLoss()
        for batch in self._test():
            inputs = self.inputs(ranks.part(batch))
            logits = self.model(inputs.dense, inputs.features)
            probabilities = ranks.gathered(logits.sigmoid().numpy())
            predictions.update(probabilities, batch.labels)
            mean_log_loss.update(probabilities, batch.labels)
        return {"auc": predictions.auc(), "log_loss": mean_log_loss.value}

    def ids(self, batch: ClickBatch) -> dict[str, npt.NDArray[np.int64]]:
        """Feature → its ids."""
        return dict(zip(_FEATURES, batch.ids.T, strict=True))

    def extra(self) -> dict[str, Any]:
        """``best_auc`` and ``best_log_loss`` where the log is synthetic."""
        return self._extra

    def _synthetic(self, data: SyntheticCriteoData, seed: int) -> tuple[Batches, Batches]:
        planted = PlantedModel(
            seed=seed,
            skew=data.skew,
            max_ids=data.max_ids,
            missing_fraction=data.missing_fraction,
        )
        test = list(planted.chunks(data.test_samples, "test"))
        probabilities = np.concatenate([chunk.probabilities for chunk in test])
        labels = np.concatenate([chunk.labels for chunk in test])
        self._extra = {
            "best_auc": auc(probabilities, labels),
            "best_log_loss": log_loss(probabilities, labels),
        }

        def train() -> Iterator[ClickBatch]:
            chunks = planted.chunks(data.samples, "train")
            return rebatch((chunk.batch for chunk in chunks), data.batch_size)

        return train, lambda: rebatch((chunk.batch for chunk in test), _EVALUATION_BATCH_SIZE)


def _logged(data: CriteoData, seed: int) -> tuple[Batches, Batches]:
    """The training and the test part of a log that is read from files."""
    if data.test_path is not None:
        test_path = data.test_path
        return (
            lambda: read_clicks(data.path, data.batch_size),
            lambda: read_clicks(test_path, _EVALUATION_BATCH_SIZE),
        )

    def part(name: Literal["train", "test"], batch_size: int) -> Iterator[ClickBatch]:
        return read_clicks(
            data.path, batch_size, part=name, test_fraction=data.test_fraction, seed=seed
        )

    return (
        lambda: part("train", data.batch_size),
        lambda: part("test", _EVALUATION_BATCH_SIZE),
    )
