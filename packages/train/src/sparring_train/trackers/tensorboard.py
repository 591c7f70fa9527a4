"""Writes event files for TensorBoard."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparring.errors import ConfigError
from sparring_train.trackers.contract import TrackerRequest

__all__ = ["TensorBoardTracker"]


class TensorBoardTracker:
    """Writes an event file in the folder ``url/project/name``.

    Args:
        request: see `TrackerRequest`. Without `url`, the folder is ``runs``; without `name`, the name is
            the time.
    """

    def __init__(self, request: TrackerRequest) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if request.url is not None and "://" in request.url:
            raise ConfigError(
                f"training.trackers: tensorboard: found the URL {request.url}, expected a folder on this "
                "machine; choose such a folder",
                setting="training.trackers",
            )
        name = request.name or time.strftime("%Y-%m-%d-%H-%M-%S")
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._metadata = summary_pb2.SummaryMetadata
        self._tensor, self._string = tensor_pb2.TensorProto, types_pb2.DT_STRING
        self._file = EventFileWriter(str(Path(request.url or "runs") / request.project / name))
        self._add_text("configuration", json.dumps(request.config, indent=1))

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `Tracker.log_metrics`."""
        values = [self._summary.Value(tag=name, simple_value=v) for name, v in metrics.items()]
        self._add(step, values)
        self._file.flush()

    def log_file(self, path: Path) -> None:
        """Adds the path as text, because event files contain no other files."""
        self._add_text("file", str(path.resolve()))

    def close(self, *, succeeded: bool) -> None:
        """Closes the file, which contains no state of the run."""
        self._file.close()

    def _add_text(self, tag: str, text: str) -> None:
        metadata = self._metadata(plugin_data=self._metadata.PluginData(plugin_name="text"))
        tensor = self._tensor(dtype=self._string, string_val=[f"    {text}".encode()])
        self._add(0, [self._summary.Value(tag=tag, metadata=metadata, tensor=tensor)])

    def _add(self, step: int, values: list[Any]) -> None:
        summary = self._summary(value=values)
        self._file.add_event(self._event(wall_time=time.time(), step=step, summary=summary))
