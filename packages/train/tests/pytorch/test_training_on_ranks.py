"""One configuration trains equally in one process and in many, with every launcher."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed; see nox -s tests")
pytest.importorskip("sparring_torch", reason='pip install "sparring[torch]"')

from sparring import make_plugin_manager
from sparring.errors import InvalidArgumentError
from sparring_testing.devices import why_unavailable
from sparring_testing.fixtures.runs import write_ratings
from sparring_train.config.reading.loader import load_config
from sparring_train.registered_kinds import find_trainer
from sparring_train.report.run_data import read_report
from sparring_train.run.result import SilentProgress, TrainResult

from ..config.config_runs import RATINGS as SMALL_RATINGS
from ..config.config_runs import Runs

DEADLINE_SECONDS = 150
PYTHON = Path(sys.executable)
# The agent selects a free port, and keeps it.
TORCHRUN = [str(PYTHON), "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
MPIEXEC = str(PYTHON.parent / "mpiexec") if (PYTHON.parent / "mpiexec").exists() else ""
MPIEXEC = MPIEXEC or shutil.which("mpiexec") or ""

needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("sparring_mpi") is None or not MPIEXEC,
    reason='needs sparring-mpi and mpiexec: pip install "sparring[mpi]"',
)

# Each launcher and each configuration once, then all others. Without these marks, only the template's
# model is trained by torchrun, because each rank imports PyTorch.
LAUNCHES = [
    pytest.param("torchrun", 2, "clicks.yaml", marks=pytest.mark.slow),
    pytest.param("mpiexec", 2, "ratings.yaml", marks=[needs_mpi, pytest.mark.slow]),
    pytest.param("torchrun", 2, "ratings.yaml", marks=pytest.mark.long),
    pytest.param("torchrun", 3, "ratings.yaml", marks=pytest.mark.long),
    pytest.param("torchrun", 3, "clicks.yaml", marks=pytest.mark.long),
    pytest.param("mpiexec", 3, "ratings.yaml", marks=[needs_mpi, pytest.mark.long]),
    pytest.param("mpiexec", 2, "clicks.yaml", marks=[needs_mpi, pytest.mark.long]),
    pytest.param("mpiexec", 3, "clicks.yaml", marks=[needs_mpi, pytest.mark.long]),
]

# The last batch of clicks has one sample, so all other ranks have none. The last epoch is not the best.
RATINGS = """
seed: 3
threads: 1
data: {kind: table, path: ratings.csv, batch_size: 50, label: rating, categorical: [user, item],
  required: [user, item], split: {exact_fraction: 0.1}}
model: {kind: matrix_factorization, dim: 4}
optimizer: {sparse: {name: adam, lr: 0.05}}
training: {epochs: 2, micro_batches: 3}
tables: {dtype: float64}
report: {path: report.html}
"""

CLICKS = """
seed: 3
threads: 1
data: {kind: synthetic_criteo, samples: 257, test_samples: 301, validation_samples: 101,
  batch_size: 128, max_ids: 200}
model: {kind: dlrm, embedding_dim: 4, bottom_mlp: [8], top_mlp: [8]}
optimizer: {sparse: {name: rowwise_adagrad, lr: 0.5}, dense: {name: sgd, lr: 0.1}}
training: {epochs: 12, patience: 2, watch: log_loss}
"""


METRICS = {"ratings.yaml": "rmse", "clicks.yaml": "log_loss"}


def write_inputs(folder: Path) -> Path:
    """500 ratings: the last batch of 450 for training is whole, its micro-batches are uneven."""
    random = np.random.default_rng(5)
    users, items = random.integers(0, 20, 500), random.integers(0, 30, 500)
    ratings = random.integers(1, 11, 500) / 2
    write_ratings(folder / "ratings.csv", users * 10**12 - 7, items * 10**9, ratings)
    (folder / "ratings.yaml").write_text(RATINGS)
    (folder / "clicks.yaml").write_text(CLICKS)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_inputs(tmp_path)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, TrainResult]:
    """Returns the results of one process, by configuration."""
    folder, manager = write_inputs(tmp_path_factory.mktemp("alone")), make_plugin_manager()
    more = [f"data.path={folder}/ratings.csv", f"report.path={folder}/report.html"]
    reached = {}
    for name in METRICS:
        config = load_config(folder / name, more if name == "ratings.yaml" else ())
        reached[name] = find_trainer("torch", manager).train(config, manager, SilentProgress())
    return reached


def launched(launcher: str, num_ranks: int, arguments: list[str], folder: Path) -> list[str]:
    """Standard output, by line."""
    command = {
        "torchrun": [*TORCHRUN, "--nproc-per-node", str(num_ranks)],
        "mpiexec": [MPIEXEC, "-n", str(num_ranks), str(PYTHON)],
    }[launcher]
    done = subprocess.run(
        [*command, "-m", "sparring", "train", *arguments],
        check=False,  # the assertion below shows its output
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("launcher", "num_ranks", "name"), LAUNCHES)
def test_ranks_reach_the_results_of_one_process(
    launcher: str, num_ranks: int, name: str, folder: Path, alone: Mapping[str, TrainResult]
) -> None:
    # One line: only the first rank prints. Some ranks prefetch the next batch.
    more = [f"training.pipeline={str(launcher == 'mpiexec').lower()}", "--json"]
    (together,) = launched(launcher, num_ranks, [name, *more], folder)
    one, many, metric = alone[name], json.loads(together), METRICS[name]
    assert many["rows"] == one.rows
    assert sum(many["rows"].values()) > 0
    assert many["steps"] == one.steps
    assert many.get("best_step") == one.best_step
    assert many.get("validation", {}) == pytest.approx(one.validation, rel=2e-6)
    assert many["metrics"][metric] == pytest.approx(one.metrics[metric], rel=2e-6)
    assert (folder / "report.html").exists() is (name == "ratings.yaml")
    if name == "ratings.yaml":
        found = read_report(folder / "report.html")
        assert found.world_size == num_ranks
        expected = read_report(one.extra["report_path"]).slices
        for each, one_process in zip(found.slices, expected, strict=True):
            assert each.metrics == pytest.approx(one_process.metrics, rel=2e-6)
            assert each.model_copy(update={"metrics": one_process.metrics}) == one_process
        assert found.peak_memory_bytes == many["peak_memory_bytes"] > 50 << 20


@pytest.mark.long
@pytest.mark.skipif(
    why_unavailable("emulated") is not None, reason=str(why_unavailable("emulated"))
)
def test_ranks_with_tables_on_devices_reach_the_results_of_one_process(
    folder: Path, alone: Mapping[str, TrainResult]
) -> None:
    more = ["storage.backend=hkv", "storage.options.device=emulated", "--json"]
    (together,) = launched("torchrun", 2, ["clicks.yaml", *more], folder)
    one, many = alone["clicks.yaml"], json.loads(together)
    assert many["rows"] == one.rows
    assert many["metrics"]["log_loss"] == pytest.approx(one.metrics["log_loss"], rel=2e-6)


def test_ranks_with_different_settings_are_rejected_naming_both(runs: Runs) -> None:
    settings = [
        runs.config(
            SMALL_RATINGS,
            "collective.backend=threads",
            f"rendezvous={{backend: threads, options: {{rank: {rank}, world_size: 2}}}}",
            f"training.epochs={epochs}",
        )
        for rank, epochs in enumerate((2, 7))
    ]
    with ThreadPoolExecutor(2) as threads:
        ends = [threads.submit(runs.train, each) for each in settings]
    for end in ends:
        with pytest.raises(InvalidArgumentError, match=r"epochs is 2 on rank 0 and 7 on rank 1"):
            end.result()
