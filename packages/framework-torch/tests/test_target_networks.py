"""Target networks follow a model by updates in place, whose rows are averaged or copied like weights."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch import Embedding, Optimizer

from .paired_models import Pair, rows

TAU = 0.25


def _lerp(target: Any, model: Any) -> None:
    target.data.lerp_(model.data, TAU)


def _expression(target: Any, model: Any) -> None:
    target.data.copy_(TAU * model.data + (1.0 - TAU) * target.data)


def _assignment(target: Any, model: Any) -> None:
    target.data = (1 - TAU) * target.data + model.data * TAU


def _without_data(target: Any, model: Any) -> None:
    with torch.no_grad():
        target.lerp_(model, TAU)


def _foreach(target: Any, model: Any) -> None:
    torch._foreach_lerp_([target.data], [model.data], TAU)


def _foreach_of_parameters(target: Any, model: Any) -> None:
    with torch.no_grad():
        torch._foreach_lerp_([target], [model], TAU)


@pytest.mark.parametrize(
    "update", [_lerp, _expression, _assignment, _without_data, _foreach, _foreach_of_parameters]
)
@pytest.mark.parametrize("is_early", [True, False])
def test_target_networks_follow_like_dense_ones(
    update: Callable[[Any, Any], None], is_early: bool
) -> None:
    pair = Pair()
    if not is_early:
        pair.step()
    target, dense = copy.deepcopy(pair.model), copy.deepcopy(pair.dense)
    for number in range(6):
        pair.step()
        for one, other in ((target, pair.model), (dense, pair.dense)):
            for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
                update(mine, theirs)
        if number % 2:
            torch.testing.assert_close(rows(target), dense[0].weight.detach())
    torch.testing.assert_close(rows(target), dense[0].weight.detach())
    # A hard update copies; later steps of the model do not change the target.
    for mine, theirs in zip(target.parameters(), pair.model.parameters(), strict=True):
        mine.data.copy_(theirs.data)
    before = rows(pair.model)
    pair.step()
    assert torch.equal(rows(target), before)
    assert not torch.equal(rows(pair.model), before)


@pytest.mark.parametrize(
    "update",
    [
        lambda t, p: t.data.mul_(1 - TAU).add_(p.data, alpha=TAU),
        lambda t, p: t.data.add_(TAU * (p.data - t.data)),
        lambda t, p: t.detach().mul_(0.5),
        lambda t, p: t.data.copy_(p.data**2),
        lambda t, p: t.data.copy_(p.data * 2),
        lambda t, p: t.data.lerp_(p.data, (t.data - p.data).norm().clamp(0.1, 1)),
        lambda t, p: torch._foreach_mul_([t.data], 0.5),
        lambda t, p: torch._foreach_mul_([t], 0.5),
        lambda t, p: torch._foreach_add_([t.data], [p.data], alpha=0.5),
    ],
)
def test_updates_that_are_no_average_raise_with_the_replacement(
    update: Callable[[Any, Any], Any],
) -> None:
    pair = Pair()
    pair.step()
    target = copy.deepcopy(pair.model)
    before = rows(target)
    with pytest.raises(UnsupportedError, match=r"items.*no row was changed.*AveragedModel\(model"):
        update(target[0].anchor, pair.model[0].anchor)
    assert torch.equal(rows(target), before)
    ours = AveragedModel(pair.model, multi_avg_fn=get_ema_multi_avg_fn(1 - TAU))
    ours.update_parameters(pair.model)


def test_a_separately_created_target_is_copied_but_not_averaged() -> None:
    pair, other = Pair(), Pair()
    pair.step()
    target = other.model[0].anchor
    with pytest.raises(UnsupportedError, match="created separately"):
        target.data.lerp_(pair.model[0].anchor.data, 0.5)
    target.data.copy_(pair.model[0].anchor.data)
    assert torch.equal(rows(other.model), rows(pair.model))
    wrong = Embedding(3, name="items", seed=4)
    with pytest.raises(InvalidArgumentError, match="equal configurations"):
        wrong.anchor.data.copy_(pair.model[0].anchor.data)


def test_swapped_rows_return_with_their_state() -> None:
    pair, reference = Pair(torch.optim.Adagrad), Pair(torch.optim.Adagrad)
    averaged = AveragedModel(pair.model, avg_fn=get_ema_avg_fn(0.5))
    expected = AveragedModel(reference.model, avg_fn=get_ema_avg_fn(0.5))

    def swap() -> None:
        for mine, theirs in zip(averaged.module.parameters(), pair.model.parameters(), strict=True):
            kept = mine.data.clone()
            mine.data.copy_(theirs.data)
            theirs.data.copy_(kept)

    for number in range(6):
        for each, average in ((pair, averaged), (reference, expected)):
            each.step()
            if number % 3 != 2:  # the last rows are not averaged yet
                average.update_parameters(each.model)
        swap()
        torch.testing.assert_close(rows(pair.model), rows(expected.module))
        assert torch.equal(rows(averaged.module), rows(reference.model))
        swap()
        assert torch.equal(rows(pair.model), rows(reference.model))
        assert pair.model[0].num_rows() == reference.model[0].num_rows()
    torch.testing.assert_close(rows(averaged.module), rows(expected.module))


def test_averages_of_states_raise_with_the_replacement() -> None:
    pair = Pair()
    pair.step()
    states = [pair.model.state_dict(), copy.deepcopy(pair.model).state_dict()]
    key = "0._extra_state"
    for average in (
        lambda: {name: 0.9 * states[0][name] + 0.1 * states[1][name] for name in states[0]},
        lambda: [mine.copy_(states[1][name]) for name, mine in states[0].items()],
        lambda: torch.lerp(states[0][key], states[1][key], 0.5),
        lambda: torch._foreach_mul_([states[0][key]], 0.5),
    ):
        with pytest.raises(
            UnsupportedError, match="averages of two states have no rows; use torch"
        ):
            average()


CHANGES_IN_PLACE: dict[str, Callable[[Any], object]] = {
    "clamp_": lambda p: p.clamp_(-1, 1),
    "data.clamp_": lambda p: p.data.clamp_(-1, 1),
    "fill_": lambda p: nn.init.constant_(p, 1.0),
    "uniform_": nn.init.xavier_uniform_,
    "zero_": lambda p: p.zero_(),
    "mul_": lambda p: operator.imul(p, 0.5),
    "add_": lambda p: operator.iadd(p, 1.0),
    "__setitem__": lambda p: operator.setitem(p, slice(None), 0),
    "data.__setitem__": lambda p: operator.setitem(p.data, slice(None), 0),
    "set_": lambda p: p.set_(torch.ones(2)),
    "lerp": lambda p: torch.lerp(p.data, p.data, 0.5, out=p.data),
    "share_memory_": lambda p: p.share_memory_(),
    "data": lambda p: setattr(p, "data", torch.ones(2)),
}


@pytest.mark.parametrize("change", CHANGES_IN_PLACE.values(), ids=list(CHANGES_IN_PLACE))
def test_changes_in_place_are_rejected(change: Callable[[Any], object]) -> None:
    module = Embedding(4, name="items")
    Optimizer(module, torch.optim.SGD, lr=0.1)
    copied = copy.deepcopy(module)
    for parameter in (module.anchor, copied.anchor):
        with torch.no_grad(), pytest.raises(UnsupportedError):
            change(parameter)


def test_rows_are_not_shared_by_assigning_data() -> None:
    first, second = (Embedding(4, name=name) for name in ("a", "b"))
    with pytest.raises(UnsupportedError, match="rows of another module"):
        first.anchor.data = second.anchor.data
    first.anchor.data = first.anchor.data


def test_rows_stay_with_their_parameter() -> None:
    module = Embedding(4, name="items")
    for name in ("weight", "embeddings"):
        with pytest.raises(AttributeError, match=f"Embedding has no {name}"):
            setattr(module, name, nn.Parameter(torch.ones(3, 4)))
    saved = {name: each.detach().clone() for name, each in module.named_parameters()}
    with pytest.raises(UnsupportedError, match="Call the model itself"):
        torch.func.functional_call(module, saved, torch.arange(3))
