"""`Optimizer` behaves like torch optimizers: schedulers, closures, hooks, state_dict."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparring.errors import InvalidArgumentError
from sparring_torch.modules.embedding import Embedding
from sparring_torch.optim.optimizer import Optimizer

IDS = torch.tensor([1, 2])


def trained(native: type[torch.optim.Optimizer] = torch.optim.SGD, **more: Any) -> Any:
    embedding = Embedding(2, name="table", storage="memory")
    return embedding, Optimizer(embedding, native, **{"lr": 1.0} | more)


def step(embedding: Embedding, optimizer: Optimizer) -> None:
    embedding(IDS).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1),
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.1**n),
        lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1),
    ],
)
def test_learning_rate_schedulers_apply_to_rows(make: Any) -> None:
    embedding, optimizer = trained()
    scheduler = make(optimizer)
    moves = []
    for _ in range(3):
        before = embedding(IDS).detach().clone()
        step(embedding, optimizer)
        scheduler.step()
        moves.append(float((before - embedding(IDS)).detach().mean()))
    assert moves == pytest.approx([1.0, 0.1, 0.01], rel=1e-4)


def test_cyclic_schedulers_find_momentum() -> None:
    embedding, optimizer = trained(momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=4)
    first = optimizer.param_groups[0]["momentum"]
    step(embedding, optimizer)
    scheduler.step()
    assert optimizer.param_groups[0]["momentum"] != first


def test_plateau_scheduler_is_supported() -> None:
    _, optimizer = trained()
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    scheduler.step(1.0)
    scheduler.step(2.0)
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_an_assigned_lr_is_used() -> None:
    embedding, optimizer = trained()
    optimizer.param_groups[0]["lr"] = 0.25
    before = embedding(IDS).detach().clone()
    step(embedding, optimizer)
    torch.testing.assert_close(embedding(IDS), before - 0.25)


def test_closure_is_called_with_gradients_and_its_loss_returned() -> None:
    embedding, optimizer = trained()

    def closure() -> float:
        optimizer.zero_grad()
        loss = embedding(IDS).sum()
        loss.backward()
        return float(loss)

    with torch.no_grad():
        loss = optimizer.step(closure)
    assert isinstance(loss, float)
    assert embedding.num_rows() == {"table": 2}
    optimizer.zero_grad()
    assert optimizer.step() is None


def test_step_hooks_run_once() -> None:
    embedding, optimizer = trained()
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    step(embedding, optimizer)
    assert calls == ["before", "after"]


def test_a_profiler_sees_steps() -> None:
    embedding, optimizer = trained()
    with torch.profiler.profile() as profile:
        step(embedding, optimizer)
    step(embedding, optimizer)
    counts = {each.key: each.count for each in profile.key_averages()}
    assert counts["Optimizer.step#Optimizer.step"] == 1


def test_a_table_without_gradients_does_not_count_the_step() -> None:
    modules = [Embedding(2, name=name, storage="memory") for name in ("one", "other")]
    optimizer = Optimizer(modules, torch.optim.Adam, lr=0.1)
    for module in (modules[0], modules[0], modules[1]):
        step(module, optimizer)
    state = optimizer.state_dict()["state"]
    assert {name: float(scalars["step"]) for name, scalars in state.items()} == {
        "one": 2.0,
        "other": 1.0,
    }


def test_state_dict_describes_its_contents_and_resumes() -> None:
    embedding, optimizer = trained(torch.optim.NAdam, lr=0.1)
    step(embedding, optimizer)
    optimizer.param_groups[0]["lr"] = 0.05
    saved = optimizer.state_dict()
    assert saved["native"] == "NAdam"
    assert "state_dict of the model" in saved["rows_are_in"]
    assert saved["param_groups"][0]["params"] == ["table"]
    assert set(saved["state"]["table"]) == {"step", "mu_product"}

    resumed = Optimizer(embedding, torch.optim.NAdam, lr=0.1)
    resumed.load_state_dict(saved)
    assert resumed.param_groups[0]["lr"] == 0.05
    twin = Embedding(2, name="table", storage="memory")
    reference = Optimizer(twin, torch.optim.NAdam, lr=0.1)
    step(twin, reference)
    reference.param_groups[0]["lr"] = 0.05
    step(twin, reference)
    step(embedding, resumed)
    torch.testing.assert_close(embedding(IDS), twin(IDS), rtol=0, atol=0)


def test_state_dict_is_a_copy() -> None:
    embedding, optimizer = trained(torch.optim.Adam)
    saved = optimizer.state_dict()
    step(embedding, optimizer)
    assert float(saved["state"]["table"]["step"]) == 0.0


def test_a_foreign_state_dict_is_rejected() -> None:
    _, optimizer = trained(torch.optim.Adam)
    saved = optimizer.state_dict()
    with pytest.raises(InvalidArgumentError, match="of optimizer 'Adam'"):
        trained(torch.optim.SGD)[1].load_state_dict(saved)
    saved["state"]["tabel"] = saved["state"].pop("table")
    with pytest.raises(InvalidArgumentError, match="did you mean 'table'"):
        optimizer.load_state_dict(saved)
    with pytest.raises(InvalidArgumentError, match="nothing for table"):
        optimizer.load_state_dict(saved | {"state": {}})
    with pytest.raises(InvalidArgumentError, match="param_groups"):
        optimizer.load_state_dict(optimizer.state_dict() | {"param_groups": []})


def test_between_steps_no_rows_are_kept() -> None:
    embedding, optimizer = trained(torch.optim.Adam)
    step(embedding, optimizer)
    parameter, norm = optimizer.param_groups[0]["params"]
    assert parameter.numel() == norm.numel() == 0
    assert parameter.grad is norm.grad is None
    assert all(torch.as_tensor(each).numel() == 1 for each in optimizer.state[parameter].values())
