"""Ids as nested tensors, lists and arrays; and examples with bags of ids, collated to batches."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from sparring.errors import InvalidArgumentError
from sparring_torch import Embedding, EmbeddingBag, Optimizer, TrainPipeline, collate_jagged

LISTS = [[1, 2], [], [3, 1, 1]]


def nested(layout: Any, lists: Any = LISTS, dtype: Any = torch.int64) -> torch.Tensor:
    return torch.nested.nested_tensor(
        [torch.tensor(each, dtype=dtype) for each in lists], layout=layout
    )


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_embeddings_of_nested_ids_are_nested(layout: Any) -> None:
    module = Embedding(2, storage="memory")
    optimizer = Optimizer(module, torch.optim.SGD, lr=1.0)
    ids = nested(layout)
    out = module(ids)
    assert out.is_nested
    assert out.layout is layout
    for part, each in zip(out.unbind(), LISTS, strict=True):
        torch.testing.assert_close(part, module(torch.tensor(each, dtype=torch.int64)))
    before = module(torch.tensor([1, 2, 3]))
    sum(part.sum() for part in out.unbind()).backward()
    optimizer.step()
    optimizer.zero_grad()
    moved = before - module(torch.tensor([1, 2, 3]))
    torch.testing.assert_close(moved, torch.tensor([[3.0] * 2, [1.0] * 2, [1.0] * 2]))
    if layout is torch.jagged:
        assert (out * ids.unsqueeze(-1)).is_nested  # of the same ragged shape


def test_lists_and_arrays_of_ids_are_accepted() -> None:
    module = Embedding(2, storage="memory")
    expected = module(torch.tensor([[1, 2], [3, 4]]))
    assert torch.equal(module([[1, 2], [3, 4]]), expected)
    assert torch.equal(module(np.array([[1, 2], [3, 4]], np.int32)), expected)
    with pytest.raises(InvalidArgumentError, match=r"torch\.nested\.nested_tensor\(lists"):
        module(LISTS)
    with pytest.raises(InvalidArgumentError, match="found set"):
        module({1, 2})


@pytest.mark.parametrize("include_last_offset", [False, True])
def test_bags_of_nested_ids_and_of_lists(include_last_offset: bool) -> None:
    bag = EmbeddingBag(2, mode="sum", storage="memory", include_last_offset=include_last_offset)
    offsets = torch.tensor([0, 2, 2, 5] if include_last_offset else [0, 2, 2])
    flat = torch.tensor([1, 2, 3, 1, 1])
    weights = [[0.5, 1.0], [], [2.0, 1.0, 3.0]]
    given = torch.tensor([0.5, 1.0, 2.0, 1.0, 3.0])
    expected, weighted = bag(flat, offsets), bag(flat, offsets, given)
    for ids in (LISTS, nested(torch.jagged), nested(torch.strided)):
        torch.testing.assert_close(bag(ids), expected)
    torch.testing.assert_close(bag(LISTS, None, weights), weighted)
    jagged = nested(torch.jagged, weights, torch.float32)
    torch.testing.assert_close(bag(nested(torch.jagged), None, jagged), weighted)
    assert torch.equal(bag([[1, 2], [3, 4]]), bag(torch.tensor([[1, 2], [3, 4]])))
    assert torch.equal(bag([1, 2, 3], [0, 3] if include_last_offset else [0]), bag([[1, 2, 3]]))
    with pytest.raises(InvalidArgumentError, match="an input of 3 bags; omit offsets"):
        bag(nested(torch.jagged), offsets)
    with pytest.raises(InvalidArgumentError, match=r"\[2, 0, 3\], found none"):
        bag(nested(torch.jagged), None, given)


def test_a_pipeline_prefetches_nested_ids() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = EmbeddingBag(2, storage="memory")
            self.item = Embedding(2, storage="memory")

        def forward(self, batch: Any) -> Any:
            loss = self.bag(batch).sum() + self.item(batch).values().sum()
            return loss, loss.detach()

    model = Model()
    pipeline = TrainPipeline(model, Optimizer(model, torch.optim.SGD, lr=1.0))
    batches = iter([nested(torch.jagged)] * 3)
    for _ in range(3):
        pipeline.progress(batches)
    assert pipeline.pipelined


def test_a_loader_collates_bags() -> None:
    examples = [
        {"user": 7, "items": [1, 2], "label": 1.0},
        {"user": 8, "items": np.array([], np.int64), "label": 0.0},
        {"user": torch.tensor(9), "items": (5,), "label": 1.0},
    ]
    collate = partial(collate_jagged, features=["user", "items"])
    loader: Any = DataLoader(examples, batch_size=2, collate_fn=collate)  # type: ignore[arg-type]
    (ids, others), (last, _) = loader
    assert ids.keys() == ["user", "items"]
    assert ids.stride() == 2
    assert ids.values().tolist() == [7, 8, 1, 2]
    assert ids.lengths().tolist() == [1, 1, 2, 0]
    assert others["label"].tolist() == [1.0, 0.0]
    assert last.values().tolist() == [9, 5]
    with pytest.raises(
        InvalidArgumentError, match=r"example 0 has no feature 'place', found \['user'"
    ):
        collate_jagged(examples, ["place"])
    assert collate_jagged([{"user": 1}], ["user"])[1] == {}


@pytest.mark.parametrize("ids", [["a", "b"], [["a"], ["b", "c"]], np.array(["a"])])
def test_strings_are_rejected_with_the_hash_that_services_use(ids: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"found strings, .* sparring\.hash_strings\("):
        Embedding(2, name="user")(ids)
