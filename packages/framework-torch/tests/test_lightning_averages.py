"""Lightning's callbacks average rows like the weights of `torch.nn.Embedding`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from sparring_torch import CombinedOptimizer, Embedding, Optimizer
from sparring_torch.state import rows_in_state

L = pytest.importorskip(
    "lightning.pytorch", reason="Lightning is not installed: pip install lightning"
)

if not hasattr(L.callbacks, "EMAWeightAveraging"):
    pytest.skip("EMAWeightAveraging requires lightning 2.6", allow_module_level=True)

from sparring_torch.lightning import SnapshotCallback  # noqa: E402 - it needs Lightning

NUM_IDS = 24
NORMAL = {"kind": "normal", "mean": 0, "stddev": 1}


class Lit(L.LightningModule):  # type: ignore[misc]
    """A model with a table, or with `torch.nn.Embedding` that starts with the same rows."""

    def __init__(self, is_dense: bool = False) -> None:
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(0)
        self.top = nn.Linear(3, 1)
        self.items: Any = Embedding(3, name="items", initializer=NORMAL)
        if is_dense:
            weight = self.items.read_embeddings(torch.arange(NUM_IDS))
            self.items = nn.Embedding.from_pretrained(weight, freeze=False)
        self.seen: list[float] = []

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = (self.top(self.items(batch))[:, 0] - batch / NUM_IDS).square().mean()
        return loss

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.loss(batch)

    def validation_step(self, batch: torch.Tensor, _: int) -> None:
        self.seen.append(self.loss(batch).item())

    def configure_optimizers(self) -> Any:
        dense = torch.optim.SGD(self.top.parameters(), lr=0.1)
        if isinstance(self.items, Embedding):
            rows: Any = Optimizer(self, torch.optim.Adagrad, lr=0.5)
        else:
            rows = torch.optim.Adagrad(self.items.parameters(), lr=0.5)
        return CombinedOptimizer([rows, dense])

    @property
    def rows(self) -> torch.Tensor:
        if isinstance(self.items, Embedding):
            return self.items.read_embeddings(torch.arange(NUM_IDS))
        weight: torch.Tensor = self.items.weight.detach()
        return weight


def fit(module: Lit, root: Path, epochs: int, *averages: Any, ckpt_path: str | None = None) -> None:
    checkpoint = L.callbacks.ModelCheckpoint(root, filename="{epoch}", save_top_k=-1)
    trainer = L.Trainer(
        max_epochs=epochs,
        callbacks=[*averages, checkpoint],
        default_root_dir=root,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = DataLoader(torch.arange(NUM_IDS - 6), batch_size=3)
    checks = DataLoader(torch.arange(NUM_IDS), batch_size=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few workers, small batches
        trainer.fit(module, data, checks, ckpt_path=ckpt_path)


def ema() -> Any:
    return L.callbacks.EMAWeightAveraging(decay=0.8)


def every_second() -> Any:
    return L.callbacks.EMAWeightAveraging(decay=0.5, update_every_n_steps=4)


@pytest.mark.parametrize("average", [ema, every_second, L.callbacks.WeightAveraging])
def test_rows_are_averaged_validated_saved_and_resumed(tmp_path: Path, average: Any) -> None:
    ours, theirs, resumed = Lit(), Lit(is_dense=True), Lit()
    fit(theirs, tmp_path / "dense", 3, average())
    fit(ours, tmp_path / "ours", 3, average())
    assert ours.seen == pytest.approx(theirs.seen, rel=1e-4)
    torch.testing.assert_close(ours.rows, theirs.rows)
    for epoch in range(3):
        file = f"epoch={epoch}.ckpt"
        loaded = [Lit.load_from_checkpoint(tmp_path / each / file) for each in ("ours", "dense")]
        torch.testing.assert_close(loaded[0].rows, loaded[1].rows)
    fit(resumed, tmp_path / "again", 3, average(), ckpt_path=str(tmp_path / "ours/epoch=1.ckpt"))
    torch.testing.assert_close(resumed.rows, theirs.rows)
    assert ours.items.num_rows() == resumed.items.num_rows() == {"items": NUM_IDS - 6}


def test_snapshots_of_averages_are_saved_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_in_state, "MAX_BYTES", 10)
    whole, first, resumed = Lit(), Lit(), Lit()
    fit(whole, tmp_path / "whole", 3, ema(), SnapshotCallback(str(tmp_path / "rows-of-whole")))
    saves = SnapshotCallback(str(tmp_path / "rows"))
    fit(first, tmp_path / "first", 2, ema(), saves)
    loaded = Lit.load_from_checkpoint(tmp_path / "first/epoch=1.ckpt")
    torch.testing.assert_close(loaded.rows, first.rows)
    file = str(tmp_path / "first/epoch=1.ckpt")
    fit(resumed, tmp_path / "again", 3, ema(), saves, ckpt_path=file)
    torch.testing.assert_close(resumed.rows, whole.rows)


def test_stochastic_weight_averaging_averages_rows(tmp_path: Path) -> None:
    ours, theirs = Lit(), Lit(is_dense=True)
    for each, folder in ((ours, "ours"), (theirs, "dense")):
        average = L.callbacks.StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=1)
        fit(each, tmp_path / folder, 4, average)
    torch.testing.assert_close(ours.rows, theirs.rows)
