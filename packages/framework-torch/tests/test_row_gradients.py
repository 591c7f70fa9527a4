"""Clipping, gradient scalers and freezing affect the rows of tables like parameters."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparring import LocalGroup, StepContainer
from sparring.contracts import Collective
from sparring.errors import InvalidArgumentError, NonFiniteGradientError, UnsupportedError
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_torch import (
    CombinedOptimizer,
    DistributedModelParallel,
    Embedding,
    EmbeddingBag,
    Optimizer,
    dense_parameters,
)

IDS = torch.arange(8)


class Model(nn.Module):
    """Two tables and a dense layer, of torch or of sparring."""

    def __init__(self, users: nn.Module, items: nn.Module) -> None:
        super().__init__()
        self.users, self.items = users, items
        self.dense = nn.Linear(8, 1)
        nn.init.constant_(self.dense.weight, 0.5)
        nn.init.constant_(self.dense.bias, 0.25)

    def forward(self, ids: Tensor) -> Tensor:
        found = torch.cat([self.users(ids[:, 0]), self.items(ids)], dim=1)
        return (self.dense(found).squeeze(1) * (1 + ids[:, 0])).square().mean()


def ours(place: dict[str, Any] | None = None, **settings: Any) -> Model:
    where = place or {"storage": "memory"}
    return Model(
        Embedding(4, name="users", **where, **settings),
        EmbeddingBag(4, name="items", mode="sum", **where),
    )


def of_torch(model: Model) -> Model:
    """The same model with torch's tables, which have separate gradients."""
    users, items = nn.Embedding(8, 4), nn.EmbeddingBag(8, 4, mode="sum")
    users.weight.data, items.weight.data = rows_of(model)
    return Model(users, items)


def rows_of(model: Model) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        if isinstance(model.users, nn.Embedding):
            assert isinstance(model.items, nn.EmbeddingBag)
            return model.users.weight.clone(), model.items.weight.clone()
        return model.users(IDS), model.items(IDS[:, None])


def agree(one: Model, other: Model) -> None:
    for mine, theirs in zip(rows_of(one), rows_of(other), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs.cpu(), rtol=1e-5, atol=1e-6)


BATCHES = [torch.tensor([[1, 2], [1, 3], [4, 2]]), torch.tensor([[1, 5], [6, 6], [2, 3]])]


def clipped_by_torch(model: nn.Module, _: Optimizer) -> Tensor:
    return torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)


def clipped_by_optimizer(model: nn.Module, optimizer: Optimizer) -> Tensor:
    return optimizer.clip_grad_norm_(0.5, model.parameters())


@pytest.mark.parametrize("clip", [clipped_by_torch, clipped_by_optimizer])
@pytest.mark.parametrize("native", [torch.optim.SGD, "sgd"])
def test_rows_and_parameters_are_clipped_by_one_norm(
    clip: Callable[[nn.Module, Optimizer], Tensor], native: Any, place: Any
) -> None:
    if place.name == "emulated" and native != "sgd":
        pytest.skip("one optimizer tries the device")
    model = ours(place.table)
    expected = of_torch(model)
    sparse = Optimizer(model, native, lr=0.5)
    dense = torch.optim.SGD(model.parameters(), lr=0.5)
    theirs = torch.optim.SGD(expected.parameters(), lr=0.5)
    for number in range(3):
        batches = BATCHES[: 1 + number % 2]  # the second step has two micro-batches
        for each in batches:
            model(each.to(place.device)).backward()
            expected(each.to(place.device)).backward()
        norm = clip(model, sparse)
        their_norm = torch.nn.utils.clip_grad_norm_(expected.parameters(), 0.5)
        torch.testing.assert_close(norm, their_norm)
        assert their_norm > 0.5
        dense.step()  # sees no gradient of rows, and does not forget that they were clipped
        dense.zero_grad()
        sparse.step()
        sparse.zero_grad()
        theirs.step()
        theirs.zero_grad()
        assert [each.grad for each in model.parameters()] == [None] * 4
    agree(model, expected)


def test_gradients_added_after_clipping_are_not_clipped() -> None:
    model = ours()
    expected = of_torch(model)
    sparse = Optimizer(model, torch.optim.SGD, lr=0.5)
    for each in (model, expected):
        each(BATCHES[0]).backward()
        torch.nn.utils.clip_grad_norm_(each.parameters(), 0.5)
        each(BATCHES[1]).backward()
    norms = [torch.nn.utils.get_total_norm(_gradients(each)) for each in (model, expected)]
    torch.testing.assert_close(*norms)
    sparse.step()
    sparse.zero_grad()
    torch.optim.SGD(expected.parameters(), lr=0.5).step()
    agree(model, expected)


def _gradients(model: nn.Module) -> list[Tensor]:
    return [each.grad for each in model.parameters() if each.grad is not None]


def test_gradients_are_dropped_like_those_of_parameters() -> None:
    model = ours()
    sparse = Optimizer(model, torch.optim.SGD, lr=0.5)
    model(BATCHES[0]).backward()
    assert len(_gradients(model)) == 4
    model.zero_grad()
    assert _gradients(model) == []
    sparse.step()
    sparse.zero_grad()
    assert sparse.container.num_rows("users") == 0
    model(BATCHES[0]).backward()
    clipped_by_torch(model, sparse)
    sparse.zero_grad()
    assert len(_gradients(model)) == 2
    sparse.step()
    assert sparse.container.num_rows("users") == 0
    model(BATCHES[0]).backward()
    clipped_by_torch(model, sparse)
    sparse.container.discard()  # as `load` does
    sparse.step()
    assert sparse.container.num_rows("users") == 0


Change = Callable[[list[nn.Parameter]], object]


def each_gradient(change: Callable[[Any], object]) -> Change:
    def change_all(parameters: list[nn.Parameter]) -> list[object]:
        return [change(each.grad) for each in parameters if each.grad is not None]

    return change_all


def halved(parameters: list[nn.Parameter]) -> None:
    for each in parameters:
        if each.grad is not None:
            each.grad = each.grad * torch.tensor(0.5)


CHANGES: dict[str, Change] = {
    "value": lambda all_: torch.nn.utils.clip_grad_value_(all_, 0.2),
    "value in a loop": lambda all_: torch.nn.utils.clip_grad_value_(all_, 0.2, foreach=False),
    "1-norm": lambda all_: torch.nn.utils.clip_grad_norm_(all_, 0.5, norm_type=1),
    "3-norm": lambda all_: torch.nn.utils.clip_grad_norm_(all_, 0.5, norm_type=3, foreach=True),
    "inf-norm": lambda all_: torch.nn.utils.clip_grad_norm_(all_, 0.5, norm_type=float("inf")),
    "one side": each_gradient(lambda grad: grad.clamp_(min=-0.1)),
    "twice": each_gradient(lambda grad: grad.mul_(3).clamp_(-0.3, 0.2).clamp_max_(0.1).div_(2)),
    "sign": each_gradient(lambda grad: grad.neg_()),
    "data": each_gradient(lambda grad: grad.data.mul_(0.1)),
    "assigned": halved,
    "zero": each_gradient(lambda grad: grad.zero_()),
    "norms": each_gradient(lambda grad: [grad.norm(), grad.norm(1), grad.detach().data.norm(2)]),
    "foreach": lambda all_: torch._foreach_mul_(
        [each.grad for each in all_ if each.grad is not None], 2
    ),
}


@pytest.mark.parametrize("owners", ["model", "optimizers"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_changes_of_gradients_are_those_of_torch(change: Change, owners: str) -> None:
    model = ours()
    expected = of_torch(model)
    sparse, dense = (
        Optimizer(model, torch.optim.SGD, lr=0.5),
        torch.optim.SGD(model.dense.parameters()),
    )
    theirs = torch.optim.SGD(expected.parameters(), lr=0.5)
    groups = [*sparse.param_groups, *dense.param_groups]
    mine = [each for group in groups for each in group["params"]]
    for number in range(2):
        for each in BATCHES[: 1 + number]:
            model(each).backward()
            expected(each).backward()
        found = change(mine if owners == "optimizers" else list(model.parameters()))
        of_theirs = change(list(expected.parameters()))
        if isinstance(of_theirs, Tensor):
            torch.testing.assert_close(found, of_theirs)
        sparse.step()
        theirs.step()
        for each in (sparse, dense, theirs):
            each.zero_grad()
        expected.dense.load_state_dict(model.dense.state_dict())
    agree(model, expected)


REJECTED: dict[str, Callable[[Any], object]] = {
    "add_": lambda grad: grad.add_(0.1),
    "sign_": lambda grad: grad.sign_(),
    "pow_": lambda grad: grad.pow_(2),
    "copy_": lambda grad: grad.copy_(torch.ones(1)),
    "clamp_": lambda grad: grad.clamp_(min=0.1),
    "clamp": lambda grad: grad.clamp(-1, 1),
    "mul_": lambda grad: grad.mul_(torch.rand(4)),
    "rand_like": torch.rand_like,
    "abs": lambda grad: grad.abs().max(),
    "norm": lambda grad: grad.norm(dim=0),
    "order": lambda grad: grad.norm(0),
    "cat": lambda grad: torch.cat([grad, torch.ones(1)]),
    "flat": lambda grad: grad.view(-1),
    "nan_to_num_": lambda grad: grad.nan_to_num_(),
}


@pytest.mark.parametrize("change", REJECTED.values(), ids=list(REJECTED))
def test_operations_that_need_the_elements_are_rejected(change: Callable[[Any], object]) -> None:
    model = ours()
    sparse = Optimizer(model, torch.optim.SGD, lr=0.5)
    model(BATCHES[0]).backward()
    for parameter in (model.users.anchor, sparse.param_groups[0]["params"][-1]):
        with pytest.raises(UnsupportedError, match=r"gradients? of rows"):
            change(parameter.grad)
        with pytest.raises(UnsupportedError, match="gradient of rows"):
            parameter.grad = torch.ones(1)


def test_hooks_that_would_never_run_are_rejected() -> None:
    model = ours()
    sparse = Optimizer(model, torch.optim.SGD, lr=0.5)
    for each in (model.users.anchor, *sparse.param_groups[0]["params"]):
        for name in ("register_hook", "register_post_accumulate_grad_hook"):
            with pytest.raises(UnsupportedError, match=f"{name}: .*would never run"):
                getattr(each, name)(lambda _: None)


def test_a_gradient_that_was_read_too_early_is_not_changed() -> None:
    model = ours()
    Optimizer(model, torch.optim.SGD, lr=0.5)
    model(BATCHES[0]).backward()
    grad: Any = model.users.anchor.grad
    model(BATCHES[0]).backward()
    for change in (lambda: grad.mul_(0.5), lambda: grad.clamp_(-1, 1), lambda: grad.norm(1)):
        with pytest.raises(InvalidArgumentError, match=r"read parameter\.grad again"):
            change()
    assert repr(grad).startswith("GradientNorm(")


def test_saved_gradients_are_not_assigned() -> None:
    model = ours()
    optimizer = Optimizer(model, torch.optim.SGD, lr=0.5)
    model(BATCHES[0]).backward()
    anchor: Any = model.users.anchor
    saved = anchor.grad.clone()
    anchor.grad = saved * 0.5
    with pytest.raises(UnsupportedError, match="only the 2-norm is known"):
        saved.norm(1)
    optimizer.zero_grad()
    with pytest.raises(UnsupportedError, match="Call backward"):
        anchor.grad = saved
    model(BATCHES[1]).backward()
    with pytest.raises(UnsupportedError, match="Call backward"):
        anchor.grad = saved


@pytest.mark.parametrize("native", ["sgd", torch.optim.SGD])
def test_each_group_has_the_gradients_of_its_tables(native: Any) -> None:
    modules = nn.ModuleList(Embedding(2, name=name, storage="memory") for name in ("one", "two"))
    before = [each.read_embeddings(IDS[:1]) for each in modules]  # type: ignore[operator]
    optimizer = Optimizer(modules, native, lr=1.0, tables={"two": {"lr": 0.5}})
    sum(each(IDS[:1]).sum() for each in modules).backward()  # type: ignore[union-attr]
    groups = {group["lr"]: group["params"] for group in optimizer.param_groups}
    for each in groups[0.5]:
        each.grad = None
    torch.nn.utils.clip_grad_norm_(groups[1.0], 0.25)
    optimizer.step()
    moved = [
        (each.read_embeddings(IDS[:1]) - old).norm().item()  # type: ignore[operator]
        for each, old in zip(modules, before, strict=True)
    ]
    assert moved == pytest.approx([0.25, 0.0], abs=1e-6)


def test_rows_have_gradients_of_a_backward_pass_that_creates_a_graph() -> None:
    model = ours()
    expected = of_torch(model)
    sparse = Optimizer(model, torch.optim.SGD, lr=0.5)
    theirs = torch.optim.SGD(expected.parameters(), lr=0.5)
    for each, optimizer in ((model, sparse), (expected, theirs)):
        each(BATCHES[0]).backward(create_graph=True)
        optimizer.step()
        each.zero_grad()
    agree(model, expected)


def test_values_in_the_groups_of_an_optimizer_are_rejected() -> None:
    model = ours()
    optimizer = Optimizer(model, torch.optim.SGD, lr=0.5)
    norm: Any = optimizer.param_groups[0]["params"][-1]
    for change in (lambda: norm.data, lambda: norm.mul_(0.5), lambda: nn.init.zeros_(norm)):
        with (
            torch.no_grad(),
            pytest.raises(UnsupportedError, match="represents only their gradients"),
        ):
            change()


def test_rows_freeze_with_the_parameters_of_their_optimizer() -> None:
    model = ours()
    optimizer = Optimizer(model, torch.optim.SGD, lr=0.5)
    own = [each for group in optimizer.param_groups for each in group["params"]]
    for each in own:
        each.requires_grad_(False)
    assert not model.users(IDS).requires_grad
    for each in own:
        each.requires_grad_(True)
    assert model.users(IDS).requires_grad


def test_a_table_of_two_modules_counts_once() -> None:
    first = Embedding(2, name="shared", storage="memory")
    second = Embedding(2, name="shared", storage="memory", shared=True)
    both = nn.ModuleList([first, second])
    optimizer = Optimizer(both, torch.optim.SGD, lr=1.0)
    (first(IDS[:1]) + second(IDS[:1])).sum().backward()
    assert optimizer.clip_grad_norm_(1.0).item() == pytest.approx(8**0.5)


def test_a_combined_optimizer_has_each_gradient_once() -> None:
    model, plain = ours(), ours()
    optimizer = CombinedOptimizer(
        [
            Optimizer(model, torch.optim.SGD, lr=0.5),
            torch.optim.SGD(model.parameters(), lr=0.5),
        ]
    )
    Optimizer(plain, torch.optim.SGD, lr=0.5)
    for each in (model, plain):
        each(BATCHES[0]).backward()
    expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    assert torch.nn.utils.clip_grad_norm_(parameters, 0.5) == expected


@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("native", [torch.optim.Adagrad, "rowwise_adagrad"])
def test_gradient_scalers_apply_only_finite_steps(native: Any, unscales: bool) -> None:
    model, plain = ours(), ours()
    plain.dense.load_state_dict(model.dense.state_dict())
    sparse = Optimizer(model, native, lr=0.5)
    dense = torch.optim.SGD(model.parameters(), lr=0.5)
    plain_sparse = Optimizer(plain, native, lr=0.5)
    plain_dense = torch.optim.SGD(plain.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number in range(3):
        loss = model(BATCHES[number % 2])
        scaler.scale(loss * float("inf") if number == 1 else loss).backward()
        if unscales:
            scaler.unscale_(dense)
            scaler.unscale_(sparse)
        scaler.step(dense)
        scaler.step(sparse)
        scaler.update()
        dense.zero_grad()
        sparse.zero_grad()
        if number != 1:
            plain(BATCHES[number % 2]).backward()
            plain_sparse.step()
            plain_sparse.zero_grad()
            plain_dense.step()
            plain_dense.zero_grad()
    assert scaler.get_scale() == 512.0
    for mine, theirs in zip(rows_of(model), rows_of(plain), strict=True):
        assert torch.equal(mine, theirs)  # a power of two scales without rounding


def test_a_gradient_without_a_norm_is_rejected_as_without_clipping() -> None:
    model = ours()
    sparse = Optimizer(model, torch.optim.SGD, lr=0.5)
    (model(BATCHES[0]) * float("nan")).backward()
    assert clipped_by_torch(model, sparse).isnan()
    with pytest.raises(NonFiniteGradientError):
        sparse.step()


def test_frozen_modules_are_not_trained() -> None:
    model = ours()
    sparse = Optimizer(model, torch.optim.SGD, lr=0.5)
    model(BATCHES[0]).backward()
    sparse.step()
    sparse.zero_grad()
    users, items = rows_of(model)
    model.users.requires_grad_(False)
    assert not model.users(IDS).requires_grad
    loss = model(BATCHES[0])
    assert sparse.container.resources.num_batch_inputs == 1
    loss.backward()
    sparse.step()
    sparse.zero_grad()
    assert torch.equal(rows_of(model)[0], users)
    assert not torch.equal(rows_of(model)[1], items)
    model.requires_grad_(True)
    model(BATCHES[0]).backward()
    sparse.step()
    sparse.zero_grad()
    assert not torch.equal(rows_of(model)[0], users)


def test_anchors_are_in_no_state_and_are_not_counted() -> None:
    model = ours()
    assert not any("anchor" in name for name in model.state_dict())
    model.load_state_dict(model.state_dict())
    assert [name for name, _ in dense_parameters(model)] == ["dense.weight", "dense.bias"]
    names = ["users.anchor", "items.anchor", "dense.weight", "dense.bias"]
    assert [name for name, _ in model.named_parameters()] == names
    assert sum(each.numel() for each in model.parameters()) == 9
    Optimizer(model, torch.optim.SGD, lr=0.5)
    model(BATCHES[0]).backward()
    anchor: Any = model.users.anchor.requires_grad_(False)
    for each in (copy.deepcopy(anchor), pickle.loads(pickle.dumps(anchor))):
        assert isinstance(each, type(anchor))
        assert (each.requires_grad, each.grad) == (False, None)


@pytest.mark.parametrize("placement", ["sharded", "replicated"])
@pytest.mark.parametrize("change", [CHANGES["value"], CHANGES["inf-norm"], CHANGES["1-norm"]])
def test_elements_and_norms_are_over_all_ranks(placement: str, change: Change) -> None:
    def trained(collective: Collective | None, batches: list[Tensor]) -> Any:
        rank = 0 if collective is None else collective.rank
        rendezvous = None if collective is None else ThreadRendezvous(2)
        with StepContainer(collective=collective, rendezvous=rendezvous) as container:
            model = ours(placement=placement)
            wrapped = DistributedModelParallel(model, container=container)
            sparse = Optimizer(wrapped, torch.optim.SGD, lr=0.5)
            for _ in range(2):
                wrapped(batches[rank]).backward()
                change(sparse.param_groups[0]["params"])
                sparse.step()
                sparse.zero_grad()
            return rows_of(model)

    expected = trained(None, [torch.cat(BATCHES)])
    group = LocalGroup(2, deadline_seconds=20)
    with ThreadPoolExecutor(2) as threads:
        futures = [threads.submit(trained, group.join(rank), BATCHES) for rank in range(2)]
        for each in [each.result() for each in futures]:
            torch.testing.assert_close(each, expected)


@pytest.mark.parametrize("placement", ["sharded", "replicated"])
def test_the_norm_is_over_all_ranks(placement: str) -> None:
    def trained(collective: Collective | None, batches: list[Tensor]) -> Any:
        rank = 0 if collective is None else collective.rank
        rendezvous = None if collective is None else ThreadRendezvous(2)
        with StepContainer(collective=collective, rendezvous=rendezvous) as container:
            model = ours(placement=placement)
            wrapped = DistributedModelParallel(model, container=container)
            sparse = Optimizer(wrapped, torch.optim.SGD, lr=0.5)
            dense = torch.optim.SGD(wrapped.parameters(), lr=0.5)
            norms = []
            for _ in range(2):
                wrapped(batches[rank]).backward()
                norms.append(torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 0.5))
                for each in (dense, sparse):
                    each.step()
                    each.zero_grad()
            return torch.stack(norms), *rows_of(model)

    expected = trained(None, [torch.cat(BATCHES)])
    group = LocalGroup(2, deadline_seconds=20)
    with ThreadPoolExecutor(2) as threads:
        futures = [threads.submit(trained, group.join(rank), BATCHES) for rank in range(2)]
        found = [each.result() for each in futures]
    for each in found:
        torch.testing.assert_close(each, expected)
