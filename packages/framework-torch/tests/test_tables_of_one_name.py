"""Two modules with a table of one name: separate rows, shared rows on request, or an error."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparring_torch as st
from sparring import StepContainer, StorageChoice, TableConfig
from sparring.contracts import Collective, ShardingPlan, TableSharding
from sparring.errors import InvalidArgumentError
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_torch import torchrec

IDS = torch.arange(6)


def batch() -> Any:
    return st.KeyedJaggedTensor(["item"], IDS, lengths=torch.ones(6, dtype=torch.int64))


class Towers(nn.Module):
    """Two collections of TorchRec's names with the same table, and a target that separates them."""

    def __init__(self, kinds: Any = torchrec, **settings: Any) -> None:
        super().__init__()
        config = {
            "name": "items",
            "embedding_dim": 4,
            "feature_names": ["item"],
            "num_embeddings": 50,
        }
        self.query = kinds.EmbeddingBagCollection([kinds.EmbeddingBagConfig(**config)], **settings)
        self.answer = kinds.EmbeddingCollection([kinds.EmbeddingConfig(**config)])

    def forward(self, features: Any) -> Tensor:
        query, answer = self.query(features)["item"], self.answer(features)["item"].values()
        return ((query - 1) ** 2).sum() + ((answer + 1) ** 2).sum()


def embeddings(model: Towers) -> list[Tensor]:
    with torch.no_grad():
        return [model.query(batch())["item"], model.answer(batch())["item"].values()]


def trained(model: Any, optimizer: Any, steps: int = 60) -> list[float]:
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch()).backward()
        optimizer.step()
    inner: Any = getattr(model, "module", model)
    return [each.mean().item() for each in embeddings(inner)]


def test_collections_of_torchrec_have_separate_rows() -> None:
    model = Towers()
    optimizer = st.Optimizer(model, torch.optim.SGD, lr=0.1)
    assert trained(model, optimizer) == pytest.approx([1, -1], abs=1e-3)
    assert set(optimizer.container.tables) == {"query.items", "answer.items"}
    assert torch.equal(model.query.read_embeddings(IDS, "items"), embeddings(model)[0])
    assert model.query.embedding_bag_configs()[0].name == "items"


@pytest.mark.parametrize("order", ["optimizer after", "in backward", "planned"])
def test_wrapped_collections_have_separate_rows(order: str) -> None:
    model, plan = Towers(), None
    if order == "in backward":
        torchrec.apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
    if order == "planned":
        constraints = {"items": torchrec.ParameterConstraints(sharding_types=["row_wise"])}
        planner = torchrec.EmbeddingShardingPlanner(
            torchrec.Topology(world_size=1), constraints=constraints
        )
        plan = planner.plan(model)
        assert [list(each) for each in plan.plan.values()] == [["query.items"], ["answer.items"]]
    wrapped = torchrec.DistributedModelParallel(model, plan=plan)
    optimizer: Any = (
        torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
        if order == "in backward"
        else st.Optimizer(wrapped, torch.optim.SGD, lr=0.1)
    )
    assert trained(wrapped, optimizer) == pytest.approx([1, -1], abs=1e-3)
    wrapped.close()


def test_a_single_table_keeps_its_name() -> None:
    model = Towers()
    optimizer = st.Optimizer(model.query, torch.optim.SGD, lr=0.1)
    assert list(optimizer.container.tables) == ["items"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_separate_tables_are_saved_and_loaded(when: str, tmp_path: Path) -> None:
    model = Towers()
    optimizer = st.Optimizer(model, torch.optim.Adagrad, lr=0.1)
    trained(model, optimizer, 3)
    state, copied = copy.deepcopy(model.state_dict()), copy.deepcopy(model)
    optimizer.container.save(str(tmp_path / "snapshot"))
    loaded = Towers()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if when == "before":
            loaded.load_state_dict(state)
        again = st.Optimizer(loaded, torch.optim.Adagrad, lr=0.1)
        if when == "after":
            loaded.load_state_dict(state)
    fresh = Towers()
    st.Optimizer(fresh, torch.optim.Adagrad, lr=0.1).container.load(str(tmp_path / "snapshot"))
    for other in (loaded, copied, fresh):
        for mine, theirs in zip(embeddings(model), embeddings(other), strict=True):
            assert torch.equal(mine, theirs)
    assert trained(model, optimizer, 2) == trained(loaded, again, 2)


def test_a_table_of_both_is_loaded_into_both(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = Towers(st, shared=True)  # as both collections were before
    optimizer = st.Optimizer(old, torch.optim.Adagrad, lr=0.1)
    trained(old, optimizer, 3)
    assert torch.equal(*embeddings(old))
    optimizer.container.save(str(tmp_path / "snapshot"))
    by_state, by_snapshot = Towers(), Towers()
    first = st.Optimizer(by_state, torch.optim.Adagrad, lr=0.1)
    with pytest.warns(UserWarning, match=r"table 'query\.items' are those of 'items'"):
        by_state.load_state_dict(old.state_dict())
    container = st.Optimizer(by_snapshot, torch.optim.Adagrad, lr=0.1).container
    result = container.load(str(tmp_path / "snapshot"))
    assert result.rows == {"query.items": 6, "answer.items": 6}
    assert "no table 'answer.items'; its rows are read from the table" in caplog.text
    for each in (by_state, by_snapshot):
        for mine in embeddings(each):
            assert torch.equal(mine, embeddings(old)[0])
    assert container.counters.steps == first.container.counters.steps == 3


@pytest.mark.parametrize("kind", [st.Embedding, st.EmbeddingBag])
def test_a_second_module_with_the_name_is_rejected_unless_shared(kind: Any) -> None:
    def pair(**settings: Any) -> nn.ModuleList:
        return nn.ModuleList([st.Embedding(4, name="items"), kind(4, name="items", **settings)])

    with pytest.raises(InvalidArgumentError, match=r"'items': found two modules .* shared=True"):
        st.Optimizer(pair(), torch.optim.SGD, lr=0.1)
    with pytest.raises(InvalidArgumentError, match="found two modules"):
        st.DistributedModelParallel(pair())
    with pytest.raises(InvalidArgumentError, match="found two modules"):
        st.Optimizer(Towers(st), torch.optim.SGD, lr=0.1)
    modules = pair(shared=True)
    optimizer = st.Optimizer(modules, torch.optim.SGD, lr=0.1)
    modules[0](IDS[:1]).sum().backward()
    optimizer.step()
    assert [each.num_rows() for each in modules] == [{"items": 1}] * 2
    copied = copy.deepcopy(modules)
    assert torch.equal(copied[1].read_embeddings(IDS), modules[0].read_embeddings(IDS))


def test_a_module_in_the_same_container_replaces_one_that_is_gone() -> None:
    with StepContainer() as container:
        first = st.Embedding(4, name="items", container=container)
        with pytest.raises(InvalidArgumentError, match="found two modules"):
            st.Embedding(4, name="items", container=container)
        first.loop = [first]  # type: ignore[assignment]
        del first
        st.Embedding(4, name="items", container=container)


@pytest.mark.parametrize("kind", ["row_wise", "column_wise"])
def test_a_former_name_is_used_in_every_sharding(kind: str, tmp_path: Path) -> None:
    with StepContainer() as container:
        container.declare(TableConfig("items", 4), StorageChoice("memory"))
        container.assign("items", IDS.numpy(), torch.full((6, 4), 7.0).numpy())
        container.save(str(tmp_path / "saved"))
    rendezvous, columns = ThreadRendezvous(2), 2 if kind == "column_wise" else None
    plan = ShardingPlan({"query.items": TableSharding(kind, columns=columns)})

    def body(collective: Collective) -> Any:
        with StepContainer(collective=collective, rendezvous=rendezvous, plan=plan) as container:
            table = TableConfig("query.items", 4)
            container.declare(table, StorageChoice("memory"), former_name="items")
            container.load(str(tmp_path / "saved"))
            return container.lookup_all([("query.items", IDS.numpy())])[0].rows

    for rows in run_ranks(2, body):
        assert (rows == 7).all()


def test_a_former_name_is_used_only_if_the_name_is_missing(tmp_path: Path) -> None:
    with StepContainer() as container:
        for name in ("a", "b"):
            container.declare(TableConfig(name, 2), StorageChoice("memory"))
            container.assign(name, IDS[:2].numpy(), torch.full((2, 2), ord(name)).float().numpy())
        container.save(str(tmp_path / "both"))
    with StepContainer() as container:
        container.declare(TableConfig("a", 2), StorageChoice("memory"), former_name="b")
        container.load(str(tmp_path / "both"), tables=["a"])
        assert container.lookup_all([("a", IDS[:1].numpy())])[0].rows[0, 0] == ord("a")
    with StepContainer() as container:
        container.declare(TableConfig("c", 2), StorageChoice("memory"), former_name="b")
        container.load(str(tmp_path / "both"), tables=["c"])
        assert container.lookup_all([("c", IDS[:1].numpy())])[0].rows[0, 0] == ord("b")
