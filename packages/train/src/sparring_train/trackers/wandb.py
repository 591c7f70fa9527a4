"""Records runs in Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sparring_train.trackers.contract import TrackerRequest

__all__ = ["WandbTracker"]


class WandbTracker:
    """Creates a run in a project of W&B.

    W&B's variables, such as ``WANDB_API_KEY``, ``WANDB_MODE=offline`` and ``WANDB_DIR``, apply.

    Args:
        request: see `TrackerRequest`; `url` is the address of the server.
    """

    def __init__(self, request: TrackerRequest) -> None:
        import wandb

        server = {} if request.url is None else {"base_url": request.url}
        self._wandb = wandb
        self._run = wandb.init(
            project=request.project,
            name=request.name,
            config=dict(request.config),
            settings=wandb.Settings(
                console="off", silent=True, init_timeout=30, x_disable_stats=True, **server
            ),
        )
        # W&B requires that its own step increases, but metrics of one step arrive separately.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `Tracker.log_metrics`."""
        self._run.log({**metrics, "step": step})

    def log_file(self, path: Path) -> None:
        """Uploads the file as an artifact."""
        artifact = self._wandb.Artifact(path.stem, type="report")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def close(self, *, succeeded: bool) -> None:
        """Ends the run as finished or failed."""
        self._run.finish(exit_code=int(not succeeded))
