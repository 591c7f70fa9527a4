"""A run tells its `Progress` of each snapshot that is committed, on every rank."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed; see nox -s tests")
pytest.importorskip("sparring_torch", reason='pip install "sparring[torch]"')

from sparring import list_snapshots, make_plugin_manager
from sparring_train import parse_config
from sparring_train.pytorch.trainer import train
from sparring_train.run.result import OtherRankProgress, SilentProgress

CONFIG = """
data: {kind: synthetic_criteo, samples: 1000, test_samples: 100, batch_size: 40, max_ids: 50}
model: {kind: dlrm, embedding_dim: 2, bottom_mlp: [2], top_mlp: [2]}
training: {steps: 7}
"""


class Saved(SilentProgress):
    def __init__(self) -> None:
        self.steps: dict[str, int] = {}

    def on_snapshot(self, step: int, url: str) -> None:
        self.steps[url] = step


@pytest.mark.parametrize("is_first", [True, False])
def test_each_snapshot_is_told_in_order(is_first: bool, tmp_path: Path) -> None:
    given = [f"snapshots.url={tmp_path}", "snapshots.every_steps=3", "snapshots.keep=9"]
    saved = Saved()
    progress = saved if is_first else OtherRankProgress(saved)
    train(parse_config(CONFIG, given), make_plugin_manager(), progress)
    assert list(saved.steps.values()) == [3, 6, 7]
    assert list(saved.steps) == sorted(list_snapshots(str(tmp_path)))
