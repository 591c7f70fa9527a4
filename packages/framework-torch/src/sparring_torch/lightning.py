"""`SnapshotCallback`: saves snapshots of the rows when Lightning writes checkpoints.

A checkpoint contains the rows if they are on one rank and at most 1 GiB. Otherwise it names the
snapshot of its step, which this callback writes before Lightning reads the model's state.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from sparring import Retention, SaveOptions, list_snapshots, open_snapshot
from sparring.errors import InvalidArgumentError, PluginError
from sparring_torch.modules.table_module import list_agents
from sparring_torch.state.copy_container import list_averages

__all__ = ["SnapshotCallback"]


def _callback_class() -> Any:
    """Returns Lightning's `Callback` from the package that the program has imported."""
    names = ["lightning.pytorch", "pytorch_lightning"]
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name).Callback
        except ModuleNotFoundError as error:
            if error.name != name.partition(".")[0]:
                raise
    raise PluginError("sparring_torch.lightning requires Lightning; run: pip install lightning")


_Callback: Any = _callback_class()


class SnapshotCallback(_Callback):  # type: ignore[misc]
    """Saves a snapshot of all tables of the model as ``url/step-000000001000``, and one of their averages
    by `WeightAveraging` in ``url/averages``.

    It saves at the end of epochs, before validation ends, and after a number of steps. Use the intervals
    of `ModelCheckpoint`, which saves after it. ``trainer.fit(ckpt_path=…)`` loads the snapshot that the
    checkpoint names.

    Args:
        url: a folder, or an fsspec URL.
        every_n_epochs: number of epochs between snapshots at the end of an epoch; None disables them.
        every_n_train_steps: number of steps between snapshots; None disables them.
        keep: number of snapshots to keep, the newest ones; None keeps all. A checkpoint requires its
            snapshot, so this must be at least the number of checkpoints to keep.

    Raises:
        InvalidArgumentError: a number is less than 1, or the folder contains snapshots of later steps
            when training starts.
    """

    def __init__(
        self,
        url: str,
        *,
        every_n_epochs: int | None = 1,
        every_n_train_steps: int | None = None,
        keep: int | None = None,
    ) -> None:
        super().__init__()
        numbers = {
            "every_n_epochs": every_n_epochs,
            "every_n_train_steps": every_n_train_steps,
            "keep": keep,
        }
        for name, number in numbers.items():
            if number is not None and number < 1:
                raise InvalidArgumentError(
                    f"SnapshotCallback: {name} must be at least 1 or None, found {number}"
                )
        self._url = url.rstrip("/")
        self._every_n_epochs = every_n_epochs
        self._every_n_train_steps = every_n_train_steps
        self._keep = keep
        self._options = SaveOptions(retention=None if keep is None else Retention(url, keep))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Rejects a folder with snapshots of later steps."""
        steps = _container_of(pl_module).counters.steps
        later = [url for url in list_snapshots(self._url) if open_snapshot(url).step > steps]
        if later:
            raise InvalidArgumentError(
                f"SnapshotCallback: {self._url} contains {later[-1]}, but training starts at step "
                f"{steps}; resume from the checkpoint of that step with trainer.fit(ckpt_path=…), or "
                "use another folder",
                url=self._url,
            )

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Saves every `every_n_train_steps` steps."""
        every = self._every_n_train_steps
        if every is not None and trainer.global_step % every == 0:
            self._save(pl_module)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Saves before checkpoints that are written after validation."""
        if trainer.training and not trainer.sanity_checking:
            self._save_at_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Saves every `every_n_epochs` epochs."""
        self._save_at_end(trainer, pl_module)

    def _save_at_end(self, trainer: Any, pl_module: Any) -> None:
        every = self._every_n_epochs
        if every is not None and (trainer.current_epoch + 1) % every == 0:
            self._save(pl_module)

    def _save(self, pl_module: Any) -> None:
        container = _container_of(pl_module)
        steps, newest = container.counters.steps, container.saves.newest
        if newest is None or newest[1] != steps:
            container.save(f"{self._url}/step-{steps:012d}", options=self._options)
        for copy in list_averages(container):  # of `WeightAveraging`
            steps, newest = copy.counters.steps, copy.saves.newest
            if newest is None or newest[1] != steps:
                url = f"{self._url}/averages"
                kept = None if self._keep is None else Retention(url, self._keep)
                copy.save(f"{url}/step-{steps:012d}", options=SaveOptions(retention=kept))


def _container_of(pl_module: Any) -> Any:
    return list_agents(pl_module)[0].container
