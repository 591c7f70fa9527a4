"""Several ranks give the results of one process on the joined batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
optax = pytest.importorskip("optax", reason="optax is not installed: pip install optax")

import jax.numpy as jnp

from sparring import StepContainer
from sparring.adapter import initial_rows
from sparring.contracts import Collective, TableConfig
from sparring.errors import InvalidArgumentError, PluginError, UnsupportedError
from sparring_jax.batch import pool
from sparring_jax.ids import pack_ids
from sparring_jax.job import join_job
from sparring_jax.optimizer import Optimizer
from sparring_jax.tables import Tables
from sparring_testing.processes.mpi_launcher import MPIEXEC, needs_mpi
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

USER = TableConfig("user", 4, seed=1)


@jax.jit
def gradients_of(weights: Any, rows: Any, positions: Any, targets: Any) -> Any:
    def loss(weights: Any, rows: Any) -> Any:
        found = pool(rows, positions["user"]) @ weights["w"] + weights["b"].astype(jnp.float32)
        return ((found - targets) ** 2).mean()

    return jax.grad(loss, argnums=(0, 1))(weights, rows)


def trained(container: StepContainer, part: slice) -> tuple[Any, Any]:
    """Weights and all embeddings after some steps with a part of each batch."""
    tables = Tables(USER, storage="memory", container=container)
    optimizer = Optimizer(tables, optax.adagrad(0.1, initial_accumulator_value=0.0, eps=1e-20))
    rank = container.collective.rank
    weights = {"w": jnp.full(4, 0.5 + rank), "b": jnp.zeros((), jnp.bfloat16) + rank}
    weights = tables.broadcast(weights)
    generator = np.random.default_rng(3)
    for _ in range(10):
        ids, targets = generator.integers(0, 40, (16, 3)), generator.random(16, np.float32)
        lengths = np.full(len(ids[part]), 3)
        batch = tables.lookup({"user": (ids[part].reshape(-1), lengths)})
        dense, rows = gradients_of(weights, batch.rows, batch.positions, targets[part])
        dense = tables.average(dense)
        weights = jax.tree.map(lambda w, g: w - 0.1 * g, weights, dense)
        optimizer.step(batch, rows)
    every = np.arange(40)
    read = tables.lookup({"user": every}, is_training=False)
    found = np.asarray(read.rows["user"])[np.asarray(read.positions["user"].inverse)]
    return jax.tree.map(np.asarray, weights), found


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_ranks_equal_one_process(world_size: int) -> None:
    with StepContainer() as container:
        weights, rows = trained(container, slice(None))
    rendezvous = ThreadRendezvous(world_size)

    def body(collective: Collective) -> Any:
        # All batches of a rank have the same size: parts of 12 and 8 lines would have different weights.
        each = 16 // world_size
        part = slice(collective.rank * each, (collective.rank + 1) * each)
        with StepContainer(collective=collective, rendezvous=rendezvous) as container:
            return trained(container, part)

    results = run_ranks(world_size, body, 60.0)
    for theirs, found in results:
        assert np.array_equal(theirs["w"], results[0][0]["w"])
        assert theirs["b"].dtype == weights["b"].dtype
        if world_size == 2:
            np.testing.assert_allclose(theirs["w"], weights["w"], rtol=1e-4)
            np.testing.assert_allclose(found, rows, atol=1e-5)


def test_a_rank_with_invalid_ids_is_named_on_all() -> None:
    rendezvous = ThreadRendezvous(2)

    def body(collective: Collective) -> str:
        with StepContainer(collective=collective, rendezvous=rendezvous) as container:
            tables = Tables(USER, storage="memory", container=container)
            ids = np.array([1.5]) if collective.rank else np.array([1])
            with pytest.raises(InvalidArgumentError, match="must be int64") as caught:
                tables.lookup({"user": ids})
            with pytest.raises(UnsupportedError, match="on 2 ranks"):
                tables.infer("user", pack_ids([1]))
            return str(caught.value)

    assert "rank 1" in run_ranks(2, body, 60.0)[0]


SCRIPT = """
import numpy as np, sys
sys.path.insert(0, {folder!r})
from test_ranks import trained
from sparring_jax import join_job
with join_job() as container:
    size, rank = container.collective.world_size, container.collective.rank
    weights, rows = trained(container, slice(rank * 16 // size, (rank + 1) * 16 // size))
np.savez(f"{{size}}-{{rank}}.npz", w=weights["w"], rows=rows)
"""


@pytest.mark.slow  # the processes import jax
@needs_mpi
def test_two_processes_of_mpiexec_equal_one(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(folder=str(Path(__file__).parent)))
    for command in ([], [MPIEXEC, "-n", "2"]):
        subprocess.run(
            [*command, sys.executable, "script.py"], cwd=tmp_path, check=True, timeout=120
        )
    alone, first, second = (np.load(tmp_path / f"{each}.npz") for each in ("1-0", "2-0", "2-1"))
    assert not np.allclose(alone["rows"], initial_rows(np.arange(40), USER), atol=1e-3)
    for each in (first, second):
        np.testing.assert_allclose(each["w"], alone["w"], rtol=1e-4)
        np.testing.assert_allclose(each["rows"], alone["rows"], atol=1e-5)


def test_ranks_of_torchrun_must_name_a_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        PluginError, match=r"collective of 'jax', but there is none.*start them with mpiexec"
    ):
        join_job()


def test_a_single_process_is_a_world_of_one() -> None:
    assert "RANK" not in os.environ
    with join_job() as container:
        assert container.collective.world_size == 1
