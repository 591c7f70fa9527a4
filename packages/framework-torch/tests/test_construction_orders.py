"""Models, optimizers, containers and wrappers can be created in any order, or the order is rejected."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparring_torch
from sparring import LocalGroup, StepContainer
from sparring.contracts import Collective
from sparring.errors import InvalidArgumentError
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_torch import DistributedModelParallel, Embedding, Optimizer, distribute
from sparring_torch.distributed import distributed_model_parallel

IDS = torch.tensor([3, -1, 8])


def make_model(container: StepContainer | None = None) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Embedding(2, name="items", container=container), nn.Linear(2, 1))


def make_optimizers(model: nn.Module) -> list[Any]:
    return [
        Optimizer(model, torch.optim.Adagrad, lr=0.5),
        torch.optim.SGD([each for each in model.parameters() if each.numel()], lr=0.1),
    ]


def train(model: nn.Module, optimizers: list[Any], steps: int = 3) -> Tensor:
    """Returns the embeddings and the last loss."""
    for _ in range(steps):
        for each in optimizers:
            each.zero_grad()
        loss = (model(IDS) - 1).square().mean()
        loss.backward()
        for each in optimizers:
            each.step()
    table = next(each for each in model.modules() if isinstance(each, Embedding))
    assert table.num_rows() == {"items": len(IDS)}
    return torch.cat([table.read_embeddings(IDS).flatten(), loss.detach().reshape(1)])


def make_state() -> dict[str, Any]:
    """Returns the state of a model after one step, with its rows."""
    model = make_model()
    train(model, make_optimizers(model), steps=1)
    return copy.deepcopy(model.state_dict())


def wrap_first() -> Tensor:
    model = DistributedModelParallel(make_model())
    return train(model, make_optimizers(model))


def wrap_after_optimizer() -> Tensor:
    model = make_model()
    optimizers = make_optimizers(model)
    return train(DistributedModelParallel(model), optimizers)


def wrap_twice_after_optimizer() -> Tensor:
    model = make_model()
    optimizers = make_optimizers(model)
    return train(DistributedModelParallel(DistributedModelParallel(model)), optimizers)


def container_first() -> Tensor:
    model = make_model(StepContainer())
    optimizers = make_optimizers(model)
    return train(DistributedModelParallel(model), optimizers)


def look_up_before_optimizer() -> Tensor:
    model = make_model().eval()
    model(IDS)
    model = DistributedModelParallel(model).train()
    return train(model, make_optimizers(model))


def optimizer_of_wrapped_then_wrap() -> Tensor:
    model = make_model()
    sparse = Optimizer(model[0], torch.optim.Adagrad, lr=0.5)
    wrapped = DistributedModelParallel(model).to("cpu")
    return train(wrapped, [sparse, torch.optim.SGD(model[1].parameters(), lr=0.1)])


def distribute_after_optimizer_of_rows() -> Tensor:
    model = make_model()
    sparse = Optimizer(model, torch.optim.Adagrad, lr=0.5)
    dense = torch.optim.SGD(model[1].parameters(), lr=0.1)
    distributed, _ = distribute(model, None)
    return train(distributed, [sparse, dense])


FRESH = [
    wrap_after_optimizer,
    wrap_twice_after_optimizer,
    container_first,
    look_up_before_optimizer,
    optimizer_of_wrapped_then_wrap,
    distribute_after_optimizer_of_rows,
]


@pytest.mark.parametrize("order", FRESH)
def test_an_order_trains_the_rows_of_the_documented_order(order: Callable[[], Tensor]) -> None:
    torch.testing.assert_close(order(), wrap_first(), rtol=0, atol=0)


def load_wrap_optimizer(state: dict[str, Any]) -> Tensor:
    model = make_model()
    model.load_state_dict(state)
    wrapped = DistributedModelParallel(model)
    return train(wrapped, make_optimizers(wrapped))


def load_optimizer_wrap(state: dict[str, Any]) -> Tensor:
    model = make_model()
    model.load_state_dict(state)
    optimizers = make_optimizers(model)
    return train(DistributedModelParallel(model), optimizers)


def optimizer_load_wrap(state: dict[str, Any]) -> Tensor:
    model = make_model()
    optimizers = make_optimizers(model)
    model.load_state_dict(state)
    return train(DistributedModelParallel(model), optimizers)


def optimizer_wrap_load(state: dict[str, Any]) -> Tensor:
    model = make_model()
    optimizers = make_optimizers(model)
    wrapped = DistributedModelParallel(model)
    wrapped.load_state_dict(state)
    return train(wrapped, optimizers)


@pytest.mark.parametrize(
    "order", [load_wrap_optimizer, load_optimizer_wrap, optimizer_load_wrap, optimizer_wrap_load]
)
def test_an_order_with_loaded_rows_continues_like_the_documented_order(
    order: Callable[[dict[str, Any]], Tensor],
) -> None:
    state = make_state()
    model = DistributedModelParallel(make_model())
    model.load_state_dict(state)
    expected = train(model, make_optimizers(model))
    torch.testing.assert_close(order(state), expected, rtol=0, atol=0)


# -- orders that are rejected


@contextmanager
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes `DistributedModelParallel` the first of two ranks; the second one never joins."""
    group = LocalGroup(2, deadline_seconds=1)

    class Job:
        rendezvous = ThreadRendezvous(2)
        collective = group.join(0)

        def close(self) -> None:
            self.collective.close()

    with monkeypatch.context() as patch:
        patch.setattr(distributed_model_parallel, "join_job", lambda *_, **__: Job())
        yield


@pytest.mark.parametrize(
    ("prepare", "found"),
    [
        (make_optimizers, "an Optimizer"),
        (lambda model: model.load_state_dict(make_state()), "rows"),
    ],
)
def test_several_ranks_reject_tables_that_were_used_before(
    prepare: Callable[[nn.Module], Any], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    kept = prepare(model)
    with (
        two_ranks(monkeypatch),
        pytest.raises(
            InvalidArgumentError, match=f"already have {found}, .*on 2 ranks.*First wrap"
        ),
    ):
        DistributedModelParallel(model)
    del kept


def test_an_optimizer_that_no_longer_exists_does_not_prevent_wrapping() -> None:
    def body(collective: Collective) -> int:
        model = make_model()
        make_optimizers(model)
        with StepContainer(collective=collective, rendezvous=ThreadRendezvous(2)) as container:
            wrapped = DistributedModelParallel(model, container=container)
            sparse = Optimizer(wrapped, "sgd", lr=1.0)
            wrapped(IDS).sum().backward()
            sparse.step()
            return container.num_rows("items")

    group = LocalGroup(2, deadline_seconds=20)
    with ThreadPoolExecutor(2) as threads:
        assert sum(threads.map(body, [group.join(0), group.join(1)])) == len(IDS)


def test_another_container_or_a_plan_rejects_an_earlier_optimizer() -> None:
    model = make_model()
    optimizers = make_optimizers(model)
    with (
        StepContainer() as other,
        pytest.raises(InvalidArgumentError, match=r"an Optimizer, .*given container.*First wrap"),
    ):
        DistributedModelParallel(model, container=other)
    with pytest.raises(InvalidArgumentError, match=r"an Optimizer, .*with a plan.*First wrap"):
        DistributedModelParallel(model, plan={"items": "table_wise"})
    train(model, optimizers)  # still in its own container


def test_optimizers_of_separate_modules_cannot_share_a_wrapper() -> None:
    model = nn.ModuleList([Embedding(2, name="one"), Embedding(2, name="two")])
    optimizers = [Optimizer(each, "sgd", lr=1.0) for each in model]
    with pytest.raises(InvalidArgumentError, match="in several containers"):
        DistributedModelParallel(model)
    del optimizers


def test_a_larger_optimizer_keeps_the_container_of_an_earlier_one() -> None:
    model = nn.ModuleList([Embedding(2, name="one"), Embedding(2, name="two")])
    model[1](IDS)  # creates a container
    first = Optimizer(model[0], "sgd", lr=1.0)
    joint = Optimizer([model[1], model[0]], "sgd", lr=1.0)
    assert joint.container is first.container
    (model[0](IDS).sum() + model[1](IDS).sum()).backward()
    with pytest.raises(InvalidArgumentError, match="a newer Optimizer"):
        first.step()
    joint.step()
    assert model[0].num_rows() == {"one": 3}


def test_tables_do_not_leave_the_container_of_their_optimizer() -> None:
    module = sparring_torch.Embedding(2, name="items")
    optimizer = Optimizer(module, "sgd", lr=1.0)
    with StepContainer() as other, pytest.raises(InvalidArgumentError, match="would train no rows"):
        module.agent.join(other)
    assert module.agent.container is optimizer.container
