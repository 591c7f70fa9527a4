"""Outputs that cannot be evaluated are rejected at once, and a failed evaluation loses no step."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from sparring import make_plugin_manager
from sparring.errors import ConfigError
from sparring_train.config.reading.loader import parse_config
from sparring_train.loop import column_source
from sparring_train.registered_kinds import find_trainer
from sparring_train.run.result import SilentProgress, TrainResult

TORCH = """
import torch
class Heads(torch.nn.Module):
    def __init__(self, embeddings, num_numbers):
        super().__init__()
        self.e = embeddings
    def forward(self, numbers, features):
        rows = self.e(features).values()
        return OUTPUT
    def training_loss(self, inputs):
        return self.e(inputs.features).values().square().sum()
"""
KERAS = """
import keras
import tensorflow as tf
class Heads(keras.Model):
    def __init__(self, embeddings, num_numbers):
        super().__init__()
        self.e = embeddings
    def call(self, inputs, training=False):
        rows = tf.concat(list(self.e(inputs[1]).values()), 1)
        return OUTPUT
    def training_loss(self, numbers, ids, labels, weights):
        return tf.reduce_sum(tf.concat(list(self.e(ids).values()), 1) ** 2)
"""


def train(
    framework: str,
    code: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    resume: bool = False,
    is_stream: bool = False,
) -> TrainResult:
    pytest.importorskip({"torch": "sparring_torch", "tensorflow": "tensorflow"}[framework])
    module = types.ModuleType("heads")
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, "heads", module)
    (folder / "clicks.csv").write_text("user,item,clicked\n" + "ann,shoe,1\nbob,hat,0\n" * 64)
    source = f"kind: table, path: {folder}/clicks.csv"
    if is_stream:
        events = {"user": list("ab") * 32, "item": list("cdef") * 16, "clicked": [0, 1] * 32}
        (folder / "events").mkdir()
        parquet.write_table(pyarrow.table(events), folder / "events" / "0.parquet")
        id_types = "{user: string, item: string}"
        source = f"kind: stream, url: {folder}/events, stop_at_end: true, types: {id_types}"
    config = parse_config(
        f"""
framework: {framework}
threads: 1
data:
  {{{source}, label: clicked, categorical: [user, item], batch_size: 32}}
model: {{kind: "heads:Heads"}}
storage: {{backend: memory}}
snapshots: {{url: {folder}/run, resume: {str(resume).lower()}}}
""",
        plugin_manager=make_plugin_manager(),
    )
    manager = make_plugin_manager()
    return find_trainer(framework, manager).train(config, manager, SilentProgress())


@pytest.mark.parametrize(
    ("framework", "output", "shape"),
    [
        ("torch", "rows[:, :2]", r"\(32, 2\) for 32"),
        ("torch", "rows.sum()", r"\(\) for 32"),
        ("torch", "rows[:1, 0]", r"\(1,\) for 32"),
        pytest.param("tensorflow", "rows[:, :2]", r"\(32, 2\) for 32", marks=pytest.mark.slow),
    ],
)
def test_outputs_of_another_shape_are_rejected_before_the_first_step(
    framework: str, output: str, shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = {"torch": TORCH, "tensorflow": KERAS}[framework].replace("OUTPUT", output)
    with pytest.raises(ConfigError, match=rf"heads:Heads returned predictions of shape {shape}"):
        train(framework, code, tmp_path, monkeypatch)
    assert not list(tmp_path.glob("run/step-*"))


def test_a_run_without_test_examples_accepts_any_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = TORCH.replace("OUTPUT", "rows[:, :2]")
    result = train("torch", code, tmp_path, monkeypatch, is_stream=True)
    assert result.steps == 2
    assert not result.metrics


def test_an_evaluation_that_fails_loses_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = TORCH.replace("OUTPUT", "rows.sum(1)")

    def evaluate(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as broken:
        broken.setattr(column_source.ColumnSource, "evaluate", evaluate)
        with pytest.raises(RuntimeError, match="out of memory"):
            train("torch", code, tmp_path, monkeypatch)
    assert list(tmp_path.glob("run/step-*"))
    result = train("torch", code, tmp_path, monkeypatch, resume=True)
    assert result.resumed_steps == result.steps > 0
    assert "auc" in result.metrics
