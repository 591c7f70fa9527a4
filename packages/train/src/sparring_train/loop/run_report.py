"""The report on a run, where the configuration asks for one."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

import sparring
from sparring import num_threads
from sparring.errors import PluginError
from sparring_train.config.printer import config_as_yaml
from sparring_train.config.run import RunConfig
from sparring_train.report.page import write_report
from sparring_train.report.progress import RecordingProgress
from sparring_train.report.recorder import RunRecorder
from sparring_train.result import Progress, TrainResult

__all__ = ["RunReport"]

_NUM_POINTS = 200


class RunReport:
    """Records what the report shows, and writes it in the end. Without a path it does neither.

    Args:
        config: the run; `report.path` says where.
        progress: who is told of the run in any case.
        total_steps: of the run, where known; spaces out how often rows are counted.
        is_written: whether this rank writes it; all ranks count rows for it.

    Raises:
        PluginError: a report is asked for, and matplotlib is not installed.
    """

    def __init__(
        self,
        config: RunConfig,
        progress: Progress,
        total_steps: int | None,
        *,
        is_written: bool = True,
    ) -> None:
        self._config = config
        self._is_written = is_written
        self._recorder = RunRecorder()
        self._recording: RecordingProgress | None = None
        self.progress = progress
        if config.report.path is not None:
            # Known now rather than when the training is over.
            if importlib.util.find_spec("matplotlib") is None:
                raise PluginError(
                    f"a report at {config.report.path} needs matplotlib, which is not installed; "
                    "run: pip install 'sparring[report]', or set report.path=null"
                )
            self._recording = RecordingProgress(progress, self._recorder)
            self.progress = self._recording
        self._interval = max(1, (total_steps or _NUM_POINTS) // _NUM_POINTS)

    def wants_rows(self, step: int) -> bool:
        """Whether rows should be counted after this step."""
        return self._recording is not None and step % self._interval == 0

    def on_rows(self, step: int, rows: Mapping[str, int]) -> None:
        if self._recording is not None:
            self._recording.on_rows(step, rows)

    def on_ids(self, ids: Mapping[str, npt.NDArray[np.int64]]) -> None:
        """Feature → its ids in a batch."""
        if self._recording is not None:
            for feature, each in ids.items():
                self._recording.on_ids(feature, each)

    def write(self, result: TrainResult, versions: Mapping[str, str]) -> None:
        """Writes the file.

        Args:
            result: of the run.
            versions: of the framework.

        Raises:
            DataError: it cannot be written.
        """
        if self._config.report.path is None or not self._is_written:
            return
        write_report(
            self._config.report.path,
            self._recorder,
            result,
            config_text=config_as_yaml(self._config),
            environment={
                "sparring": sparring.__version__,
                **versions,
                "python": platform.python_version(),
                "machine": f"{platform.machine()}, {platform.system()}",
                "threads": str(num_threads()),
            },
        )
