"""`sparring publish` refuses versions of a model that got worse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sparring_cli import MetricRegistry
from sparring_cli.application import main

pytest.importorskip("sparring_torch", reason="needs sparring_torch")
pytest.importorskip("sparring_serve", reason="needs sparring_serve")
pytest.importorskip("sparring_packed", reason="needs sparring_packed")

CONFIG = """
seed: 4
threads: 1
data:
  kind: table
  path: clicks.csv
  label: clicked
  categorical: [user]
  batch_size: 50
  split: {fraction: 0.2}
model: {kind: dlrm, embedding_dim: 2, bottom_mlp: [2], top_mlp: [8]}
storage: {backend: memory}
snapshots: {url: runs, keep: 9}
optimizer: {sparse: {name: adam, lr: 0.1}, dense: {name: adam, lr: 0.05}}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a good snapshot, and one that has learned nothing."""
    folder = tmp_path_factory.mktemp("run")
    users = np.random.default_rng(1).integers(0, 20, 400)
    lines = "".join(f"{user},{int(user % 2)}\n" for user in users)
    (folder / "clicks.csv").write_text(f"user,clicked\n{lines}")
    (folder / "run.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "run.yaml", "training.epochs=2"]) == 0
        slow = [f"optimizer.{part}.lr=1e-9" for part in ("sparse", "dense")]
        assert main(["train", "run.yaml", "snapshots.url=fresh", *slow]) == 0
    return folder


class Folder:
    """A copy of the run, in the current folder."""

    def __init__(self, trained: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd
        shutil.copytree(trained, ".", dirs_exist_ok=True)
        [self.good] = [each.name for each in Path("runs").glob("step-*")]
        [self.bad] = [each.name for each in Path("fresh").glob("step-*")]

    def publish(self, snapshot: str, *options: str) -> tuple[int, dict[str, Any], str]:
        """Returns the exit code, the JSON document and the messages."""
        code = main(["publish", snapshot, "--output", "served", "--json", *options])
        out, told = self._capfd.readouterr()
        return code, json.loads(out.splitlines()[-1]) if out else {}, " ".join(told.split())


@pytest.fixture
def folder(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Folder:
    monkeypatch.chdir(tmp_path)
    return Folder(trained, capfd)


@pytest.mark.slow  # trains
def test_a_version_below_a_minimum_is_refused(folder: Folder) -> None:
    code, _, told = folder.publish(f"fresh/{folder.bad}", "--min", "auc=0.9")
    assert code == 1
    assert "is not published: auc is 0." in told
    assert "below --min auc=0.9" in told
    assert not Path("served").exists()
    code, printed, _ = folder.publish(f"runs/{folder.good}", "--min", "auc=0.9")
    assert code == 0
    assert printed["quality"]["after"] > 0.9
    for wrong, why in (
        ("recall=0.1", "which the model does not have; use one of auc"),
        ("log_loss=0.1", "of which lower values are better; use one of auc"),
        ("auc", "must be METRIC=NUMBER, such as auc=0.68"),
        ("auc=nan", "must be METRIC=NUMBER"),
    ):
        code, _, told = folder.publish(f"fresh/{folder.bad}", "--min", wrong)
        assert code == 2
        assert why in told


@pytest.mark.slow  # trains
def test_a_version_that_is_worse_than_the_served_one_is_refused(folder: Folder) -> None:
    limit = ("--not-worse-than-served", "0.002")
    assert folder.publish("runs", *limit)[0] == 0  # nothing to compare with
    shutil.copytree(f"fresh/{folder.bad}", f"runs/{folder.bad}")
    code, _, told = folder.publish(f"runs/{folder.bad}", *limit)
    assert code == 1
    assert "worse by more than --not-worse-than-served 0.002" in told
    assert len(list(Path("served").glob("*step-*"))) == 1
    # Quantized rows are compared, too, and a larger loss can be allowed.
    code, printed, _ = folder.publish(
        f"runs/{folder.bad}", "--not-worse-than-served", "1", "--quantize", "fp16"
    )
    assert code == 0
    assert printed["quality"]["served"] > printed["quality"]["after"]
    # The good one is better than the one that is served now.
    code, _, told = folder.publish(f"runs/{folder.good}", *limit)
    assert (code, "--pin" in told) == (1, True)
    shutil.rmtree(f"runs/{folder.bad}")
    shutil.copytree(f"runs/{folder.good}", "others/x")
    code, _, told = folder.publish("others/x", "--quantize", "bf16", *limit)
    assert code == 1
    assert "cannot be compared, because its snapshot" in told
    assert folder.publish("others/x", "--quantize", "bf16", "--min", "auc=0.9")[0] == 0


@pytest.mark.slow  # trains
def test_a_watching_publisher_counts_refused_versions(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparring_serve.cli import publish

    registries: list[MetricRegistry] = []

    class Registry(MetricRegistry):
        def __init__(self) -> None:
            super().__init__()
            registries.append(self)

    steps = iter((folder.good, None, None))

    class Stop:
        """Ends the watching after the good version."""

        def set(self) -> None: ...

        def wait(self, seconds: float) -> bool:
            name = next(steps)
            if name is not None:
                shutil.copytree(f"runs/{name}", f"fresh/{name}")
            return name is None and Path("served").exists()

    monkeypatch.setattr(publish, "MetricRegistry", Registry)
    monkeypatch.setattr(publish, "threading", SimpleNamespace(Event=Stop))
    monkeypatch.setattr(
        publish, "signal", SimpleNamespace(SIGTERM=15, SIGINT=2, signal=lambda *_: None)
    )
    code, printed, told = folder.publish("fresh", "--watch", "--min", "auc=0.9")
    assert (code, printed["step"]) == (0, int(folder.good.removeprefix("step-")))
    assert told.count("is not published: auc is") == 1
    [family] = [each for each in registries[0].families() if "publish" in each.name]
    counts = {each.labels["result"]: each.value for each in family.samples}
    assert counts == {"published": 1, "refused": 1, "withheld": 0, "failed": 0}
