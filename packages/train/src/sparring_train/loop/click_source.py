"""Clicks: a log in Criteo format, real or synthetic, in the order of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sparring import StorageChoice
from sparring.contracts import TableConfig
from sparring_train.config.data import CriteoData, SyntheticCriteoData
from sparring_train.config.model import DlrmModel
from sparring_train.config.run import RunConfig
from sparring_train.data.batches import ClickBatch, rebatch
from sparring_train.data.criteo import read_clicks
from sparring_train.data.criteo_format import COLUMNS, NUM_FEATURES
from sparring_train.data.planted_model import PlantedModel
from sparring_train.loop.model import Predict
from sparring_train.quality import CollectedPredictions, MeanLogLoss, auc, log_loss
from sparring_train.ranks import Ranks

__all__ = ["FEATURES", "ClickSource"]

FEATURES = tuple(COLUMNS[-NUM_FEATURES:])
"""The features of a click log, in the order of the columns of `ClickBatch.ids`."""

_EVALUATION_BATCH_SIZE = 8192

_Batches = Callable[[], Iterator[ClickBatch]]


class ClickSource:
    """Streams a click log, and says what tables a DLRM on it needs: one for each feature.

    Args:
        config: the run; `data` is of kind criteo or synthetic_criteo, `model` of kind dlrm.
    """

    def __init__(self, config: RunConfig) -> None:
        data, model = config.data, config.model
        assert isinstance(model, DlrmModel)
        self.model = model
        self.storage = StorageChoice(config.storage.backend, config.storage.options)
        self._extra: dict[str, Any] = {}
        self.steps_per_epoch: int | None = None
        if isinstance(data, SyntheticCriteoData):
            self._train, self._test = self._synthetic(data, config.seed)
            self.steps_per_epoch = -(-data.samples // data.batch_size)
        else:
            assert isinstance(data, CriteoData)
            self._train, self._test = _logged(data, config.seed % 2**64)
        self.tables = [
            config.tables.table_config(TableConfig(name, model.embedding_dim, seed=config.seed))
            for name in FEATURES
        ]

    def batches(self, epoch: int) -> Iterator[ClickBatch]:
        """The training part of the log, once."""
        return self._train()

    def evaluate(self, predict: Predict, ranks: Ranks) -> dict[str, float]:
        """AUC and log loss on the test part, of predicted probabilities."""
        predictions, mean_log_loss = CollectedPredictions(), MeanLogLoss()
        for batch in self._test():
            probabilities = ranks.gathered(predict(ranks.part(batch)))
            predictions.update(probabilities, batch.labels)
            mean_log_loss.update(probabilities, batch.labels)
        return {"auc": predictions.auc(), "log_loss": mean_log_loss.value}

    def ids(self, batch: ClickBatch) -> dict[str, npt.NDArray[np.int64]]:
        """Feature → its ids."""
        return dict(zip(FEATURES, batch.ids.T, strict=True))

    def extra(self) -> dict[str, Any]:
        """``best_auc`` and ``best_log_loss`` where the log is synthetic."""
        return self._extra

    def _synthetic(self, data: SyntheticCriteoData, seed: int) -> tuple[_Batches, _Batches]:
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


def _logged(data: CriteoData, seed: int) -> tuple[_Batches, _Batches]:
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
