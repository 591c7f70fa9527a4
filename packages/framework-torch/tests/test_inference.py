"""Inference reads tables in place: no row is copied, and nothing is registered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sparring import StepContainer
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.modules.embedding import Embedding
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.embedding_collection import EmbeddingCollection
from sparring_torch.modules.table_configs import EmbeddingBagConfig, EmbeddingConfig
from sparring_torch.optim.optimizer import Optimizer

IDS = torch.tensor([[3, 3], [5, 8], [8, -1]])
KJT = KeyedJaggedTensor(
    keys=["a", "b"], values=IDS.reshape(-1), lengths=torch.tensor([2, 1, 0, 0, 1, 2])
)


def bags() -> EmbeddingBagCollection:
    return EmbeddingBagCollection(
        [
            EmbeddingBagConfig(name="a", embedding_dim=3),
            EmbeddingBagConfig(name="b", embedding_dim=2, data_type=torch.bfloat16),
        ]
    )


def sequences() -> EmbeddingCollection:
    configs = [EmbeddingConfig(name=name, embedding_dim=3) for name in ("a", "b")]
    return EmbeddingCollection(configs)


MODULES: list[Any] = [
    pytest.param(lambda: Embedding(3, name="a"), lambda m: m(IDS), id="Embedding"),
    pytest.param(lambda: EmbeddingBag(3, name="a"), lambda m: m(IDS), id="EmbeddingBag"),
    pytest.param(
        lambda: EmbeddingBag(3, name="a", mode="sum"),
        lambda m: m(IDS, per_sample_weights=torch.full((3, 2), 0.5, requires_grad=True)),
        id="EmbeddingBag with weights that require a gradient",
    ),
    pytest.param(bags, lambda m: m(KJT).values(), id="EmbeddingBagCollection"),
    pytest.param(
        sequences,
        lambda m: torch.cat([each.values() for each in m(KJT).values()]),
        id="EmbeddingCollection",
    ),
]


@pytest.mark.parametrize("optimizer_of", ["adam", torch.optim.Adam])
@pytest.mark.parametrize(("make", "look_up"), MODULES)
def test_inference_creates_no_array_of_distinct_rows(
    make: Callable[[], Any],
    look_up: Callable[[Any], Tensor],
    optimizer_of: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = make()
    optimizer = Optimizer(module, optimizer_of, lr=0.1)
    look_up(module).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    trained = look_up(module).detach().clone()
    num_rows = module.num_rows()
    resources = optimizer.container.resources
    registered = resources.num_batch_inputs

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("rows were looked up into an array")

    monkeypatch.setattr(StepContainer, "lookup_all", refuse)
    monkeypatch.setattr(StepContainer, "lookup", refuse)
    with torch.no_grad():
        found = look_up(module)
    assert not found.requires_grad
    assert torch.equal(found, trained)
    with torch.inference_mode():
        assert torch.equal(look_up(module), trained)
    assert module.num_rows() == num_rows
    assert resources.num_batch_inputs <= registered
