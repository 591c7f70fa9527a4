"""Records a run while it tells of its progress."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sparring_train.report.recorder import RunRecorder
from sparring_train.result import Progress

__all__ = ["RecordingProgress"]


class RecordingProgress:
    """A `Progress` that passes everything on to another one and records it.

    Args:
        inner: who else is told.
        recorder: where to.
    """

    def __init__(self, inner: Progress, recorder: RunRecorder) -> None:
        self._inner, self._recorder = inner, recorder

    def on_start(self, total_steps: int | None) -> None:
        self._inner.on_start(total_steps)

    def on_step(self, step: int, loss: float, samples: int) -> None:
        self._recorder.record(step, "loss", loss)
        self._inner.on_step(step, loss, samples)

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._recorder.record(step, name, value)
        self._inner.on_metrics(step, metrics)

    def on_rows(self, step: int, rows: Mapping[str, int]) -> None:
        """Table → rows that it holds after `step`."""
        for table, count in rows.items():
            self._recorder.record(step, f"rows/{table}", count)

    def on_ids(self, feature: str, ids: npt.NDArray[np.int64]) -> None:
        """Ids of a feature as they come in batches."""
        self._recorder.observe_ids(feature, ids)

    def on_message(self, message: str) -> None:
        self._inner.on_message(message)

    def on_end(self) -> None:
        self._inner.on_end()
