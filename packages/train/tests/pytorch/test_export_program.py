"""``sparring export-program``: what it refuses, and a program of a click model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparring.cli.application import main
from sparring_torch import load_program

sparring_packed: Any = pytest.importorskip(
    "sparring_packed", reason="sparring-packed is not installed"
)

CONFIG = """\
framework: torch
seed: 1
data:
  kind: synthetic_criteo
  samples: 2_000
  batch_size: 256
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


def test_what_cannot_be_exported_is_refused(
    trained: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "bundle"

    def refused(*arguments: str) -> str:
        assert main(["export-program", *arguments]) != 0
        assert not out.exists()
        return capsys.readouterr().err

    command = [str(trained), str(out)]
    assert "--to tensorflow" in refused(*command, "--to", "tensorflow")
    assert "name one by --snapshot" in refused(*command, "snapshots.url=null")
    assert "no serving snapshot" in refused(*command, "--served", str(tmp_path / "none"))
    assert "nowhere" in refused(*command, "--snapshot", str(tmp_path / "nowhere"))
    table = "data={kind: table, path: log.csv, categorical: [user, item]"
    ranks = [f"{table}}}", "model={kind: two_towers}"]
    assert "two_towers ranks items" in refused(*command, *ranks)
    clicks = [f"{table}, lists: [item], label: clicked}}", "model={kind: dlrm}"]
    assert "item are lists, and programs take one id" in refused(*command, *clicks)


@pytest.mark.long
def test_a_program_gives_the_probabilities_of_the_model(trained: Path, tmp_path: Path) -> None:
    served, out = str(tmp_path / "served"), tmp_path / "bundle"
    assert main(["publish", str(tmp_path / "runs"), served]) == 0
    assert main(["export-program", str(trained), str(out), "--served", served]) == 0
    random = np.random.default_rng(0)
    with load_program(out, served) as program:
        for size in (1, 50):
            dense = torch.from_numpy(random.random((size, 13), np.float32))
            ids = torch.from_numpy(random.integers(0, 9, (size, 26)))
            found = program(dense, ids)
            assert found.shape == (size,)
            assert ((found > 0) & (found < 1)).all()
        # Ids that were trained have rows of their own, and the others initial values.
        assert len(found.unique()) > 1
