"""`eval()` of every module: rows still train, as in torch, and validation changes and stores nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparring_torch import (
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    Optimizer,
)
from sparring_torch.torchrec import apply_optimizer_in_backward

Call = Callable[[Any, Tensor], Tensor]


def features(ids: Tensor) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(["f"], ids, lengths=torch.ones(len(ids), dtype=torch.int64))


GIVEN: Any = {"name": "t", "embedding_dim": 4, "feature_names": ["f"]}
MODULES: dict[str, tuple[Callable[[], nn.Module], Call]] = {
    "Embedding": (lambda: Embedding(4, name="t"), lambda module, ids: module(ids)),
    "EmbeddingBag": (lambda: EmbeddingBag(4, name="t"), lambda module, ids: module(ids[:, None])),
    "EmbeddingBagCollection": (
        lambda: EmbeddingBagCollection([EmbeddingBagConfig(**GIVEN)]),
        lambda module, ids: module(features(ids)).values(),
    ),
    "EmbeddingCollection": (
        lambda: EmbeddingCollection([EmbeddingConfig(**GIVEN)]),
        lambda module, ids: module(features(ids))["f"].values(),
    ),
}
IDS = torch.arange(5)


@pytest.mark.parametrize("name", MODULES)
def test_validation_with_gradients_enabled_changes_and_keeps_nothing(name: str) -> None:
    make, call = MODULES[name]
    module: Any = make()
    optimizer = Optimizer(module, torch.optim.Adam, lr=0.1)
    call(module, IDS).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    before = module.read_embeddings(IDS)
    module.eval()
    for begin in range(0, 1_000, 100):
        loss = call(module, torch.arange(begin, begin + 100)).square().mean().item()
        assert loss > 0
        assert optimizer.container.resources.num_batch_inputs == 0
    optimizer.step()
    assert torch.equal(module.read_embeddings(IDS), before)
    assert module.num_rows() == {"t": 5}


@pytest.mark.parametrize("is_in_backward", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_rows_train_in_evaluation_mode(name: str, is_in_backward: bool) -> None:
    make, call = MODULES[name]
    module: Any = make()
    optimizer = None
    if is_in_backward:
        apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 1.0})
    else:
        optimizer = Optimizer(module, torch.optim.SGD, lr=1.0)
    before = module.read_embeddings(IDS)
    call(module.eval(), IDS).sum().backward()
    if optimizer is not None:
        optimizer.step()
    torch.testing.assert_close(module.read_embeddings(IDS), before - 1)
