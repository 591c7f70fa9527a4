"""Contract of trackers: a tracker records the configuration, metrics and files of one run.

Only the first rank opens a tracker. One thread uses it, which is not the thread that trains, so calls may
wait for a server. An error of a call does not end the training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Tracker", "TrackerRequest"]


@dataclass(frozen=True, slots=True)
class TrackerRequest:
    """Inputs for opening a tracker."""

    url: str | None
    """`url` of the configuration: a server, or a folder or file."""
    project: str
    """Group of runs: an experiment of MLflow, a project of W&B."""
    name: str | None
    """Name of the run; None lets the tracker choose one."""
    config: Mapping[str, Any]
    """The configuration of the run, as JSON values."""


class Tracker(Protocol):
    """A run that is open in a tracker. Opening it has recorded the configuration."""

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records metrics after a step. Steps may repeat with other metrics.

        Args:
            step: number of completed steps.
            metrics: name → finite value. Names may contain ``/``, ``@`` and ``=``.
        """

    def log_file(self, path: Path) -> None:
        """Records a file, such as the report. A tracker without files ignores it.

        Args:
            path: path of the file.
        """

    def close(self, *, succeeded: bool) -> None:
        """Ends the run in the tracker, after sending what is pending.

        Args:
            succeeded: whether the training ended without an error.
        """
