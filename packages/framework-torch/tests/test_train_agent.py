"""Autograd and the step: what is registered, accumulated, dropped and applied."""

from __future__ import annotations

import copy
import gc

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparring import StepContainer
from sparring.errors import InvalidArgumentError, NonFiniteGradientError, UnsupportedError
from sparring_torch.lookup.row_gradients import dense_parameters
from sparring_torch.modules.embedding import Embedding
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.table_configs import EmbeddingBagConfig
from sparring_torch.optim.optimizer import Optimizer

DIM = 2
IDS = torch.tensor([3, 4, 3])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = Embedding(DIM, name="users", storage="memory")
        self.items = EmbeddingBag(DIM, name="items", mode="sum", storage="memory")
        self.dense = nn.Linear(DIM, 1)

    def forward(self, ids: Tensor) -> Tensor:
        both = self.users(ids) * self.items(ids[:, None])
        return self.dense(both).sum()  # type: ignore[no-any-return]


def trained() -> tuple[Embedding, Optimizer]:
    embedding = Embedding(DIM, name="table", storage="memory")
    return embedding, Optimizer(embedding, torch.optim.SGD, lr=1.0)


@pytest.mark.parametrize("how", ["no_grad", "inference_mode"])
def test_evaluation_registers_nothing_and_inserts_nothing(how: str) -> None:
    embedding, optimizer = trained()
    with getattr(torch, how)():
        out = embedding(IDS)
    assert not out.requires_grad
    assert optimizer.container.resources.num_batch_inputs == 0
    optimizer.step()
    optimizer.zero_grad()
    assert embedding.num_rows() == {"table": 0}


def test_a_module_without_an_optimizer_is_only_read_in_evaluation_mode() -> None:
    embedding = Embedding(DIM, name="table", storage="memory").eval()
    for _ in range(2):
        assert not embedding(IDS[:2]).requires_grad


@pytest.mark.parametrize("update", ["auto", "shadow"])
def test_a_step_without_zero_grad_after_the_last_is_rejected(update: str) -> None:
    embedding = Embedding(DIM, name="table", storage="memory")
    optimizer = Optimizer(embedding, torch.optim.SGD, lr=1.0, update=update)
    before = embedding.read_embeddings(IDS[:2])
    for _ in range(2):
        optimizer.step()  # without a gradient, it changes nothing
    for _ in range(2):  # gradients of several micro-batches add up
        embedding(IDS[:2]).sum().backward()
    optimizer.step()
    with pytest.raises(InvalidArgumentError, match="found no gradient after the last step"):
        optimizer.step()
    embedding(IDS[:2]).sum().backward()
    with pytest.raises(InvalidArgumentError, match=r"no zero_grad\(\) in between"):
        optimizer.step()
    torch.testing.assert_close(embedding.read_embeddings(IDS[:2]), before - 2)
    optimizer.zero_grad()
    dense = torch.optim.Adam(embedding.parameters())

    def set_none() -> None:
        for parameter in embedding.parameters():
            parameter.grad = None

    for clear in (embedding.zero_grad, optimizer.zero_grad, dense.zero_grad, set_none):
        clear()
        embedding(IDS[:2]).sum().backward()
        optimizer.step()
    torch.testing.assert_close(embedding.read_embeddings(IDS[:2]), before - 6)
    # The optimizer of pending gradients, or the model, drops them.
    optimizer.zero_grad()
    embedding(IDS[:2]).sum().backward()
    dense.zero_grad()
    optimizer.step()
    torch.testing.assert_close(embedding.read_embeddings(IDS[:2]), before - 7)


def test_a_penalty_over_all_parameters_is_rejected() -> None:
    embedding, optimizer = trained()
    model = torch.nn.Sequential(embedding, torch.nn.Linear(DIM, 1))
    copied = copy.deepcopy(model)
    Optimizer(copied, torch.optim.SGD, lr=1.0)
    for each in (model, copied):
        flat = torch.cat([parameter.reshape(-1) for parameter in each.parameters()])
        weights = [p for p in each.parameters() if p.dim() > 1]
        penalties = (
            flat.norm(),
            *(sum(p.square().sum() for p in some) for some in (each.parameters(), weights)),
        )
        for penalty in penalties:
            with pytest.raises(UnsupportedError, match=r"'table.*dense_parameters"):
                (each(IDS).sum() + penalty).backward()
    optimizer.zero_grad()
    penalty = sum(p.square().sum() for _, p in dense_parameters(model))
    (model(IDS).sum() + penalty).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.AdamW(model.parameters(), weight_decay=0.1).step()
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    optimizer.step()
    assert embedding.num_rows() == {"table": 2}


def test_a_forward_pass_without_a_step_inserts_nothing() -> None:
    embedding, optimizer = trained()
    out = embedding(IDS)
    assert optimizer.container.resources.num_batch_inputs == 1
    optimizer.step()
    optimizer.zero_grad()
    assert embedding.num_rows() == {"table": 0}
    del out


def test_a_dropped_graph_also_drops_its_batch_input() -> None:
    embedding, optimizer = trained()
    out = embedding(IDS)
    del out
    gc.collect()
    assert optimizer.container.resources.num_batch_inputs == 0


def test_several_backward_passes_are_added_in_one_step() -> None:
    embedding, optimizer = trained()
    before = embedding(IDS).detach().clone()
    outs = [embedding(IDS) for _ in range(2)]
    for out in outs:
        out.sum().backward()
    embedding(IDS[:1]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    moved = before - embedding(IDS)
    torch.testing.assert_close(moved, torch.tensor([[5.0], [2.0], [5.0]]).expand(3, DIM))


def test_backward_twice_through_one_graph_counts_twice() -> None:
    embedding, optimizer = trained()
    out = embedding(IDS)
    out.sum().backward(retain_graph=True)
    out.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.testing.assert_close(embedding(IDS), out - torch.tensor([[4.0], [2.0], [4.0]]))


def test_zero_grad_drops_accumulated_gradients() -> None:
    embedding, optimizer = trained()
    embedding(IDS).sum().backward()
    optimizer.zero_grad()
    optimizer.step()
    assert embedding.num_rows() == {"table": 0}


def test_zero_grad_between_forward_and_backward_keeps_the_graph() -> None:
    embedding, optimizer = trained()
    out = embedding(IDS)
    optimizer.zero_grad()
    out.sum().backward()
    optimizer.step()
    assert embedding.num_rows() == {"table": 2}


def test_step_consumes_gradients() -> None:
    embedding, optimizer = trained()
    embedding(IDS).sum().backward()
    optimizer.step()
    once = embedding(IDS)
    optimizer.zero_grad()
    optimizer.step()
    torch.testing.assert_close(embedding(IDS), once)


def test_backward_after_the_step_is_rejected() -> None:
    embedding, optimizer = trained()
    out = embedding(IDS)
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(InvalidArgumentError, match="run the forward pass again"):
        out.sum().backward()


def test_rows_and_dense_parameters_train_together() -> None:
    torch.manual_seed(0)
    model = Model()
    sparse = Optimizer(model, torch.optim.SGD, lr=0.1)
    dense = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        sparse.zero_grad()
        dense.zero_grad()
        loss = (model(IDS) - 1) ** 2
        loss.backward()
        sparse.step()
        dense.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert model.users.num_rows() == {"users": 2}
    assert model.users.agent.container is model.items.agent.container is sparse.container
    assert sorted(sparse.container.tables) == ["items", "users"]


def test_a_forward_pass_before_the_optimizer_is_allowed() -> None:
    model = Model()
    before = model.users(IDS).detach().clone()
    optimizer = Optimizer(model, torch.optim.SGD, lr=0.1)
    assert model.users.agent.container is model.items.agent.container
    torch.testing.assert_close(model.users(IDS), before)
    model(IDS).backward()
    optimizer.step()
    optimizer.zero_grad()
    assert model.users.num_rows() == {"users": 2}


def test_modules_of_one_container_share_a_table_of_one_name() -> None:
    with StepContainer() as container:
        one, other = (
            Embedding(DIM, name="table", storage="memory", container=container, shared=shared)
            for shared in (False, True)
        )
        optimizer = Optimizer([one, other], torch.optim.SGD, lr=1.0)
        one(IDS).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.testing.assert_close(one(IDS), other(IDS))
        assert other.num_rows() == {"table": 2}


def test_another_optimizer_takes_over_if_rows_have_its_state() -> None:
    embedding = Embedding(DIM, storage="memory")
    Optimizer(embedding, torch.optim.SGD, lr=1.0)
    first = Optimizer(embedding, torch.optim.Adagrad, lr=1.0)
    embedding(IDS).sum().backward()
    first.step()
    first.zero_grad()
    Optimizer(embedding, "adagrad", lr=1.0)
    for other in (torch.optim.RMSprop, torch.optim.Adam, "rowwise_adagrad"):
        with pytest.raises(InvalidArgumentError, match=r"state of Adagrad.*drop_state"):
            Optimizer(embedding, other, lr=1.0)
    first.container.drop_state("embedding")
    Optimizer(embedding, torch.optim.Adam, lr=1.0)
    assert embedding.num_rows() == {"embedding": 2}


def test_a_module_cannot_leave_the_container_of_its_rows() -> None:
    one, other = trained()[0], trained()[0]
    for embedding in (one, other):
        embedding(IDS).sum().backward()
        Optimizer(embedding, torch.optim.SGD, lr=1.0).step()
    with pytest.raises(InvalidArgumentError, match="in 2 containers"):
        Optimizer([one, other], torch.optim.SGD, lr=1.0)


def test_gradients_of_a_table_without_the_optimizer_are_rejected() -> None:
    with StepContainer() as container:
        one = Embedding(DIM, name="one", storage="memory", container=container)
        other = Embedding(DIM, name="other", storage="memory", container=container)
        optimizer = Optimizer(one, torch.optim.SGD, lr=1.0)
        (one(IDS).sum() + other(IDS).sum()).backward()
        with pytest.raises(
            InvalidArgumentError, match="'other' has gradients, but no update method"
        ):
            optimizer.step()
        assert one.num_rows() == {"one": 0}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_invalid_gradient_raises_and_changes_no_row(bad: float) -> None:
    model = Model()
    optimizer = Optimizer(model, torch.optim.Adam, lr=0.1)
    model(IDS).backward()
    optimizer.step()
    optimizer.zero_grad()
    before = model.users(IDS).detach().clone()
    out = model.users(IDS)
    (out * torch.tensor([[1.0], [bad], [1.0]])).sum().backward()
    model.items(IDS[:, None]).sum().backward()
    with pytest.raises(NonFiniteGradientError, match="users"):
        optimizer.step()
    torch.testing.assert_close(model.users(IDS), before, rtol=0, atol=0)
    optimizer.step()
    optimizer.zero_grad()
    torch.testing.assert_close(model.users(IDS), before, rtol=0, atol=0)


def test_invalid_gradients_can_be_skipped_and_counted() -> None:
    embedding = Embedding(DIM, name="table", storage="memory")
    optimizer = Optimizer(embedding, torch.optim.SGD, lr=1.0, non_finite_gradients="skip")
    out = embedding(IDS)
    (out * torch.tensor([[1.0], [float("nan")], [1.0]])).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert embedding.num_rows() == {"table": 1}
    assert optimizer.container.counters.rows_skipped_non_finite == 1
    with pytest.raises(InvalidArgumentError, match="'raise' or 'skip'"):
        Optimizer(embedding, torch.optim.SGD, lr=1.0, non_finite_gradients="ignore")


def test_an_object_without_tables_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="found no table"):
        Optimizer(nn.Linear(2, 2), torch.optim.SGD, lr=1.0)
    with pytest.raises(InvalidArgumentError, match="found Parameter, expected modules with tables"):
        Optimizer(nn.Linear(2, 2).parameters(), torch.optim.SGD, lr=1.0)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"expected a class of torch\.optim.*found 3"):
        Optimizer(Embedding(DIM), 3, lr=1.0)  # type: ignore[arg-type]


def test_every_int64_is_an_id() -> None:
    embedding, optimizer = trained()
    ids = torch.tensor([0, -1, -2, -3, 2**63 - 1, -(2**63)])
    before = embedding(ids)
    before.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.testing.assert_close(embedding(ids), before - 1)
    assert embedding.num_rows() == {"table": 6}


def test_tables_of_both_dtypes_train_together() -> None:
    tables = [
        EmbeddingBagConfig(name="single", embedding_dim=DIM, data_type=torch.float32),
        EmbeddingBagConfig(name="double", embedding_dim=DIM, data_type=torch.float64),
    ]
    modules = nn.ModuleList(
        EmbeddingBagCollection(tables=[table], storage="memory") for table in tables
    )
    optimizer = Optimizer(modules, torch.optim.Adam, lr=0.1)
    for module in modules:
        assert isinstance(module, EmbeddingBagCollection)
        name = module.agent.table_names[0]
        rows = module.agent.lookup(name, np.array([1, 2]), is_training=True).rows
        rows.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert optimizer.container.num_rows("double") == optimizer.container.num_rows("single") == 2
