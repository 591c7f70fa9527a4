"""The quickstart's DLRM learns the same in JAX as in PyTorch, step by step."""

from __future__ import annotations

import importlib.util
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
pytest.importorskip("optax", reason="optax is not installed: pip install optax")
torch = pytest.importorskip("torch", reason="PyTorch is not installed next to JAX")
pytest.importorskip("sparring_train", reason="sparring-train is not installed")

import sparring_torch
from sparring import StepContainer, make_plugin_manager
from sparring_train import RunConfig, load_config
from sparring_train.loop.column_source import ColumnSource
from sparring_train.run.ranks import Ranks

ROOT = Path(__file__).parents[3]


def example() -> ModuleType:
    path = Path(__file__).parents[1] / "examples/dlrm.py"
    spec = importlib.util.spec_from_file_location("dlrm", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["dlrm"] = module
    spec.loader.exec_module(module)
    return module


def weights_of(layers: Any) -> list[dict[str, Any]]:
    linear = [each for each in layers if isinstance(each, torch.nn.Linear)]
    return [
        {
            "w": jax.numpy.array(each.weight.detach().numpy().T),
            "b": jax.numpy.array(each.bias.detach().numpy()),
        }
        for each in linear
    ]


def trained_in_torch(
    config: RunConfig, max_steps: int | None
) -> tuple[dict[str, Any], list[float], Any]:
    """Initial weights, losses and metrics of the same model in PyTorch."""
    torch.manual_seed(config.seed)
    container = StepContainer()
    source = ColumnSource(config, make_plugin_manager(), container)
    parts, names = source.model_request(), [each.name for each in source.data.schema.features]
    configs = [sparring_torch.EmbeddingBagConfig.of(parts.tables[each]) for each in names]
    collection = sparring_torch.EmbeddingBagCollection(
        configs, storage=parts.storage, container=container
    )
    sizes: Any = config.model
    num_numbers = len(source.data.schema.numbers)
    model = sparring_torch.DLRM(
        collection, num_numbers, [*sizes.bottom_mlp, sizes.embedding_dim], [*sizes.top_mlp, 1]
    )
    weights = {"dense": weights_of(model.dense_arch), "over": weights_of(model.over_arch)}
    sparse, dense = config.optimizer.sparse, config.optimizer.dense
    rows = sparring_torch.Optimizer(model, sparse.name, lr=sparse.lr)
    layers = torch.optim.Adam(
        [*model.dense_arch.parameters(), *model.over_arch.parameters()], dense.lr
    )

    def logits(batch: Any) -> Any:
        ids = torch.from_numpy(np.concatenate([batch.ids[name].ids for name in names]))
        features = sparring_torch.KeyedJaggedTensor(names, ids, lengths=torch.ones_like(ids))
        return model(torch.from_numpy(batch.numbers), features).squeeze(1)

    losses = []
    for batch in islice(source.batches(0), max_steps):
        labels = torch.from_numpy(batch.labels)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits(batch), labels)
        layers.zero_grad()
        rows.zero_grad()
        loss.backward()
        layers.step()
        rows.step()
        losses.append(float(loss.detach()))

    def predicted(batch: Any) -> Any:
        with torch.no_grad():
            return logits(batch).sigmoid().numpy()

    metrics = source.evaluate(predicted, Ranks(container.collective, container.quiesce))
    container.close()
    return weights, losses, metrics


@pytest.mark.slow  # compiles the model
def test_losses_of_the_first_steps_equal_torch() -> None:
    config = load_config(
        ROOT / "configs/quickstart.yaml",
        ["data.samples=2048", "data.test_samples=512", "data.batch_size=256", "data.max_ids=2000"],
    )
    weights, losses, metrics = trained_in_torch(config, 8)
    run = example().train(config, max_steps=8, weights=weights)
    np.testing.assert_allclose(run.losses, losses, rtol=1e-3)
    assert losses[-1] < losses[0]
    assert abs(run.metrics["auc"] - metrics["auc"]) < 1e-3
    assert run.num_compilations <= 3


@pytest.mark.long
def test_the_quickstart_learns_as_well_as_in_torch() -> None:
    config = load_config(ROOT / "configs/quickstart.yaml")
    weights, losses, metrics = trained_in_torch(config, None)
    run = example().train(config, weights=weights)
    apart = np.abs(np.divide(run.losses, losses) - 1)
    assert apart[:50].max() < 1e-3
    # Rounding errors of float32 grow: weights that differ by 1e-7 end equally far apart.
    noise = np.random.default_rng(0)
    others = jax.tree.map(
        lambda w: w * (1 + 1e-7 * noise.standard_normal(w.shape)).astype(np.float32), weights
    )
    of_noise = np.abs(np.divide(example().train(config, weights=others).losses, run.losses) - 1)
    print(
        f"largest difference of a loss: {apart.max():.1e} to torch, {of_noise.max():.1e} by noise"
    )
    assert apart.max() < max(1e-3, 3 * of_noise.max())
    np.testing.assert_allclose(np.mean(run.losses), np.mean(losses), rtol=1e-3)
    assert abs(run.metrics["auc"] - metrics["auc"]) < 1e-3
    assert metrics["auc"] > 0.82
