"""Programs of two frameworks, each a process without ranks, train one table at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sparring_serve import ParameterClient, ServingConfig, open_parameter_server

STEPS = 25
STORAGE = """
from sparring import StorageChoice
storage = StorageChoice("remote", {
    "target": sys.argv[1], "role": "parameters", "wait": "applied", "deadline_seconds": 60,
})
"""
TORCH = f"""
import sys
import torch
import sparring_torch
{STORAGE}
module = sparring_torch.EmbeddingBag(4, name="item", seed=3, mode="sum", storage=storage)
optimizer = sparring_torch.Optimizer(module, "adagrad", lr=0.2)
for _ in range({STEPS}):
    (module(torch.arange(20).reshape(-1, 1)) - 1).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
KERAS = f"""
import sys
import keras
import numpy as np
import sparring_tf
{STORAGE}
layer = sparring_tf.Embedding(4, name="item", seed=3, storage=storage)
model = keras.Sequential([keras.Input((), dtype="int64"), layer])
loss = lambda wanted, found: keras.ops.sum(keras.ops.square(found - wanted))
model.compile(optimizer=sparring_tf.Optimizer(model, "adagrad", lr=0.2), loss=loss)
model.fit(np.arange(20), np.ones((20, 4), np.float32), batch_size=20, epochs={STEPS}, verbose=0)
"""


def test_a_program_of_torch_and_one_of_keras_train_one_table_at_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    pytest.importorskip("torch", reason="torch is not installed")
    tables = {"item": {"dim": 4, "update_method": "adagrad", "hyper": {"lr": 0.2}, "seed": 3}}
    config = ServingConfig.model_validate({"parameters": {"tables": tables, "start": None}})
    with (
        open_parameter_server(config, address="127.0.0.1:0") as server,
        ParameterClient(server.address) as client,
    ):
        before = client.pull({"item": np.arange(20)}, deadline_seconds=9).rows["item"]
        running = []
        for name, program in (("torch", TORCH), ("keras", KERAS)):
            path = tmp_path / f"{name}_program.py"
            path.write_text(program)
            command = [sys.executable, str(path), server.address]
            running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        for each in running:
            _, told = each.communicate(timeout=120)
            assert each.returncode == 0, told
        after = client.pull({"item": np.arange(20)}, deadline_seconds=9).rows["item"]
        assert server.service.tables.steps == 2 * STEPS
    assert (np.abs(after - 1) < 0.5 * np.abs(before - 1)).all()
