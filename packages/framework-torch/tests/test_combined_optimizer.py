"""`CombinedOptimizer` supports code that handles only one optimizer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from sparring.errors import InvalidArgumentError, NonFiniteGradientError, UnsupportedError
from sparring_torch import CombinedOptimizer, Embedding, Optimizer

IDS = torch.tensor([3, 1, 2**40])


class Small(nn.Module):
    def __init__(self, name: str = "items") -> None:
        super().__init__()
        self.items = Embedding(4, name=name, storage="memory")
        torch.manual_seed(1)
        self.top = nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.top(self.items(ids))
        return out.square().sum()


def parts(model: nn.Module) -> tuple[Optimizer, torch.optim.Optimizer]:
    sparse = Optimizer(model, torch.optim.Adagrad, lr=0.1)
    return sparse, torch.optim.Adam(model.top.parameters(), lr=0.01)  # type: ignore[union-attr]


def rows(model: Small) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = model.items(IDS)
    return out


def test_steps_and_schedules_equal_the_separate_optimizers() -> None:
    apart, together = Small(), Small()
    optimizers = parts(apart)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.5) for each in optimizers]
    combined = CombinedOptimizer(parts(together))
    schedule = torch.optim.lr_scheduler.ExponentialLR(combined, 0.5)

    def closure() -> torch.Tensor:
        combined.zero_grad()
        loss = together(IDS)
        loss.backward()
        out: torch.Tensor = loss
        return out

    for _ in range(3):
        for each in optimizers:
            each.zero_grad()
        loss = apart(IDS)
        loss.backward()
        for each in optimizers:
            each.step()
        for one in schedules:
            one.step()
        assert torch.equal(combined.step(closure), loss)
        schedule.step()
    assert [group["lr"] for group in combined.param_groups] == [0.1 / 8, 0.01 / 8]
    assert torch.equal(rows(apart), rows(together))
    assert torch.equal(apart.top.weight, together.top.weight)
    # The closure did not prevent the update method.
    assert combined.optimizers[0][1].routes == {"items": "adagrad"}  # type: ignore[attr-defined]


def test_clipping_and_gradient_scalers_see_rows_and_parameters() -> None:
    plain, scaled = Small(), Small()
    optimizer, combined = (CombinedOptimizer(parts(each)) for each in (plain, scaled))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(3):
        optimizer.zero_grad()
        plain(IDS).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
        optimizer.step()
        combined.zero_grad()
        scaler.scale(scaled(IDS)).backward()
        scaler.unscale_(combined)
        # Clips as Lightning does.
        nn.utils.clip_grad_norm_([p for g in combined.param_groups for p in g["params"]], 0.01)
        scaler.step(combined)
        scaler.update()
    before = rows(scaled)
    torch.testing.assert_close(before, rows(plain))
    torch.testing.assert_close(scaled.top.weight, plain.top.weight)
    (scaler.scale(scaled(IDS)) * float("inf")).backward()
    scaler.step(combined)
    scaler.update()
    assert torch.equal(rows(scaled), before)
    assert scaler.get_scale() == 512.0


def test_state_dict_is_divided_among_the_parts() -> None:
    model = Small()
    sparse, dense = parts(model)
    combined = CombinedOptimizer([("rows", sparse), ("top", dense)])
    model(IDS).backward()
    combined.step()
    combined.zero_grad()
    saved = copy.deepcopy(combined.state_dict())
    assert saved.keys() == {"rows", "top"}
    assert set(combined.state) == set(sparse.state) | set(dense.state)
    model(IDS).backward()
    combined.step()
    combined.zero_grad()
    combined.load_state_dict(saved)
    assert sparse.state_dict()["state"]["items"]["step"] == 1
    assert {float(each["step"]) for each in dense.state.values()} == {1.0}
    # The groups are the current ones of the parts.
    combined.param_groups[1]["lr"] = 0.5
    assert dense.param_groups[0]["lr"] == 0.5
    with pytest.raises(
        InvalidArgumentError, match=r"expected the optimizers rows, top; combine them under"
    ):
        combined.load_state_dict({"0": {}, "1": {}})


def test_rejected_rows_prevent_a_step_of_parameters() -> None:
    model = Small()
    sparse, dense = parts(model)
    combined = CombinedOptimizer([dense, sparse])
    before = model.top.weight.detach().clone()
    (model(IDS) * float("inf")).backward()
    with pytest.raises(NonFiniteGradientError):
        combined.step()
    assert torch.equal(model.top.weight, before)


def test_error_messages_contain_the_fix() -> None:
    model = Small()
    sparse, dense = parts(model)
    wrong: list[tuple[Any, str]] = [
        ([], "at least one"),
        ([sparse, model], "found Small"),
        ([dense, dense], "twice"),
        ([("a", dense), ("a", sparse)], "found optimizer 'a' twice"),
    ]
    for given, message in wrong:
        with pytest.raises(InvalidArgumentError, match=message):
            CombinedOptimizer(given)
    with pytest.raises(UnsupportedError, match="LBFGS calls its closure several times"):
        CombinedOptimizer([sparse, torch.optim.LBFGS(model.top.parameters())])
    combined = CombinedOptimizer([sparse, dense])
    with pytest.raises(UnsupportedError, match="add the group to one of"):
        combined.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    for each in (combined, sparse):
        with pytest.raises(UnsupportedError, match=r"create one for the copy of the model"):
            copy.deepcopy(each)
