"""`ColumnSource`: the examples of a run and its metrics, for every kind of data and loss."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy.typing as npt

from sparring import LoadResult, State, StepContainer, StorageChoice
from sparring.errors import UnsupportedError
from sparring_train.columns import ColumnBatch, Label, Schema
from sparring_train.config.run import RunConfig
from sparring_train.data.dataset import Dataset, OpenRequest, StreamedDataset
from sparring_train.hookspecs import ModelRequest
from sparring_train.loop.model import Predict
from sparring_train.loop.position import Position
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

_SKIPPED = ("rows_skipped", "events_erased")


Observe = Callable[[ColumnBatch, npt.NDArray[Any], npt.NDArray[Any]], None]


class ColumnSource:
    """Data and metrics of a run.

    Args:
        config: configuration of the run.
        manager: finds the kind of data.
        container: container of the tables.
        is_saved: whether the model comes from a snapshot. The data are then opened on first access.

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
        self._manager = manager
        self._kind = data_kinds(manager)[config.data.kind]
        self.schema: Schema = config.data.columns
        self._ranking = config.model.ranking(self.schema)
        self.explain_undefined: str | None = None
        """The reason for which a metric was undefined in the last evaluation, if any."""
        self.num_evaluated = 0
        """Number of rows, or of queries of a ranking, in the last evaluation."""
        self._lower_is_better = LOWER_IS_BETTER
        if not is_saved:
            _ = self.data
        if config.training.metrics:
            self.quality()  # Raises errors of the configuration before the first step.

    @functools.cached_property
    def data(self) -> Dataset:
        """Training, validation and test examples."""
        config, collective = self._config, self.container.collective
        request = OpenRequest(
            config.seed,
            self._label(),
            collective.rank,
            collective.world_size,
            snapshots_url=config.snapshots.url,
            is_saved=self._is_saved,
            gather=Ranks(collective, self.container.quiesce).gathered_bytes,
            plugin_manager=self._manager,
        )
        return self._kind.open(config.data, request)

    def _label(self) -> Label | None:
        """Returns the kind of labels that the loss or the selection of positive examples requires."""
        if self._ranking is not None and self._ranking.positive is not None:
            return self.schema.label
        return self._config.model.label

    def read(self, path: str) -> Iterator[ColumnBatch]:
        """Yields all examples of another file; see `DataDescriptor.read`.

        Raises:
            UnsupportedError: the kind of data does not support other files.
            DataError: the file is missing or malformed.
        """
        if self._kind.read is None:
            raise UnsupportedError(
                f"reading {path}: data.kind: {self._kind.name} does not support other files than those "
                "of the run; train with data.kind: table to predict for files",
            )
        return self._kind.read(self._config.data, path)

    @property
    def steps_per_epoch(self) -> int | None:
        return self.data.steps_per_epoch

    def model_request(self) -> ModelRequest:
        """Returns the inputs for building the model of this run."""
        config = self._config
        return ModelRequest(
            section=config.model,
            schema=self.schema,
            tables={table.name: table for table in config.list_tables()},
            storage=StorageChoice(config.storage.backend, config.storage.options),
            container=self.container,
            # The parameters in a snapshot already contain it.
            label_range=None if self._is_saved else self.data.label_range,
            seed=config.seed,
        )

    def batches(self, epoch: int) -> Iterator[ColumnBatch | None]:
        """Yields all training examples once, and None if a stream has no event yet."""
        batches: Iterator[ColumnBatch | None] = self.data.batches(epoch)
        ranking = self._ranking
        if ranking is None:
            return batches
        whole = (
            None if each is None else drop_incomplete_examples(each, ranking) for each in batches
        )
        return (each for each in whole if each is None or each.num_examples)

    def resume(self, position: Position, loaded: LoadResult) -> None:
        """Continues a stream at the position of a loaded snapshot; nothing for other data."""
        if not self._config.data.has_epochs:
            stream = cast(StreamedDataset, self.data)
            stream.resume(position.step, position.stream or {}, loaded.states, loaded.url)

    def states(self, step: int) -> Mapping[str, State]:
        """See `StreamedDataset.states`; empty for other data."""
        is_stream = not self._config.data.has_epochs
        return cast(StreamedDataset, self.data).states(step) if is_stream else {}

    def metrics(self) -> Mapping[str, Any]:
        """See `StreamedDataset.metrics`; empty for other data."""
        is_stream = not self._config.data.has_epochs
        return cast(StreamedDataset, self.data).metrics() if is_stream else {}

    @property
    def pinned(self) -> Mapping[str, Any]:
        """See `PinnedDataset.pinned`; empty for other data."""
        found: Mapping[str, Any] = getattr(self.data, "pinned", {})
        return found

    def close(self) -> None:
        """Closes a stream. Nothing is read afterwards."""
        if not self._config.data.has_epochs and "data" in vars(self):
            cast(StreamedDataset, self.data).close()

    def evaluate(
        self,
        predict: Predict,
        ranks: Ranks,
        observe: Observe | None = None,
        *,
        part: HeldOut = "test",
    ) -> dict[str, float]:
        """Computes metrics on the test or validation examples: AUC and log loss of probabilities, RMSE
        of numbers, or the metrics of `RankingEvaluation`; none if the data have no test examples.

        Args:
            predict: computes predictions for a rank's part of a batch.
            ranks: ranks of the run.
            observe: called with each batch, and the predictions and labels of all ranks for it; not
                called by a ranking evaluation.
            part: the examples to evaluate.
        """
        if not self._config.data.has_test:
            return {}
        if self._ranking is not None:
            metrics = self._rankings.metrics(predict, ranks, part)
            self.explain_undefined = self._rankings.explain_undefined
            self.num_evaluated = self._rankings.num_queries
            return metrics
        known, quality = self.data.label_range, self.quality()
        is_test, self.num_evaluated = part == "test", 0
        for batch in self.data.test_batches() if is_test else self.data.validation_batches():
            mine, labels = ranks.part(batch), batch.labels
            assert labels is not None
            predictions = ranks.gathered(predict(mine))
            if batch.total is not None:
                labels = ranks.gathered(labels)
            if known is not None and self._config.model.label == "number":
                predictions = predictions.clip(known.minimum, known.maximum)
            quality.update(predictions, labels)
            self.num_evaluated += len(labels)
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
            self._ranking,
            self.data,
            has_validation=self._config.data.has_validation,
            measures_popularity=self._config.report.path is not None,
        )

    def quality(self) -> CombinedMetrics:
        """Creates empty metrics for the predictions of this run's model.

        Raises:
            ConfigError: a class in `training.metrics` does not exist or does not accept its arguments.
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
        """Returns whether higher values of a metric of the last evaluation are better."""
        return metric not in self._lower_is_better

    def make_slice_metrics(self, ranks: Ranks) -> SliceMetrics | None:
        """Creates empty metrics of slices of the test examples; None if no feature defines slices."""
        features = [each.name for each in self.data.schema.features if not each.is_list]
        if not features or self._config.model.label is None or not self._config.data.has_test:
            return None
        return SliceMetrics(features, self.quality, ranks)

    @property
    def is_binary(self) -> bool:
        """Whether predictions for test examples are probabilities of a binary label."""
        return (
            self._config.data.has_test
            and self._ranking is None
            and self._config.model.label == "binary"
        )

    @property
    def popularity(self) -> dict[str, float]:
        """See `RankingEvaluation.popularity`; empty for other models."""
        return {} if self._ranking is None else self._rankings.popularity

    def baselines(self, ranks: Ranks) -> Baselines | None:
        """Creates metrics of predictions without a model; None if the best possible metrics are
        known."""
        data = self._config.data
        if (
            self._config.model.label is None
            or not data.has_test
            or any(name.startswith("best_") for name in self.data.extra())
        ):
            return None
        features = [each.name for each in self.data.schema.features if not each.is_list]
        return Baselines(features, self.quality, ranks)

    def extra(self) -> dict[str, Any]:
        """See `Dataset.extra`."""
        return {name: each for name, each in self.data.extra().items() if name not in _SKIPPED}

    def skipped(self) -> dict[str, int]:
        """Returns the numbers of rows that this rank skipped, if they are counted."""
        return {name: each for name, each in self.data.extra().items() if name in _SKIPPED}
