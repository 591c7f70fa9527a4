"""A training step of the quickstart's DLRM in JAX, compared with the same step in PyTorch.

Both train the same batches with the same storage, after their losses are compared. The limit of a step
in JAX is the time of its jitted part alone.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.measuring import Figure, alternate, ratios
from benchmarks.scale import Scale

__all__ = ["measure"]

ROOT = Path(__file__).parents[1]
NUM_BATCHES = 16


def measure(scale: Scale) -> list[Figure]:
    """Measures steps of both, and the jitted part."""
    if importlib.util.find_spec("jax") is None or importlib.util.find_spec("optax") is None:
        detail = "JAX is not installed here; run: pip install jax optax"
        return [Figure(what="JAX adapter", value="not run", detail=detail)]
    # One thread each, as in the configuration.
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    from sparring_train import load_config

    batch_size = 256 if scale.is_quick else 2048
    config = load_config(
        ROOT / "configs/quickstart.yaml",
        [f"data.batch_size={batch_size}", f"data.samples={NUM_BATCHES * batch_size}"],
    )
    example = _example()
    torch_step, weights = _torch(config)
    training = example.Training(config, weights)
    batches = list(islice(training.source.batches(0), NUM_BATCHES))
    for batch in batches:
        ours, theirs = training.step(batch), torch_step(batch)
        if abs(ours / theirs - 1) > 1e-3:
            raise AssertionError(f"a loss is {ours} in JAX and {theirs} in PyTorch")
    given, positions = training.look_up(batches[0], is_training=False)

    def jitted() -> None:
        rows, first = given.rows, batches[0]
        found = training.jitted(
            training.weights, training.state, rows, positions, first.numbers, first.labels
        )
        np.asarray(found[2])

    turns = {name: cycle(batches) for name in ("jax", "torch")}
    timed = alternate(
        {
            "jax": lambda: training.step(next(turns["jax"])),
            "torch": lambda: torch_step(next(turns["torch"])),
            "jitted": jitted,
        },
        rounds=scale.rounds(60),
    )
    ours, theirs, limit = (timed[name].median * 1e3 for name in ("jax", "torch", "jitted"))
    to_torch = median(ratios(timed["torch"], timed["jax"]))
    share = median(ratios(timed["jitted"], timed["jax"]))
    return [
        Figure(
            what=f"step of the quickstart's DLRM in JAX, batches of {batch_size:,}: speed",
            value=f"{to_torch:.2f} ×",
            detail=f"that of PyTorch: {ours:.1f} ms, PyTorch {theirs:.1f} ms",
            ratio=to_torch,
        ),
        Figure(
            what="the part of it that is jitted",
            value=f"{100 * share:.0f} %",
            detail=f"{limit:.1f} ms; the rest is lookups, copies and the update of rows",
        ),
    ]


def _torch(config: Any) -> tuple[Any, dict[str, Any]]:
    """Returns a step in PyTorch, and the initial weights of its layers."""
    import torch

    import sparring_torch
    from sparring import StepContainer, make_plugin_manager
    from sparring.adapter import configure_pool
    from sparring_train.pytorch.column_task import ColumnTask

    torch.manual_seed(config.seed)
    torch.set_num_threads(config.threads)
    configure_pool(config.threads)
    task = ColumnTask(config, make_plugin_manager(), StepContainer())
    model: Any = task.model
    layers = [*model.dense_arch.parameters(), *model.over_arch.parameters()]
    sparse = config.optimizer.sparse
    optimizers = [
        sparring_torch.Optimizer(model, sparse.name, lr=sparse.lr),
        torch.optim.Adam(layers, config.optimizer.dense.lr),
    ]

    def step(batch: Any) -> float:
        loss = task.loss(task.inputs(batch)) / len(batch)
        for each in optimizers:
            each.zero_grad()
        loss.backward()
        for each in optimizers:
            each.step()
        return float(loss.detach())

    def weights(arch: Any) -> list[dict[str, Any]]:
        linear = [each for each in arch if isinstance(each, torch.nn.Linear)]
        arrays = [
            (each.weight.detach().numpy().T.copy(), each.bias.detach().numpy().copy())
            for each in linear
        ]
        return [{"w": w, "b": b} for w, b in arrays]

    return step, {"dense": weights(model.dense_arch), "over": weights(model.over_arch)}


def _example() -> Any:
    path = ROOT / "packages/framework-jax/examples/dlrm.py"
    spec = importlib.util.spec_from_file_location("jax_dlrm_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["jax_dlrm_example"] = module
    spec.loader.exec_module(module)
    return module
