"""``sparring export-program``: rejected models, and a program of a click model."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparring import StepContainer, make_plugin_manager
from sparring_cli.application import main
from sparring_torch import load_program
from sparring_train.columns import Column, ColumnBatch
from sparring_train.config.reading.loader import parse_config
from sparring_train.pytorch.column_task import ColumnTask

sparring_packed: Any = pytest.importorskip(
    "sparring_packed", reason="sparring-packed is not installed"
)

CONFIG = """\
framework: torch
seed: 1
data:
  kind: synthetic_criteo
  samples: 128
  test_samples: 64
  batch_size: 64
model:
  kind: dlrm
  embedding_dim: 4
  bottom_mlp: [8]
  top_mlp: [8]
training:
  epochs: 1
snapshots:
  url: {folder}/runs
"""


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    config = tmp_path / "clicks.yaml"
    config.write_text(CONFIG.format(folder=tmp_path))
    assert main(["train", str(config)]) == 0
    return config


@pytest.mark.slow
def test_models_that_cannot_be_exported_are_rejected(
    trained: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "bundle"

    def refused(*arguments: str) -> str:
        assert main(["export-program", *arguments]) != 0
        assert not out.exists()
        return capsys.readouterr().err

    command = [str(trained), "--output", str(out)]
    assert "give one by --snapshot" in refused(*command, "snapshots.url=null")
    assert "no serving snapshot" in refused(*command, "--served", str(tmp_path / "none"))
    assert "nowhere" in refused(*command, "--snapshot", str(tmp_path / "nowhere"))
    table = "data={kind: table, path: log.csv, categorical: [user, item]"
    ranks = [f"{table}}}", "model={kind: two_towers}"]
    assert "two_towers ranks items" in refused(*command, *ranks)
    clicks = [f"{table}, lists: [item], label: clicked}}", "model={kind: dlrm}"]
    assert "item are lists, but programs accept one id" in refused(*command, *clicks)


@pytest.mark.long
def test_a_program_returns_the_probabilities_of_the_model(trained: Path, tmp_path: Path) -> None:
    served, out = str(tmp_path / "served"), tmp_path / "bundle"
    assert main(["publish", str(tmp_path / "runs"), "--output", served]) == 0
    command = ["export-program", str(trained), "--output", str(out), "--served", served]
    assert main([*command, "--follow"]) == 0
    random = np.random.default_rng(0)
    with load_program(out, served) as program:
        for size in (1, 50):
            dense = torch.from_numpy(random.random((size, 13), np.float32))
            ids = torch.from_numpy(random.integers(0, 9, (size, 26)))
            found = program(dense, ids)
            assert found.shape == (size,)
            assert ((found > 0) & (found < 1)).all()
        # Trained ids have rows, and other ids have initial values.
        assert len(found.unique()) > 1
        assert main(["train", str(trained), "--resume", "training.epochs=2"]) == 0
        assert main(["publish", str(tmp_path / "runs"), "--output", served]) == 0
        assert program.refresh()  # all parameters have the names of the published ones
        assert not torch.equal(program(dense, ids), found)


class Sum(torch.nn.Module):
    """A custom model: the sum of all embeddings, ``(b,)`` or ``(b, 1)``."""

    def __init__(self, embeddings: Any, num_numbers: int, shape: list[int]) -> None:
        super().__init__()
        self.embeddings, self._shape = embeddings, shape

    def forward(self, numbers: torch.Tensor, features: Any) -> torch.Tensor:
        return self.embeddings(features).values().sum(1).reshape(self._shape)


@pytest.mark.parametrize("shape", [[-1], [-1, 1]], ids=str)
def test_a_program_predicts_like_its_model(
    shape: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = types.ModuleType("summing")
    module.Sum = Sum
    monkeypatch.setitem(sys.modules, "summing", module)
    model = f'{{kind: "summing:Sum", embedding_dim: 2, options: {{shape: {shape}}}}}'
    manager = make_plugin_manager()
    config = parse_config(
        f"data: {{kind: synthetic_criteo, test_samples: 8}}\nmodel: {model}\n"
        "storage: {backend: memory}",
        plugin_manager=manager,
    )
    ids, numbers = np.arange(78).reshape(3, 26), np.zeros((3, 13), np.float32)
    names = [each.name for each in config.data.columns.features]
    columns = {name: Column(each) for name, each in zip(names, ids.T.copy(), strict=True)}
    with StepContainer() as container, torch.no_grad():
        task = ColumnTask(config, manager, container, is_saved=True)
        found = task.program()(torch.from_numpy(numbers), torch.from_numpy(ids))
        assert found.tolist() == task.predict(ColumnBatch(columns, numbers)).tolist()
        assert found.shape == (3,)
