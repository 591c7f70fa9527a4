"""`ColumnSource`: the examples of a run, of any kind of data, and the metrics of any loss."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from sparring import StepContainer, StorageChoice
from sparring.errors import UnsupportedError
from sparring_train.columns import ColumnBatch, Label, Schema
from sparring_train.config.run import RunConfig
from sparring_train.data.dataset import Dataset, OpenRequest
from sparring_train.hookspecs import ModelRequest
from sparring_train.loop.model import Predict
from sparring_train.loop.ranking_evaluation import (
    HeldOut,
    RankingEvaluation,
    drop_incomplete_examples,
)
from sparring_train.named_classes import create, find_class
from sparring_train.quality.predictions import (
    LOWER_IS_BETTER,
    BinaryMetrics,
    CombinedMetrics,
    Quality,
    RegressionMetrics,
)
from sparring_train.registered_kinds import data_kinds
from sparring_train.report.baselines import Baselines
from sparring_train.report.slices import SliceMetrics
from sparring_train.run.ranks import Ranks

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["ColumnSource", "HeldOut", "Observe"]

_SKIPPED = "rows_skipped"


Observe = Callable[[ColumnBatch, npt.NDArray[Any], npt.NDArray[Any]], None]


class ColumnSource:
    """The data of a run, which is opened when it is asked for.

    Args:
        config: the run.
        manager: where kinds of data are looked up.
        container: says which rank this is.
        is_saved: the run has ended, and its model comes from a snapshot: it is built without data.

    Raises:
        DataError: files are missing or malformed.
    """

    def __init__(
        self,
        config: RunConfig,
        manager: PluginManager,
        container: StepContainer,
        *,
        is_saved: bool = False,
    ) -> None:
        self._config, self.container, self._is_saved = config, container, is_saved
        self._kind = data_kinds(manager)[config.data.kind]
        self.schema: Schema = config.data.columns
        self._ranking = config.model.ranking(self.schema)
        self.explain_undefined: str | None = None
        """The reason if the test rows did not determine a metric of the last evaluation."""
        self._lower_is_better = LOWER_IS_BETTER
        if not is_saved:
            _ = self.data
        if config.training.metrics:
            self.quality()  # What is wrong is known before the first step.

    @functools.cached_property
    def data(self) -> Dataset:
        """Its training and its test examples."""
        config, collective = self._config, self.container.collective
        request = OpenRequest(
            config.seed,
            self._label(),
            collective.rank,
            collective.world_size,
            snapshots_url=config.snapshots.url,
            is_saved=self._is_saved,
        )
        return self._kind.open(config.data, request)

    def _label(self) -> Label | None:
        """Labels that the loss takes, or that say which examples are ranked."""
        if self._ranking is not None and self._ranking.positive is not None:
            return self.schema.label
        return self._config.model.label

    def read(self, path: str) -> Iterator[ColumnBatch]:
        """All examples of another file; see `DataDescriptor.read`.

        Raises:
            UnsupportedError: the kind of data reads no other files.
            DataError: the file is missing or malformed.
        """
        if self._kind.read is None:
            raise UnsupportedError(
                f"data.kind: {self._kind.name} reads no other files than those of the run; train with "
                "data.kind: table to predict for files of your own"
            )
        return self._kind.read(self._config.data, path)

    @property
    def steps_per_epoch(self) -> int | None:
        return self.data.steps_per_epoch

    def model_request(self) -> ModelRequest:
        """Parts that a model of this run is built of."""
        config = self._config
        return ModelRequest(
            section=config.model,
            schema=self.schema,
            tables={table.name: table for table in config.list_tables()},
            storage=StorageChoice(config.storage.backend, config.storage.options),
            container=self.container,
            # A snapshot has what a model has learnt of them.
            label_range=None if self._is_saved else self.data.label_range,
            seed=config.seed,
        )

    def batches(self, epoch: int) -> Iterator[ColumnBatch]:
        """All training examples once."""
        batches, ranking = self.data.batches(epoch), self._ranking
        if ranking is None:
            return batches
        whole = (drop_incomplete_examples(each, ranking) for each in batches)
        return (each for each in whole if each.num_examples)

    def evaluate(
        self,
        predict: Predict,
        ranks: Ranks,
        observe: Observe | None = None,
        *,
        part: HeldOut = "test",
    ) -> dict[str, float]:
        """Metrics on the test or the validation examples: AUC and log loss of probabilities, RMSE of
        numbers, or those of `RankingEvaluation`.

        Args:
            predict: gives a rank's predictions for its part of a batch.
            ranks: of the run.
            observe: called with each batch, and the predictions and labels of all ranks for it; not
                where all items are ranked.
            part: the examples.
        """
        if self._ranking is not None:
            metrics = self._rankings.metrics(predict, ranks, part)
            self.explain_undefined = self._rankings.explain_undefined
            return metrics
        known, quality = self.data.label_range, self.quality()
        is_test = part == "test"
        for batch in self.data.test_batches() if is_test else self.data.validation_batches():
            mine, labels = ranks.part(batch), batch.labels
            assert labels is not None
            predictions = ranks.gathered(predict(mine))
            if batch.total is not None:
                labels = ranks.gathered(labels)
            if known is not None and self._config.model.label == "number":
                predictions = predictions.clip(known.minimum, known.maximum)
            quality.update(predictions, labels)
            if observe is not None:
                observe(batch, predictions, labels)
        self.explain_undefined = quality.explain_undefined(part)
        metrics = quality.metrics()
        self._lower_is_better = quality.lower_is_better
        return metrics

    @functools.cached_property
    def _rankings(self) -> RankingEvaluation:
        assert self._ranking is not None
        return RankingEvaluation(
            self._ranking, self.data, has_validation=self._config.data.has_validation
        )

    def quality(self) -> CombinedMetrics:
        """Empty metrics, which measure predictions of this run's model.

        Raises:
            ConfigError: `training.metrics` names no class of metrics, or gives it wrong arguments.
        """
        is_number = self._config.model.label == "number"
        own: Quality = RegressionMetrics() if is_number else BinaryMetrics()
        setting = "training.metrics"
        given = self._config.training.metrics
        more: list[type[Any]] = [
            find_class(each.name, setting, methods=("update", "metrics")) for each in given
        ]
        return CombinedMetrics(
            [
                own,
                *(
                    create(found, each.name, setting, options=each.options)
                    for found, each in zip(more, given, strict=True)
                ),
            ]
        )

    def is_higher_better(self, metric: str) -> bool:
        """Of a metric of the last evaluation."""
        return metric not in self._lower_is_better

    def compute_slice_metrics(self, ranks: Ranks) -> SliceMetrics | None:
        """Empty metrics of slices of the test examples; None where no feature divides them."""
        features = [each.name for each in self.data.schema.features if not each.is_list]
        if not features or self._config.model.label is None:
            return None
        return SliceMetrics(features, self.quality, ranks)

    def baselines(self, ranks: Ranks) -> Baselines | None:
        """Returns measures of predictions that need no model; None if the best reachable one is known."""
        if self._config.model.label is None or any(
            name.startswith("best_") for name in self.data.extra()
        ):
            return None
        features = [each.name for each in self.data.schema.features if not each.is_list]
        return Baselines(features, self.quality, ranks)

    def extra(self) -> dict[str, Any]:
        """See `Dataset.extra`."""
        return {name: each for name, each in self.data.extra().items() if name != _SKIPPED}

    def skipped(self) -> dict[str, int]:
        """Rows that this rank left out of its data, where those are counted."""
        return {name: each for name, each in self.data.extra().items() if name == _SKIPPED}
