"""Situations of public bug reports that no other test has; `tests/museum.py` lists all of them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sparring_torch as st
from sparring_testing.processes.table_steps import read_rows
from sparring_torch import torchrec

KEYS = torch.tensor([-(2**63), -1, 0, 1, 2**31 + 1, 2**53 + 1, 2**63 - 1])


def batch_of(lengths: list[list[int]], generator: torch.Generator) -> tuple[Any, list[Tensor]]:
    """Returns a batch of features "few" and "many", whose ids are places of `KEYS`, and the places."""
    counts = torch.tensor(lengths)
    places = [torch.randint(len(KEYS), (int(each.sum()),), generator=generator) for each in counts]
    ids = KEYS[torch.cat(places)]
    return st.KeyedJaggedTensor(["few", "many"], ids, lengths=counts.reshape(-1)), places


@pytest.mark.parametrize("pooling", ["SUM", "MEAN", "NONE"])
def test_features_of_one_table_may_have_very_different_lengths(pooling: str) -> None:
    config = {"name": "items", "embedding_dim": 5, "feature_names": ["few", "many"]}
    ours: Any = (
        st.EmbeddingCollection([st.EmbeddingConfig(**config)])
        if pooling == "NONE"
        else st.EmbeddingBagCollection(
            [st.EmbeddingBagConfig(pooling=st.PoolingType[pooling], **config)]
        )
    )
    dense = nn.Parameter(ours.read_embeddings(KEYS).double())
    optimizer = st.Optimizer(ours, torch.optim.Adagrad, lr=0.1)
    theirs = torch.optim.Adagrad([dense], lr=0.1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        batch, places = batch_of([[0, 3, 1, 0], [150, 0, 101, 200]], generator)
        found = ours(batch)
        losses = []
        for name, mine in zip(("few", "many"), places, strict=True):
            rows = found[name] if pooling != "NONE" else found[name].values()
            expected = dense[mine]
            if pooling != "NONE":
                parts = expected.split(batch[name].lengths().tolist())
                combine: Any = Tensor.sum if pooling == "SUM" else Tensor.mean
                expected = torch.stack([combine(p, 0) if len(p) else p.sum(0) for p in parts])
            torch.testing.assert_close(rows.double(), expected, rtol=1e-5, atol=1e-5)
            losses.append((rows.square().mean(), expected.square().mean()))
        for each, loss in ((optimizer, 0), (theirs, 1)):
            each.zero_grad()
            sum(one[loss] for one in losses).backward()  # type: ignore[union-attr]
            each.step()
    torch.testing.assert_close(ours.read_embeddings(KEYS).double(), dense, rtol=1e-4, atol=1e-5)


def test_dims_that_are_no_powers_of_two_have_separate_learning_rates() -> None:
    dims, ids = {1: 0.5, 7: 0.1, 16: 0.01, 33: 0.2}, torch.tensor([3, 3, 8])
    ours = nn.ModuleList(st.Embedding(dim, name=f"dim_{dim}") for dim in dims)
    dense = [nn.Parameter(each.read_embeddings(ids)) for each in ours]  # type: ignore[operator]
    rates = {f"dim_{dim}": {"lr": rate} for dim, rate in dims.items()}
    optimizer = st.Optimizer(ours, torch.optim.Adagrad, lr=1.0, tables=rates)
    groups = [{"params": [one], "lr": rate} for one, rate in zip(dense, dims.values(), strict=True)]
    theirs = torch.optim.Adagrad(groups, lr=1.0)
    for _ in range(5):
        optimizer.zero_grad()
        theirs.zero_grad()
        sum(each(ids).square().sum() for each in ours).backward()  # type: ignore[union-attr]
        sum((each[[0, 0, 2]] ** 2).sum() for each in dense).backward()  # type: ignore[union-attr]
        optimizer.step()
        theirs.step()
    for mine, other in zip(ours, dense, strict=True):
        torch.testing.assert_close(mine.read_embeddings(ids)[[0, 2]], other[[0, 2]])  # type: ignore[operator]


def test_states_of_tables_with_different_dims_stay_apart_in_a_stack(tmp_path: Path) -> None:
    tiers = [
        {"backend": "memory", "options": {"capacity": 4, "policy": "lru"}},
        {"backend": "memory"},
    ]
    stack = {"backend": "tiered", "tiers": tiers}
    ids = [torch.arange(6), torch.arange(3, 12), torch.arange(6)]

    def trained(storage: Any, through: str | None) -> list[dict[int, bytes]]:
        def made() -> tuple[Any, Any]:
            model = nn.ModuleList(
                st.Embedding(dim, name=f"dim_{dim}", storage=storage) for dim in (12, 5)
            )
            return model, st.Optimizer(model, torch.optim.Adam, lr=0.1)

        model, optimizer = made()
        for step, each in enumerate(ids):
            if step == 2 and through is not None:
                optimizer.container.save(through)
                model, optimizer = made()
                optimizer.container.load(through)
            optimizer.zero_grad()
            sum((table(each) ** 2).sum() for table in model).backward()
            optimizer.step()
        return [read_rows(optimizer.container, f"dim_{dim}") for dim in (12, 5)]

    assert trained(stack, str(tmp_path / "saved")) == trained("memory", None)


def test_weights_of_frozen_rows_have_gradients() -> None:
    rows = torch.arange(12.0).view(6, 2)
    bag = st.EmbeddingBag.from_pretrained(rows, mode="sum")
    weights = torch.ones(4, requires_grad=True)
    ids, offsets = torch.tensor([0, 5, 2, 2]), torch.tensor([0, 3])
    bag(ids, offsets, per_sample_weights=weights).square().sum().backward()
    expected = torch.ones(4, requires_grad=True)
    nn.functional.embedding_bag(
        ids, rows, offsets, mode="sum", per_sample_weights=expected
    ).square().sum().backward()
    torch.testing.assert_close(weights.grad, expected.grad)
    assert torch.equal(bag.read_embeddings(range(6)), rows)


@pytest.mark.slow
def test_compiled_lookups_of_negative_ids_and_padding_equal_eager_ones() -> None:
    module = st.Embedding(4, padding_idx=-1)
    ids = torch.tensor([-1, -2, 5, -(2**63)])
    compiled = torch.compile(module, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(ids), module(ids))
        assert not module(ids)[0].any()


@pytest.mark.slow
@pytest.mark.alone
def test_more_than_two_billion_elements_are_padded() -> None:
    num_bags, dim, length = 3, 65_536, 12_000
    rows = torch.arange(1, num_bags + 1, dtype=torch.uint8)[:, None].expand(-1, dim).contiguous()
    jagged = st.JaggedTensor(rows, lengths=torch.ones(num_bags, dtype=torch.int64))
    padded = jagged.to_padded_dense(length)
    assert padded.numel() > 2**31
    assert padded[:, 0].equal(rows)
    assert not padded[-1, -1].any()


@pytest.mark.slow
def test_an_asynchronous_checkpoint_has_the_rows_of_its_call(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as checkpoints

    model = nn.Sequential(st.Embedding(4, name="items"), nn.Linear(4, 1))
    rows = st.Optimizer(model, torch.optim.Adam, lr=0.1)
    dense = torch.optim.Adam(model[1].parameters(), lr=0.1)

    def train() -> None:
        for each in (rows, dense):
            each.zero_grad()
        model(torch.arange(5)).square().sum().backward()
        for each in (rows, dense):
            each.step()

    train()
    expected = model[0].read_embeddings(range(5)), model[1].weight.detach().clone()  # type: ignore[operator]
    saving: Any = checkpoints.async_save(
        {"model": model.state_dict()}, checkpoint_id=str(tmp_path), no_dist=True
    )
    train()
    saving.result()
    other = nn.Sequential(st.Embedding(4, name="items"), nn.Linear(4, 1))
    state = {"model": other.state_dict()}
    checkpoints.load(state, checkpoint_id=str(tmp_path), no_dist=True)
    other.load_state_dict(state["model"])
    assert torch.equal(other[0].read_embeddings(range(5)), expected[0])  # type: ignore[operator]
    assert torch.equal(other[1].weight, expected[1])


@pytest.mark.parametrize("tables", [1, 300])
def test_tiny_tables_are_planned(tables: int) -> None:
    configs = [
        torchrec.EmbeddingBagConfig(
            name=f"t{n}", embedding_dim=1, num_embeddings=1, feature_names=["f"]
        )
        for n in range(tables)
    ]
    planner = torchrec.EmbeddingShardingPlanner(torchrec.Topology(world_size=4), debug=False)
    plan = planner.plan(torchrec.EmbeddingBagCollection(configs))
    assert len(next(iter(plan.plan.values()))) == tables


@pytest.mark.parametrize("storage", ["hkv", "memory"])
def test_rows_expire_exactly_while_another_thread_reads(storage: str) -> None:
    module = st.Embedding(8, initializer="zeros", expire={"after_steps": 3}, storage=storage)
    optimizer = st.Optimizer(module, torch.optim.SGD, lr=1.0)
    ended, mixed = threading.Event(), []

    def read() -> None:
        while not ended.is_set():
            found = module.read_embeddings(range(30))
            if not (found == found[:, :1]).all():
                mixed.append(found)

    reader = threading.Thread(target=read)
    reader.start()
    generator = np.random.default_rng(0)
    counts, last = dict.fromkeys(range(30), 0), dict.fromkeys(range(30), 0)
    for step in range(1, 60):
        ids = generator.choice(30, 4, replace=False).tolist()
        optimizer.zero_grad()
        (-module(torch.tensor(ids)).sum()).backward()
        optimizer.step()
        for each in range(30):
            if each in ids:
                expired = step - last[each] > 3
                counts[each], last[each] = (1 if expired else counts[each] + 1), step
            elif step - last[each] >= 3:
                counts[each] = 0
    ended.set()
    reader.join()
    assert not mixed
    found = module.read_embeddings(range(30))[:, 0].tolist()
    assert {each: round(found[each]) for each in counts if counts[each]} == {
        each: count for each, count in counts.items() if count
    }
