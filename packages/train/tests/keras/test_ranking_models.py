"""Models of TensorFlow on columns learn the same as PyTorch's from equal initial weights.

Tests are named so that `nox -s tests_tensorflow` runs them where there is torch too.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)
torch = pytest.importorskip("torch", reason="needs PyTorch, which is compared with")
pytest.importorskip("sparring_torch", reason="needs sparring-torch")
pytest.importorskip("sparring_packed", reason="needs sparring-packed, which ranks all items")

from sparring import StepContainer, make_plugin_manager
from sparring.plugins.distributions import PluginSource
from sparring_tf import trained_table
from sparring_torch import dense_parameters
from sparring_train.config.run_type import run_type
from sparring_train.keras import tasks as keras_tasks
from sparring_train.keras import trainer as keras_trainer
from sparring_train.pytorch import column_task as torch_tasks
from sparring_train.pytorch import trainer as torch_trainer
from sparring_train.run.ranks import Ranks

from ..data.visits import VisitsPlugin

MODELS: dict[str, dict[str, Any]] = {
    "deepfm": {"kind": "deepfm", "embedding_dim": 4, "pooling": "mean"},
    "dlrm": {"kind": "dlrm", "embedding_dim": 4, "bottom_mlp": [8], "top_mlp": [8]},
    "two_towers": {
        "kind": "two_towers",
        "embedding_dim": 8,
        "user": ["user", "history"],
        "item": ["item", "group"],
        "layers": [16],
        "normalize": True,
        "temperature": 0.2,
    },
    "sequence": {"kind": "sequence", "embedding_dim": 8, "hidden_layer": 16, "dropout": 0.0},
}


def config_of(framework: str, model: dict[str, Any], **data: Any) -> Any:
    manager = make_plugin_manager()
    manager.load(PluginSource("visits", "sparring-visits", "1", VisitsPlugin))
    settings = {
        "framework": framework,
        "seed": 3,
        "threads": 1,
        "data": {"kind": "visits", **data},
        "model": model,
        "optimizer": {
            "sparse": {"name": "adagrad", "lr": 0.1},
            "dense": {"name": "sgd", "lr": 0.1},
        },
        "storage": {"backend": "memory"},
    }
    return run_type(manager).model_validate(settings), manager


def trained(task: Any, trainer: Any) -> tuple[list[float], dict[str, float]]:
    losses = [
        each.loss
        for epoch in range(4)
        for each in trainer.steps(task.source.batches(epoch), threading.Event())
    ]
    collective = trainer.container.collective
    return losses, task.source.evaluate(trainer.predict, Ranks(collective))


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_model_learns_as_one_of_torch(model: dict[str, Any]) -> None:
    is_click = model["kind"] in ("deepfm", "dlrm")
    data = {"label": "binary"} if is_click else {}
    with StepContainer() as theirs, StepContainer() as ours:
        config, manager = config_of("torch", model, **data)
        torch.manual_seed(3)
        one = torch_tasks.ColumnTask(config, manager, theirs)
        initial = [
            each.detach().numpy().T
            if each.ndim == 2 and "positions" not in name
            else each.detach().numpy()
            for name, each in dense_parameters(one.model)
        ]
        config, manager = config_of("tensorflow", model, **data)
        other = keras_tasks.ColumnTask(config, manager, ours)
        trainer = keras_trainer._Trainer(config, other, manager)
        ordinary = [each for each in other.model.trainable_variables if trained_table(each) is None]
        for variable, value in zip(ordinary, initial, strict=True):
            variable.assign(value)
        config, manager = config_of("torch", model, **data)
        expected = trained(one, torch_trainer._Trainer(config, one, manager))
        found = trained(other, trainer)
    assert found[0] == pytest.approx(expected[0], abs=1e-3)
    assert found[1] == pytest.approx(expected[1], abs=1e-3)
    assert expected[0][-1] < expected[0][0]


MANY_RANKS = """
seed: 1
threads: 1
data: {kind: table, path: ratings.csv, batch_size: 64, label: rating, categorical: [user, item],
  required: [user, item], split: {exact_fraction: 0.1}}
optimizer: {sparse: {name: adagrad, lr: 0.1}, dense: {name: sgd, lr: 0.1}}
training: {micro_batches: 2, epochs: 2}
storage: {backend: memory}
"""

# Each rank would draw dropout for its part.
ON_RANKS = {
    "two_towers": ("model={kind: two_towers, embedding_dim: 4, layers: [8], positive: 3}",),
    "sequence": (
        "model={kind: sequence, embedding_dim: 4, hidden_layer: 8, blocks: 1, dropout: 0, length: 6,"
        " user: user}",
        "data={kind: table, path: ratings.csv, batch_size: 64, categorical: [user, item],"
        " required: [user, item], time: timestamp, history: {length: 6},"
        " split: {leave_one_out: user}}",
    ),
}

MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")


@pytest.mark.skipif(
    importlib.util.find_spec("sparring_mpi") is None or not MPIEXEC,
    reason='needs sparring-mpi and mpiexec: pip install "sparring[mpi]"',
)
@pytest.mark.slow  # four processes import TensorFlow; `test_training` starts fewer of them
@pytest.mark.parametrize("framework", [pytest.param("torch", marks=pytest.mark.long), "tensorflow"])
@pytest.mark.parametrize("model", ON_RANKS.values(), ids=ON_RANKS)
def test_three_ranks_train_as_one_with_torch_and_tensorflow(
    model: tuple[str, ...], framework: str, tmp_path: Path
) -> None:
    """Models have layers: as processes, ranks begin with equal ones."""
    random = np.random.default_rng(5)
    drawn = zip(*(random.integers(0, bound, 300).tolist() for bound in (17, 40, 5)), strict=True)
    lines = [
        f"{user},{item * 10**9},{rating + 0.5},{when}"
        for when, (user, item, rating) in enumerate(drawn)
    ]
    text = "\n".join(["user,item,rating,timestamp", *lines]) + "\n"
    (tmp_path / "ratings.csv").write_text(text)
    (tmp_path / "run.yaml").write_text(MANY_RANKS)
    command = [
        sys.executable,
        "-m",
        "sparring",
        "train",
        "run.yaml",
        f"framework={framework}",
        *model,
        "--json",
    ]
    found = []
    for launcher in ([], [str(MPIEXEC), "-n", "3"]):
        ran = subprocess.run(
            [*launcher, *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-4000:]
        found.append(json.loads(ran.stdout.strip().splitlines()[-1]))
    alone, together = found
    assert alone["rows"] == together["rows"]
    assert alone["metrics"]["recall@10"] > 0
    assert alone["metrics"] == pytest.approx(together["metrics"], abs=1e-6)
