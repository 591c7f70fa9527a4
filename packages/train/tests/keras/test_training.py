"""`sparring train` with `framework: tensorflow`: clicks, several ranks, and rejected settings."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import sparring_tf
from sparring import StepContainer, make_plugin_manager
from sparring.errors import ConfigError, InvalidArgumentError, NonFiniteGradientError
from sparring.snapshot.retention import latest_snapshot
from sparring_train.config.run_type import run_type
from sparring_train.keras.tasks import ColumnTask
from sparring_train.registered_kinds import find_trainer
from sparring_train.run.ranks import Ranks
from sparring_train.run.result import SilentProgress, TrainResult


def config(**sections: Any) -> dict[str, Any]:
    return {
        "framework": "tensorflow",
        "seed": 3,
        "threads": 1,
        "data": {
            "kind": "synthetic_criteo",
            "samples": 6000,
            "test_samples": 2000,
            "batch_size": 500,
        },
        "model": {"kind": "dlrm", "embedding_dim": 8, "bottom_mlp": [16], "top_mlp": [16]},
        "optimizer": {"sparse": {"name": "adagrad", "lr": 0.05}},
        **sections,
    }


def trained(settings: dict[str, Any]) -> TrainResult:
    manager = make_plugin_manager()
    run = run_type().model_validate(settings)
    return find_trainer("tensorflow", manager).train(run, manager, SilentProgress())


def test_clicks_are_learned() -> None:
    result = trained(config())
    assert result.steps == 12
    assert result.metrics["auc"] > 0.6
    assert len(result.rows) == 26


@pytest.mark.parametrize("kind", ["ratings", "clicks"])
def test_a_snapshot_predicts_like_the_trained_model(kind: str, tmp_path: Path) -> None:
    is_rating = kind == "ratings"
    sections: dict[str, Any] = {"snapshots": {"url": str(tmp_path / "run")}}
    if is_rating:
        path = tmp_path / "ratings.csv"
        lines = [f"{place % 7},{place % 11 * 10**9},{place % 5 + 0.5},0" for place in range(300)]
        path.write_text("\n".join(["user,item,rating,timestamp", *lines]) + "\n")
        sections |= {
            "data": {
                "kind": "table",
                "path": str(path),
                "label": "rating",
                "categorical": ["user", "item"],
                "required": ["user", "item"],
                "split": {"exact_fraction": 0.1},
                "batch_size": 64,
            },
            "model": {"kind": "matrix_factorization", "dim": 4},
        }
    else:
        sections["training"] = {"steps": 3}
    result = trained(config(**sections))
    snapshot = latest_snapshot(sections["snapshots"]["url"])
    assert snapshot is not None
    with StepContainer() as container:
        run = run_type().model_validate(config(**sections))
        task = ColumnTask(run, make_plugin_manager(), container)
        for variable in task.model.non_trainable_variables:
            variable.assign(tf.zeros_like(variable))
        state = container.load(snapshot.url).states["tensorflow"]
        sparring_tf.restore_state(state, model=task.model)
        predict = tf.function(task.predicted, input_signature=task.input_signature)
        found = task.source.evaluate(
            lambda batch: predict(*task.inputs(batch)).numpy(), Ranks(container.collective)
        )
    assert found == result.metrics


def test_ratings_have_weights(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    lines = [f"{at % 7},{at % 11},{at % 5 + 0.5},{at % 5}" for at in range(300)]
    path.write_text("\n".join(["user,item,rating,w", *lines]) + "\n")
    data = {"kind": "table", "path": str(path), "label": "rating", "batch_size": 64}
    data |= {"categorical": ["user", "item"], "required": ["user", "item"]}
    model = {"kind": "matrix_factorization", "dim": 4}
    plain, weighted = (
        trained(config(data=data | more, model=model)).metrics["rmse"]
        for more in ({}, {"weight": "w"})
    )
    assert plain != weighted


def test_an_unknown_optimizer_is_named() -> None:
    for section, name in (("sparse", "adagrat"), ("dense", "adaam")):
        with pytest.raises(ConfigError, match="did you mean"):
            trained(config(optimizer={section: {"name": name, "lr": 0.1}}))
    with pytest.raises(ConfigError, match="does not accept"):
        trained(config(optimizer={"dense": {"name": "adam", "lr": 0.1, "betas": 1}}))


def test_a_method_without_a_rate_uses_its_default() -> None:
    """Not the default of Keras: 0.001 for adam, as with any framework."""
    plain = trained(config(optimizer={"sparse": {"name": "adam"}}))
    assert (
        plain.metrics
        == trained(config(optimizer={"sparse": {"name": "adam", "lr": 0.001}})).metrics
    )
    assert (
        plain.metrics != trained(config(optimizer={"sparse": {"name": "adam", "lr": 0.01}})).metrics
    )


def test_numbers_of_single_tables_are_rejected_with_an_optimizer_of_keras() -> None:
    own = {"tables": {"cat_1": {"lr": 0.2}}}
    with pytest.raises(InvalidArgumentError, match="tables is only supported for update methods"):
        trained(config(optimizer={"sparse": {"name": "keras.optimizers:Adagrad", "lr": 0.1} | own}))


def test_prefetch_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"training\.pipeline: .*framework: torch"):
        trained(config(training={"pipeline": True}))


def test_a_non_finite_gradient_ends_the_run_or_is_skipped() -> None:
    sparse = {"name": "sgd", "lr": 1e30}
    with pytest.raises(NonFiniteGradientError):
        trained(config(optimizer={"sparse": sparse}))
    result = trained(
        config(optimizer={"sparse": sparse}, training={"non_finite_gradients": "skip"})
    )
    assert result.skipped["dense_steps_skipped_non_finite"] > 0


DEADLINE_SECONDS = 150
MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")

MANY_RANKS = """
framework: tensorflow
seed: 3
threads: 1
data: {kind: synthetic_criteo, samples: 650, test_samples: 301, batch_size: 128, max_ids: 200}
model: {kind: dlrm, embedding_dim: 4, bottom_mlp: [8], top_mlp: [8]}
optimizer: {sparse: {name: rowwise_adagrad, lr: 0.1}, dense: {name: sgd, lr: 0.1}}
training: {micro_batches: 2}
"""

FIT = """
import json, os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, numpy as np
from sparring import StepContainer, join_job, make_plugin_manager
from sparring_train.config.run import RendezvousConfig, CollectiveConfig
import sparring_tf
job = join_job(
    RendezvousConfig(), CollectiveConfig(), framework="tensorflow", deadline_seconds=60,
    plugin_manager=make_plugin_manager(),
)
with job, StepContainer(collective=job.collective, rendezvous=job.rendezvous) as container:
    rank, world = job.membership.rank, job.membership.world_size
    keras.utils.set_random_seed(rank)
    if world == 1:
        keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input((), dtype="int64"),
        sparring_tf.Embedding(4, name="rows", container=container, storage="memory"),
        keras.layers.Dense(1),
    ])
    model.compile(optimizer=sparring_tf.Optimizer(model, keras.optimizers.Adagrad(0.2)), loss="mse")
    ids = np.arange(48, dtype=np.int64) * 10**9 % 17
    ids = ids.reshape(6, 8)[:, rank * 8 // world : (rank + 1) * 8 // world].reshape(-1)
    targets = (ids % 3).astype(np.float32)[:, None]
    model.fit(ids, targets, batch_size=8 // world, epochs=2, shuffle=False, verbose=0)
    found = model.predict(np.arange(17, dtype=np.int64), verbose=0)
    if rank == 0:
        print(json.dumps(found.reshape(-1).tolist()))
"""


PLANNED = """
import json, os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, numpy as np
import sparring_tf
keras.utils.set_random_seed(0)
model = keras.Sequential([
    keras.Input((), dtype="int64"),
    sparring_tf.Embedding(4, name="rows", storage="memory"),
    keras.layers.Dense(1),
])
optimizer = sparring_tf.Optimizer(model, keras.optimizers.Adagrad(0.2), plan="auto")
with optimizer.container as container:
    rank, world = container.collective.rank, container.collective.world_size
    model.compile(optimizer=optimizer, loss="mse")
    ids = np.arange(48, dtype=np.int64) * 10**9 % 17
    ids = ids.reshape(6, 8)[:, rank * 8 // world : (rank + 1) * 8 // world].reshape(-1)
    targets = (ids % 3).astype(np.float32)[:, None]
    model.fit(ids, targets, batch_size=8 // world, epochs=2, shuffle=False, verbose=0)
    found = model.predict(np.arange(17, dtype=np.int64), verbose=0)
    if rank == 0:
        print(json.dumps(found.reshape(-1).tolist()))
"""


def on_ranks(num_ranks: int, command: list[str], folder: Path) -> Any:
    """Returns the last line that the first rank prints."""
    launcher = [] if num_ranks == 1 else [str(MPIEXEC), "-n", str(num_ranks)]
    ran = subprocess.run(
        [*launcher, sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout.strip().splitlines()[-1])


needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("sparring_mpi") is None or not MPIEXEC,
    reason='needs sparring-mpi and mpiexec: pip install "sparring[mpi]"',
)


@needs_mpi
def test_two_ranks_train_like_one(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(MANY_RANKS)
    command = ["-m", "sparring", "train", "run.yaml", "--json"]
    alone = on_ranks(1, command, tmp_path)
    together = on_ranks(2, [*command, "plan=auto"], tmp_path)
    assert alone["rows"] == together["rows"]
    assert alone["steps"] == together["steps"]
    assert alone["metrics"] == pytest.approx(together["metrics"], abs=1e-4)


@needs_mpi
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(FIT, id="a container", marks=pytest.mark.slow),
        pytest.param(PLANNED, id="a plan", marks=pytest.mark.long),
    ],
)
def test_two_ranks_fit_a_keras_model_like_one(script: str, tmp_path: Path) -> None:
    """Ordinary variables start with the values of rank 0, and their gradients are averaged."""
    (tmp_path / "fit.py").write_text(script)
    alone, together = (on_ranks(number, ["fit.py"], tmp_path) for number in (1, 2))
    assert alone == pytest.approx(together, abs=1e-5)
