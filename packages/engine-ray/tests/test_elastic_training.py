"""A run on a changing number of workers has the bits of a run without Ray on the same numbers."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="ray is not installed; see nox -s engines")
pytest.importorskip("sparring_torch", reason='pip install "sparring[torch]"')

from ray import cloudpickle
from ray.cluster_utils import Cluster

import sparring_ray
from sparring import ScanChunk, list_snapshots, open_snapshot, scan_rows
from sparring_ray import training

DEADLINE_SECONDS = 600
STEPS = 60
CONFIG = f"""
seed: 1
threads: 1
data: {{kind: synthetic_criteo, samples: 20000, test_samples: 1000, batch_size: 64, max_ids: 500}}
model: {{kind: dlrm, embedding_dim: 4, bottom_mlp: [8], top_mlp: [8]}}
optimizer:
  sparse: {{name: adagrad, lr: 0.05}}
  dense: {{name: adam, lr: 0.001}}
training: {{steps: {STEPS}}}
snapshots: {{url: snapshots, every_steps: 5, keep: 100}}
"""

# Workers receive the functions of this module by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster of one node with two logical processors, which soon notices that a node is lost."""
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "15")
    settings = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "_system_config": settings})
    ray.init(address=made.address, logging_level="warning")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    return path


def watched_worker(
    folder: Path, pauses: dict[int, int], kills: dict[int, int]
) -> Callable[[Any], Any]:
    """Returns the function of a worker that writes the rows that it loads to a folder.

    Args:
        folder: the folder.
        pauses: number of workers → step after which such a run waits to be interrupted.
        kills: number of workers → step in which one of them kills itself, once, when all have their
            gradients and the last snapshot before the step is complete.
    """

    def run(settings: Any) -> Any:
        from sparring_ray.snapshot_reports import SnapshotReports
        from sparring_ray.training import _run_worker
        from sparring_torch import Optimizer
        from sparring_train.run.snapshots import RunSnapshots

        resume, update = RunSnapshots.resume, Optimizer.step
        size, rank = os.environ["WORLD_SIZE"], os.environ["RANK"]

        def watched(self: Any, meanwhile: Any) -> Any:
            loaded = resume(self, meanwhile)
            if loaded is not None:
                found = {
                    entry.config.name: contents_of(entry.storage.scan())
                    for entry in self._container.entries()
                }
                path = folder / f"{loaded.step}-{size}-{rank}"
                path.write_bytes(pickle.dumps(found))
            return loaded

        def on_step(_: Any, step: int, loss: float, samples: int) -> None:
            while step == pauses.get(int(size)):
                time.sleep(1)

        def killed(self: Any) -> None:
            mark = folder.with_name(f"killed-{size}")
            step = self.container.counters.steps
            if step == kills.get(int(size)) and rank == "1" and not mark.exists():
                wait_for_step(folder.with_name("snapshots"), step // 5 * 5)
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            update(self)

        Optimizer.step = killed
        RunSnapshots.resume = watched
        SnapshotReports.on_step = on_step
        return _run_worker(settings)

    return run


def wait_for_step(folder: Path, step: int) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while not (folder / f"step-{step:012d}/manifest.json").exists():
        assert time.monotonic() < end, f"found no snapshot of step {step} in {folder}"
        time.sleep(0.2)


def test_a_run_on_4_2_and_3_workers_has_the_bits_of_one_without_ray(
    cluster: Cluster, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = cluster.add_node(num_cpus=2)
    loaded = tmp_path / "loaded"
    loaded.mkdir()
    pauses, kills = {4: 17, 2: 33}, {4: 8, 2: 22, 3: 43}
    monkeypatch.setattr(training, "_run_worker", watched_worker(loaded, pauses, kills))
    result: list[Any] = []

    def train() -> None:
        result.append(
            sparring_ray.train(config, (1, 4), scaling={"elastic_resize_monitor_interval_s": 2})
        )

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    snapshots = tmp_path / "snapshots"
    wait_for_step(snapshots, 15)
    cluster.remove_node(other, allow_graceful=False)
    wait_for_step(snapshots, 30)
    cluster.add_node(num_cpus=1)
    thread.join(DEADLINE_SECONDS)
    assert result, "training has not ended"

    saved = [open_snapshot(url) for url in list_snapshots(str(snapshots))]
    sizes = {each.step: each.world_size for each in saved}
    assert sizes == {step: 4 if step <= 15 else 2 if step <= 30 else 3 for step in range(5, 61, 5)}
    assert len(list(tmp_path.glob("killed-*"))) == len(kills)
    check_loaded_rows(loaded, snapshots, {(5, 4), (15, 2), (20, 2), (30, 3), (40, 3)})
    assert result[0].metrics["step"] == result[0].return_value.steps == STEPS
    assert result[0].metrics["world_size"] == 3
    assert sparring_ray.read_snapshot_url(result[0].checkpoint) == str(
        snapshots / f"step-{STEPS:012d}"
    )
    # A report that waits when workers are stopped is lost.
    reported = [each["snapshot"] for _, each in result[0].best_checkpoints]
    assert {*reported} <= {each.url for each in saved}
    for size, steps in ((4, 15), (2, 30), (3, STEPS)):
        run_without_ray(
            config, size, f"training.steps={steps}", f"snapshots.url={tmp_path / 'plain'}"
        )
    newest = f"step-{STEPS:012d}"
    assert contents(tmp_path / "plain" / newest) == contents(snapshots / newest)


def check_loaded_rows(loaded: Path, snapshots: Path, expected: set[tuple[int, int]]) -> None:
    """Compares the rows that workers loaded with the snapshot of their step."""
    files = [(*map(int, path.name.split("-")), path) for path in loaded.iterdir()]
    assert {(step, size) for step, size, _, _ in files} == expected
    for step, size in expected:
        chosen = [path for *where, _, path in files if tuple(where) == (step, size)]
        parts = [pickle.loads(path.read_bytes()) for path in chosen]
        assert len(parts) == size
        saved = rows(snapshots / f"step-{step:012d}")
        for name, content in saved.items():
            found = {key: row for part in parts for key, row in part[name].items()}
            assert found == content, f"table {name} of step {step} on {size} workers"


def rows(url: Path) -> dict[str, dict[int, bytes]]:
    snapshot = open_snapshot(str(url))
    return {name: contents_of(scan_rows(snapshot, name)) for name in snapshot.tables}


def contents_of(chunks: Iterable[ScanChunk]) -> dict[int, bytes]:
    return {
        int(key): row.tobytes()
        for chunk in chunks
        for key, row in zip(chunk.keys, chunk.rows, strict=True)
    }


def contents(url: Path) -> dict[str, Any]:
    """Returns all rows, and the parameters and optimizer states of PyTorch."""
    state = open_snapshot(str(url)).state("torch")
    arrays = {name: each.tobytes() for name, each in state.arrays.items()}
    assert arrays
    return {**rows(url), "parameters": arrays}


def run_without_ray(config: Path, num_ranks: int, *overrides: str) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, f"--nproc-per-node={num_ranks}", "-m", "sparring", "train", str(config)]
    ran = subprocess.run(
        [*command, "--resume", *overrides],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
