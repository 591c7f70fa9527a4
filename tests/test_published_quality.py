"""Tests of `sparring publish --evaluate`, which measures the cost of quantization before publishing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparring_cli.application import main

pytest.importorskip("sparring_packed.library", reason="sparring-packed is not installed")
pytest.importorskip("sparring_serve", reason="sparring-serve is not installed")

ROOT = Path(__file__).parent.parent

CLICKS = """
seed: 1
threads: 1
data: {kind: synthetic_criteo, samples: 40000, test_samples: 4000, batch_size: 1024, max_ids: 2000}
model: {kind: dlrm, embedding_dim: 64, bottom_mlp: [32], top_mlp: [32]}
"""
# Maximum loss of a metric, and maximum fraction of the bytes of a row of 64 float32 elements.
MAX_LOSS = {"fp16": 0.0001, "int8": 0.0005, "int4": 0.002}
MAX_BYTES = {"fp16": 0.51, "int8": 0.27, "int4": 0.15}

Printed = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration of clicks, and the snapshots of its run."""
    folder = tmp_path_factory.mktemp("clicks")
    (folder / "run.yaml").write_text(CLICKS)
    assert main(["train", str(folder / "run.yaml"), f"snapshots.url={folder}/run"]) == 0
    return folder


@pytest.fixture
def trained(run: Path, tmp_path: Path) -> dict[str, str]:
    """Returns the configuration, the snapshots, and the target of publishing."""
    config = str(run / "run.yaml")
    return {"config": config, "run": str(run / "run"), "out": str(tmp_path / "served")}


def published(capsys: Printed, *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["publish", *arguments, "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return told


@pytest.mark.parametrize(
    "dtype",
    ["int4", *(pytest.param(each, marks=pytest.mark.slow) for each in ("int8", "fp16"))],
)
def test_loss_of_clicks_and_bytes_stay_within_limits(
    dtype: str, trained: dict[str, str], capsys: Printed
) -> None:
    run, config, most = trained["run"], trained["config"], MAX_LOSS[dtype]
    told = published(
        capsys, run, "--output", trained["out"], "--quantize", dtype,
        "--evaluate", config, "--max-metric-loss", str(most),
    )  # fmt: skip
    quality = told["quality"]
    assert quality["metric"] == "auc"
    assert quality["before"] > 0.7  # of the trained model, not of a new one
    assert quality["loss"] == quality["before"] - quality["after"] <= most
    assert quality["after"] != quality["before"]
    assert quality["bytes_after"] < quality["bytes_before"]
    for table in told["tables"].values():
        assert table["row_bytes"] <= MAX_BYTES[dtype] * 256


def test_a_loss_above_the_limit_is_rejected(trained: dict[str, str], capsys: Printed) -> None:
    out = Path(trained["out"])
    arguments = ["publish", trained["run"], "--output", str(out), "--evaluate", trained["config"]]
    # A negative loss: only rows that improve the model would pass.
    assert main([*arguments, "--quantize", "int4", "--max-metric-loss", "-0.5"]) == 1
    refused = capsys.readouterr().err
    assert "is not published" in refused
    assert "cat_1=int4" in refused
    assert not out.exists()
    # Without quantization there is no loss.
    assert main([*arguments, "--max-metric-loss", "0"]) == 0
    assert "a loss of 0.000000; 1.00 of the bytes" in capsys.readouterr().out
    assert len(list(out.iterdir())) == 1


def test_unsupported_measurements_are_rejected(trained: dict[str, str], capsys: Printed) -> None:
    run, out = trained["run"], trained["out"]
    assert main(["publish", run, "--output", out, "--max-metric-loss", "0.1"]) == 2
    assert "requires --evaluate CONFIG" in capsys.readouterr().err
    assert main(["publish", run, "--output", out, "--evaluate", f"{out}/none.yaml"]) == 2
    assert "none.yaml" in capsys.readouterr().err
    other = Path(trained["config"]).with_name("other.yaml")
    other.write_text(CLICKS.replace("top_mlp: [32]", "top_mlp: [16]"))
    assert main(["publish", run, "--output", out, "--evaluate", str(other)]) == 2
    assert "parameters do not fit the configured model" in capsys.readouterr().err
    assert not Path(out).exists()


@pytest.mark.slow  # the ratings are a second set of data for the promise above
def test_loss_of_ratings_stays_within_the_limit(
    movielens: Path, tmp_path: Path, capsys: Printed
) -> None:
    config, run = tmp_path / "run.yaml", str(tmp_path / "run")
    text = (ROOT / "configs/movielens.yaml").read_text()
    config.write_text(text.replace("path: ratings.csv", f"path: {movielens}"))
    assert main(["train", str(config), f"snapshots.url={run}", "training.epochs=3"]) == 0
    most = MAX_LOSS["int4"]
    told = published(
        capsys, run, "--output", f"{tmp_path}/int4", "--quantize", "int4",
        "--evaluate", str(config), "--max-metric-loss", str(most),
    )  # fmt: skip
    assert told["quality"]["metric"] == "rmse"
    assert 0.8 < told["quality"]["before"] < 0.95
    assert told["quality"]["loss"] <= most
