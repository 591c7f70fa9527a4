"""The models of `sparring train`: their tables are what the configuration says."""

from __future__ import annotations

import torch

from sparring.adapter import StepContainer
from sparring.contracts import TableConfig
from sparring_torch.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.models import Dlrm, MatrixFactorization


def test_models_keep_the_settings_of_their_tables() -> None:
    tables = [
        TableConfig(name, 4, seed=3, placement="replicated", initializer="zeros")
        for name in ("user", "item")
    ]
    with StepContainer() as container:
        MatrixFactorization(*tables, mean=0.0, storage="memory", container=container)
        assert list(container.tables.values()) == tables
    with StepContainer() as container:
        Dlrm(
            tables,
            num_integers=2,
            bottom_mlp=[4],
            top_mlp=[4],
            storage="memory",
            container=container,
        )
        assert list(container.tables.values()) == tables


def test_dlrm_reads_all_dot_products_of_pairs() -> None:
    tables = [
        TableConfig(name, 2, initializer={"kind": "constant", "value": 1.0})
        for name in ("one", "two")
    ]
    with StepContainer() as container:
        model = Dlrm(
            tables, num_integers=1, bottom_mlp=[], top_mlp=[], storage="memory", container=container
        )
        seen: list[torch.Tensor] = []
        model.top.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
        ids = KeyedJaggedTensor(
            ["one", "two"], torch.tensor([5, 6]), lengths=torch.ones(2, dtype=torch.int64)
        )
        model.eval()
        bottom = model.bottom(torch.ones(1, 1))[0].detach()
        model(torch.ones(1, 1), ids)
    both = bottom.sum()
    assert torch.allclose(seen[0][0], torch.stack([*bottom, both, both, torch.tensor(2.0)]))
