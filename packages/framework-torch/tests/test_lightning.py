"""Lightning trains with one combined optimizer, and its checkpoints contain rows."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import sparring_torch
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch.state import rows_in_state

from .saved_models import Model, optimizer_of, rows_of

L = pytest.importorskip(
    "lightning.pytorch", reason="Lightning is not installed: pip install lightning"
)

from sparring_torch.lightning import SnapshotCallback  # noqa: E402 - it needs Lightning


class Lit(L.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.losses: list[float] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(batch[0])
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("val", self.model(batch[0]))

    def configure_optimizers(self) -> Any:
        optimizer = optimizer_of(self.model)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def data() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(20).view(4, 5).reshape(-1)), batch_size=5)


def fit(module: Lit, root: Path, epochs: int, *callbacks: Any, ckpt_path: str | None = None) -> Any:
    checkpoint = L.callbacks.ModelCheckpoint(root, filename="{epoch}", save_top_k=-1)
    trainer = L.Trainer(
        max_epochs=epochs,
        callbacks=[*callbacks, checkpoint],
        default_root_dir=root,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=1,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few workers, small batches
        trainer.fit(module, data(), data(), ckpt_path=ckpt_path)
    return trainer


@pytest.mark.parametrize("most_bytes", [1 << 30, 10])
def test_training_continues_from_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    monkeypatch.setattr(rows_in_state, "MAX_BYTES", most_bytes)
    whole, first, second = Lit(), Lit(), Lit()

    def callbacks(folder: str) -> list[Any]:
        return [SnapshotCallback(str(tmp_path / folder))] if most_bytes == 10 else []

    fit(whole, tmp_path / "whole", 3, *callbacks("whole-rows"))
    assert len(rows_of(whole.model)["users"]) == 20
    if most_bytes == 10:
        with pytest.raises(UnsupportedError, match=r"sparring_torch\.lightning has a callback"):
            fit(Lit(), tmp_path / "without", 1)
    fit(first, tmp_path / "first", 2, *callbacks("rows"))
    file = str(tmp_path / "first/epoch=1.ckpt")
    trainer = fit(second, tmp_path / "first", 3, *callbacks("rows"), ckpt_path=file)
    assert first.losses + second.losses == whole.losses
    assert rows_of(second.model) == rows_of(whole.model)
    assert [group["lr"] for group in trainer.optimizers[0].param_groups] == [0.05 / 8, 0.01 / 8]
    # For predictions.
    served = Lit.load_from_checkpoint(str(tmp_path / "first/epoch=2.ckpt"))
    assert rows_of(served.model) == rows_of(whole.model)
    if most_bytes == 10:
        assert len(list((tmp_path / "rows").glob("step-*"))) == 3
        with pytest.raises(InvalidArgumentError, match=r"starts at step 0; resume from the"):
            fit(Lit(), tmp_path / "first", 1, *callbacks("rows"))


def test_snapshots_within_epochs_are_saved_and_old_ones_are_removed(tmp_path: Path) -> None:
    steps = SnapshotCallback(
        str(tmp_path / "rows"), every_n_epochs=None, every_n_train_steps=3, keep=2
    )
    fit(Lit(), tmp_path, 3, steps)
    names = sorted(each.name for each in (tmp_path / "rows").glob("step-*"))
    assert names == ["step-000000000009", "step-000000000012"]
    with pytest.raises(InvalidArgumentError, match="keep must be at least 1 or None, found 0"):
        SnapshotCallback("rows", keep=0)


def test_the_package_does_not_load_lightning() -> None:
    assert not hasattr(sparring_torch, "SnapshotCallback")
