"""Reports the snapshots of a run to Ray, by URL."""

from __future__ import annotations

import json
import queue
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparring.errors import InvalidArgumentError
from sparring_ray.ray_import import import_ray

__all__ = ["SnapshotReports", "read_snapshot_url"]

_FILE = "sparring_snapshot.json"


def read_snapshot_url(checkpoint: Any) -> str:
    """Returns the URL of the snapshot that a checkpoint of Ray refers to.

    Args:
        checkpoint: a `ray.train.Checkpoint` that a run of `sparring_ray.train` reported.

    Raises:
        InvalidArgumentError: the checkpoint is from another program.
    """
    with checkpoint.as_directory() as folder:
        path = Path(folder, _FILE)
        if not path.exists():
            raise InvalidArgumentError(
                f"{checkpoint} contains no {_FILE}, expected a checkpoint that sparring_ray.train "
                "reported; pass one of its results"
            )
        return str(json.loads(path.read_text(encoding="utf-8"))["url"])


class SnapshotReports:
    """The `Progress` of a worker: prints messages, and reports each snapshot to Ray.

    A report waits for all workers, which learn of a snapshot after different steps. Therefore a thread
    makes the reports.
    """

    def __init__(self) -> None:
        self._train = import_ray("ray.train")
        self._context = self._train.get_context()
        self._metrics: dict[str, float] = {}
        self._waiting: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._error: Exception | None = None
        # A daemon, because a report would wait forever if another worker failed.
        self._thread = threading.Thread(target=self._report_all, name="reports", daemon=True)
        self._thread.start()

    def on_start(self, total_steps: int | None) -> None: ...

    def on_step(self, step: int, loss: float, samples: int) -> None: ...

    def on_metrics(self, step: int, metrics: Mapping[str, float], part: str = "test") -> None:
        self._metrics.update({f"{part}/{name}": value for name, value in metrics.items()})
        shown = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        self.on_message(f"step {step:,}  {part} {shown}")

    def on_message(self, message: str) -> None:
        # Ray shows the output of workers. It would also add a call of `print` to the logs of the run.
        sys.stdout.write(f"{message}\n")
        sys.stdout.flush()

    def on_snapshot(self, step: int, url: str) -> None:
        size = self._context.get_world_size()
        self._waiting.put({"step": step, "snapshot": url, "world_size": size, **self._metrics})

    def on_end(self) -> None: ...

    def finish(self) -> None:
        """Waits until all snapshots are reported, and raises the error of a report."""
        self._waiting.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _report_all(self) -> None:
        try:
            while (metrics := self._waiting.get()) is not None:
                self._report(metrics)
        except Exception as error:
            self._error = error

    def _report(self, metrics: dict[str, Any]) -> None:
        if self._context.get_world_rank() > 0:
            self._train.report(metrics)
            return
        # Ray copies checkpoints to its own storage, so this one contains only the URL.
        with tempfile.TemporaryDirectory() as folder:
            text = json.dumps({"url": metrics["snapshot"], "step": metrics["step"]})
            Path(folder, _FILE).write_text(text, encoding="utf-8")
            self._train.report(metrics, checkpoint=self._train.Checkpoint.from_directory(folder))
