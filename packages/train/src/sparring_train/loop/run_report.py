"""The report of a run, if configured."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from sparring import State, StepContainer, open_snapshot
from sparring.adapter import num_threads, resolve_backends
from sparring.errors import DataError, PluginError, SnapshotError
from sparring_cli import list_installed_versions
from sparring_train.columns import ColumnBatch
from sparring_train.config.reading.printer import config_as_yaml
from sparring_train.config.run import RunConfig
from sparring_train.loop.column_source import Observe
from sparring_train.report.baselines import Baselines
from sparring_train.report.host import inspect_host
from sparring_train.report.page import write_report
from sparring_train.report.recorder import RecordingProgress, RunRecorder
from sparring_train.report.run_data import REPORT, RunData, SnapshotOfRun, run_data
from sparring_train.report.slices import SliceMetrics
from sparring_train.run.result import Progress, TrainResult

__all__ = ["RunReport"]

_NUM_POINTS = 200


class RunReport:
    """Records data for the report, and writes it at the end. Does nothing if no path is configured.

    Args:
        config: configuration of the run; `report.path` is the file.
        container: container of the tables.
        progress: receives progress, also if no report is configured.
        total_steps: number of steps of the run, if known; determines how often rows are counted.
        versions: versions of the framework.
        slices: metrics of slices of the test examples, if the data support them.
        baselines: metrics of predictions without a model, if the data support them.

    Raises:
        PluginError: a report is configured, but matplotlib is not installed.
    """

    def __init__(
        self,
        config: RunConfig,
        container: StepContainer,
        progress: Progress,
        total_steps: int | None,
        versions: Mapping[str, str],
        slices: SliceMetrics | None,
        baselines: Baselines | None,
    ) -> None:
        self._config = config
        self._container = container
        self._versions = dict(versions)
        self._slices: SliceMetrics | None = None
        self._slices_absence = ""
        self._baselines: Baselines | None = None
        self._started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._recorder: RunRecorder | None = None
        self.progress = progress
        if config.report.path is not None:
            # Raises before training, not at its end.
            if importlib.util.find_spec("matplotlib") is None:
                raise PluginError(
                    f"a report at {config.report.path} needs matplotlib, which is not installed; "
                    "run: pip install 'sparring[report]', or set report.path=null"
                )
            self._recorder, self._slices, self._baselines = RunRecorder(), slices, baselines
            self.progress = RecordingProgress(progress, self._recorder)
        self._interval = max(1, (total_steps or _NUM_POINTS) // _NUM_POINTS)

    def wants_rows(self, step: int) -> bool:
        """Returns whether rows should be counted after this step."""
        return self._recorder is not None and step % self._interval == 0

    def on_rows(self, step: int, rows: Mapping[str, int]) -> None:
        """Records the number of rows of each table after a step."""
        if self._recorder is not None:
            for table, count in rows.items():
                self._recorder.record(step, f"rows/{table}", count)

    def on_batch(self, batch: ColumnBatch, *, is_first_epoch: bool) -> None:
        """Counts the ids of a training batch."""
        if self._recorder is not None:
            for feature, column in batch.ids.items():
                self._recorder.observe_ids(feature, column.ids)
        if self._slices is not None and is_first_epoch:
            self._slices.on_training_batch(batch)
        if self._baselines is not None and is_first_epoch:
            self._baselines.on_training_batch(batch)

    @property
    def wants_slices(self) -> bool:
        """Whether slices have not been measured yet."""
        return self._slices is not None and not self._slices.is_measured

    def test_observer(self) -> Observe | None:
        """Returns a callback for the final predictions on the test examples. All ranks call it."""
        observers: list[Observe] = []
        for each in (self._slices, self._baselines):
            if each is not None:
                each.begin()
                observers.append(each.on_test_batch)

        def observe(batch: ColumnBatch, predictions: Any, labels: Any) -> None:
            for each in observers:
                each(batch, predictions, labels)

        return observe if observers else None

    def states(self, result: Callable[[], TrainResult]) -> dict[str, State]:
        """Returns the state for a snapshot: the data of the report so far; empty without a path.

        Args:
            result: returns the result of the run so far.
        """
        if self._recorder is None:
            return {}
        so_far = result()
        # Only the first rank saves it.
        is_first = so_far.rank == 0
        return {
            REPORT: State(self._data(so_far, self._recorder, None).as_json() if is_first else None)
        }

    def resume(self, states: Mapping[str, State], url: str) -> None:
        """Continues with the curves in the snapshot at `url`, if it contains any."""
        self._baselines = None
        if self._slices is not None:
            self._slices = None
            self._slices_absence = (
                "Not measured, because the run was resumed and earlier counts of ids are unknown."
            )
        if self._recorder is None or REPORT not in states:
            return
        try:
            series = run_data(states[REPORT].values, url).series
        except DataError as error:  # For example data of a later release.
            self.progress.on_message(f"the report starts after this snapshot: {error}")
            return
        for name, points in series.items():
            for step, value in zip(points.steps, points.values, strict=True):
                self._recorder.record(step, name, value)

    def write(self, result: TrainResult, snapshot_url: str | None) -> None:
        """Writes the file, on the first rank.

        Args:
            result: result of the run.
            snapshot_url: its newest snapshot, if any.

        Raises:
            DataError: the file cannot be written.
        """
        path, recorder = self._config.report.path, self._recorder
        if path is None or recorder is None or result.rank > 0:
            return
        write_report(
            path,
            self._data(result, recorder, snapshot_url),
            recorder.id_counts(),
            config_text=config_as_yaml(self._config),
        )

    def _data(
        self, result: TrainResult, recorder: RunRecorder, snapshot_url: str | None
    ) -> RunData:
        best = {name: result.extra.get(f"best_{name}") for name in result.metrics}
        return RunData(
            started=self._started,
            seconds=result.seconds,
            steps=result.steps,
            resumed_steps=result.resumed_steps,
            metrics=dict(result.metrics),
            undefined_metrics=result.extra.get("undefined_metrics", ""),
            best={n: float(each) for n, each in best.items() if isinstance(each, (int, float))},
            baselines=[] if self._baselines is None else self._baselines.baselines(),
            validation=dict(result.validation),
            best_step=result.best_step,
            rows=dict(result.rows),
            not_admitted=dict(result.not_admitted),
            skipped=dict(result.skipped),
            tiers={name: [dict(tier) for tier in tiers] for name, tiers in result.tiers.items()},
            series=dict(recorder.series),
            slices=[] if self._slices is None else self._slices.slices(),
            slices_absence=self._slices_absence,
            config=self._config.model_dump(mode="json"),
            versions=self._installed | self._versions,
            backends=self._backends(),
            host=inspect_host(),
            world_size=self._container.collective.world_size,
            threads=num_threads(),
            peak_memory_bytes=result.peak_memory_bytes or None,
            snapshot=_snapshot(snapshot_url),
        )

    @cached_property
    def _installed(self) -> dict[str, str]:
        return {name: found for name, found in list_installed_versions().items() if found}

    def _backends(self) -> dict[str, str]:
        config, container = self._config, self._container
        storages = [
            " over ".join(tier.backend for tier in container.tiers(name))
            for name in container.tables
        ]
        collective = resolve_backends(
            config.rendezvous.backend, config.collective.backend, framework=config.framework
        ).collective
        return {
            "framework": config.framework,
            "storage": ", ".join(dict.fromkeys(filter(None, storages))),
            "collective": collective,
        }


def _snapshot(url: str | None) -> SnapshotOfRun | None:
    """Returns a description of a snapshot; None if it no longer exists."""
    if url is None:
        return None
    try:
        found = open_snapshot(url)
    except SnapshotError:
        return None
    return SnapshotOfRun(url=url, step=found.step, manifest_hash=found.manifest_hash)
