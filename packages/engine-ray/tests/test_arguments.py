"""Wrong arguments are rejected before Ray starts, also without Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("sparring_torch", reason='pip install "sparring[torch]"')

import sparring_ray
from sparring.errors import ConfigError, DataError, InvalidArgumentError, PluginError, SparringError
from sparring_ray import training
from sparring_ray.dataset import RayDataset
from sparring_ray.training import _read_config, _run_worker
from sparring_train import OpenRequest

RAY = {
    "data": {"kind": "ray", "categorical": ["user", "item"], "label": "clicked"},
    "model": {"kind": "deepfm", "embedding_dim": 4},
}
CONFIG = "{data: {kind: synthetic_criteo}, model: {kind: dlrm}, snapshots: {url: saved}}"


@pytest.mark.parametrize(
    ("num_workers", "overrides", "error", "message"),
    [
        (0, {}, InvalidArgumentError, "num_workers: found 0"),
        ((3, 2), {}, InvalidArgumentError, "num_workers: found (3, 2)"),
        (1, {"snapshots.url": None}, ConfigError, "snapshots.resume requires a folder"),
        (1, {"training.epoch": 2}, ConfigError, "epoch"),
        # "expected torch", or "installed: torch" without sparring-tf.
        (1, {"framework": "tensorflow"}, ConfigError, "torch"),
        (1, {"datasets": {"train": None}}, InvalidArgumentError, "found train, expected none"),
        (1, RAY, InvalidArgumentError, "found none, expected train"),
    ],
)
def test_wrong_arguments_are_rejected(
    num_workers: Any,
    overrides: dict[str, Any],
    error: type[SparringError],
    message: str,
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    with pytest.raises(error) as raised:
        sparring_ray.train(path, num_workers, **overrides)
    assert message in str(raised.value)


def test_paths_of_overrides_start_at_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    assert _read_config(path, {}).snapshots.url == str(tmp_path / "saved")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir("here")
    read = _read_config(path, {"snapshots.url": "other", "seed": 3})
    assert (read.snapshots.url, read.seed) == (str(tmp_path / "here/other"), 3)


def test_a_missing_ray_is_reported_with_the_command_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray.train", None)
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    with pytest.raises(PluginError, match=r"pip install \"sparring\[ray\]\""):
        sparring_ray.train(path)


def test_datasets_are_only_found_by_workers() -> None:
    pytest.importorskip("ray", reason="ray is not installed; see nox -s engines")
    section = sparring_ray.RayData(kind="ray", categorical=("user",))
    with pytest.raises(DataError, match=r"call sparring_ray\.train"):
        RayDataset(section, OpenRequest(seed=1, label=None))


def test_listing_kinds_of_data_does_not_import_ray() -> None:
    program = (
        "import sys, sparring_ray.plugin as plugin; plugin.sparring_register_data(); "
        "sys.exit('ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_workers_keep_freed_memory_before_they_train(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Mock()
    for name in ("keep_freed_memory", "find_trainer", "SnapshotReports"):
        monkeypatch.setattr(training, name, getattr(calls, name))
    calls.find_trainer.return_value.train.return_value.rank = 1
    assert _run_worker({"config": CONFIG}) is None
    names = [name for name, *_ in calls.mock_calls]
    assert names.index("keep_freed_memory") < names.index("find_trainer().train")
