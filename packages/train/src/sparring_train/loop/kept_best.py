"""Snapshot of the step that is best on the validation rows."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from sparring import State, StepContainer
from sparring.adapter import locate
from sparring.errors import ConfigError, SnapshotError
from sparring_train.config.run import RunConfig
from sparring_train.config.sections.kinds import METRICS
from sparring_train.config.sections.snapshots import SnapshotsConfig
from sparring_train.loop.best_step import BestStep
from sparring_train.run.snapshots import RunSnapshots

__all__ = ["BestStepSnapshots", "make_best_step", "kept_best"]


def make_best_step(config: RunConfig) -> BestStep | None:
    """Returns an object that compares the steps of a run; None if there are no validation rows."""
    if not config.data.has_validation:
        return None
    training = config.training
    metric = training.watch or METRICS[config.model.loss][0]
    return BestStep(metric, training.patience, training.min_improvement)


class BestStepSnapshots:
    """Saves each step that is better than all earlier ones, and loads the best one at the end.

    All ranks make the same calls.

    Args:
        snapshots: saves into the folder of the run, or into a temporary one.
        tell: reports a message to the user.
    """

    def __init__(self, snapshots: RunSnapshots, tell: Callable[[str], None]) -> None:
        self._snapshots, self._tell = snapshots, tell
        self._url: str | None = None
        self.is_current = False
        """Whether the current rows and parameters belong to the best step."""

    def save(self, step: int, states: Callable[[], Mapping[str, State]]) -> None:
        """Saves the state after `step` concurrently with later steps."""
        self._url = self._snapshots.save(step, states(), is_pinned=True)

    def load(self, step: int) -> Mapping[str, State] | None:
        """Loads the tables of the best step; returns the other state of its snapshot.

        Returns None, and reports the reason, if the snapshot cannot be read.
        """
        reason = "its snapshot could not be saved"
        if self._url is not None:
            try:
                states = self._snapshots.load(self._url).states
            except SnapshotError as error:
                reason = str(error)
            else:
                self.is_current = True
                # The snapshot at the end of the run will have the same contents.
                self._snapshots.unpin()
                return states
        self._tell(
            f"the best step, {step:,}, cannot be loaded: {reason}; the run keeps the last step instead"
        )
        return None

    def values(self) -> dict[str, Any]:
        """Returns the state for a snapshot. It contains the name of the best step's snapshot without its
        folder, because folders may move."""
        name = None if self._url is None else locate(self._url)[1]
        return {"is_best": self.is_current, "snapshot": name}

    def restore(self, values: Mapping[str, Any], url: str) -> None:
        """Restores the result of `values`, which is part of the snapshot at `url`."""
        self.is_current = values.get("is_best", False)
        name = values.get("snapshot")
        if self.is_current:
            self._url = url
        elif name is not None:
            self._url = locate(url)[0].url_of(name)
        if self._url is not None:
            self._snapshots.pin(self._url)


@contextmanager
def kept_best(
    container: StepContainer,
    config: RunConfig,
    snapshots: RunSnapshots,
    tell: Callable[[str], None],
    *,
    is_one_host: bool,
) -> Iterator[BestStepSnapshots]:
    """Yields an object that saves the best step in `snapshots.url`, or in a temporary folder if null.

    Raises:
        ConfigError: the ranks are on several hosts, and `snapshots.url` is null.
    """
    if config.snapshots.url is not None:
        yield BestStepSnapshots(snapshots, tell)
        return
    if not is_one_host:
        raise ConfigError(
            "training.keep_best: true requires a folder that all hosts can access, but snapshots.url is "
            "null; set it to such a folder, or set training.keep_best: false",
            setting="snapshots.url",
        )
    collective = container.collective
    folder = tempfile.mkdtemp(prefix="sparring-best-") if collective.rank == 0 else ""
    if collective.world_size > 1:
        container.quiesce()
        names = collective.all_gather(np.frombuffer(folder.encode(), np.uint8))
        folder = names[0].tobytes().decode()
    try:
        chosen = config.model_copy(update={"snapshots": SnapshotsConfig(url=folder, keep=2)})
        yield BestStepSnapshots(RunSnapshots(container, chosen, tell), tell)
        container.saves.join(chosen.snapshots.deadline_seconds)
    finally:
        if collective.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
