"""Records runs in MLflow."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparring_train.trackers.contract import TrackerRequest

__all__ = ["MlflowTracker"]

_MAX_PARAMETERS = 100
"""MLflow accepts at most this many parameters per call."""
_MAX_METRICS = 1000
"""The same for metrics."""
_MAX_VALUE = 500
"""Length to which values of parameters are cut, which every store of MLflow accepts."""


class MlflowTracker:
    """Creates a run in an experiment of MLflow.

    Args:
        request: see `TrackerRequest`. Without `url`, MLflow uses its own settings, such as
            ``MLFLOW_TRACKING_URI``.
    """

    def __init__(self, request: TrackerRequest) -> None:
        # MLflow's defaults repeat a call for minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric = Metric
        self._client = MlflowClient(tracking_uri=request.url)
        found = self._client.get_experiment_by_name(request.project)
        number = (
            self._client.create_experiment(request.project)
            if found is None
            else found.experiment_id
        )
        self._run: str = self._client.create_run(number, run_name=request.name).info.run_id
        parameters = [Param(key, text[:_MAX_VALUE]) for key, text in _flat(request.config)]
        for begin in range(0, len(parameters), _MAX_PARAMETERS):
            part = parameters[begin : begin + _MAX_PARAMETERS]
            self._client.log_batch(self._run, params=part)
        self._client.log_dict(self._run, dict(request.config), "configuration.json")

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `Tracker.log_metrics`. Replaces characters that MLflow does not accept in names."""
        now = int(time.time() * 1000)
        made = [
            self._metric(re.sub(r"[^\w\-./ ]", "_", name), value, now, step)
            for name, value in metrics.items()
        ]
        for begin in range(0, len(made), _MAX_METRICS):
            self._client.log_batch(self._run, metrics=made[begin : begin + _MAX_METRICS])

    def log_file(self, path: Path) -> None:
        """Uploads the file as an artifact."""
        self._client.log_artifact(self._run, str(path))

    def close(self, *, succeeded: bool) -> None:
        """Marks the run as finished or failed."""
        self._client.set_terminated(self._run, "FINISHED" if succeeded else "FAILED")


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields dotted key and text of each value that is not null or empty."""
    for key, value in config.items():
        name = re.sub(r"[^\w\-./ ]", "_", f"{prefix}{key}")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif value not in (None, [], ""):
            yield name, str(value)
