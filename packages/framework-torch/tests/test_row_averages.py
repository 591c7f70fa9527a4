"""`AveragedModel` and target networks average and copy rows like the weights of `torch.nn.Embedding`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import (
    AveragedModel,
    get_ema_avg_fn,
    get_ema_multi_avg_fn,
    get_swa_avg_fn,
    get_swa_multi_avg_fn,
    update_bn,
)

from sparring import StepContainer
from sparring.errors import CapacityError, InvalidArgumentError, UnsupportedError
from sparring_testing.processes.rank_threads import run_containers
from sparring_testing.processes.table_steps import read_rows
from sparring_torch import Embedding, Optimizer, shared_rows
from sparring_torch.state.copy_container import CopyContainer

from .paired_models import NORMAL, NUM_IDS, Pair, rows
from .saved_models import Model, optimizer_of, train


def compare(ours: Any, theirs: Any, atol: float = 1e-5) -> None:
    """Checks each row of two averaged models, by both kinds of lookups."""
    expected = theirs.module[0].weight.detach()
    # A part of the rows, then all of them.
    few = torch.tensor([[3, 1], [1, NUM_IDS - 1]])
    with torch.no_grad():
        torch.testing.assert_close(ours.module[0](few), expected[few], atol=atol, rtol=1e-4)
    torch.testing.assert_close(rows(ours.module), expected, atol=atol, rtol=1e-4)
    torch.testing.assert_close(ours.module[1].weight, theirs.module[1].weight, atol=atol, rtol=1e-4)


FUNCTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "default": dict,
    "multi_ema": lambda: {"multi_avg_fn": get_ema_multi_avg_fn(0.8)},
    "ema": lambda: {"avg_fn": get_ema_avg_fn(0.8)},
    "multi_swa": lambda: {"multi_avg_fn": get_swa_multi_avg_fn()},
    "swa": lambda: {"avg_fn": get_swa_avg_fn()},
    "warm_up": lambda: {
        "avg_fn": lambda a, p, n: (d := min(0.9, (1 + int(n)) / (10 + int(n)))) * a + (1 - d) * p
    },
}


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_each_row_is_averaged_as_by_torch(function: str, kind: Any) -> None:
    pair = Pair(kind)
    for _ in range(3):
        pair.step()
    ours, theirs = (
        AveragedModel(each, use_buffers=function == "ema", **FUNCTIONS[function]())
        for each in (pair.model, pair.dense)
    )
    compare(ours, theirs)
    for number in range(25):
        for _ in range(number % 3):  # no, one or several steps between updates
            pair.step()
        ours.update_parameters(pair.model)
        theirs.update_parameters(pair.dense)
        if number % 4 == 0:
            compare(ours, theirs)
    compare(ours, theirs)
    assert ours.module[0].num_rows() == pair.model[0].num_rows()
    # The model keeps its rows.
    torch.testing.assert_close(rows(pair.model), pair.dense[0].weight.detach())


@pytest.mark.parametrize(
    "options",
    [
        {"update": "shadow"},
        {"device": "emulated"},
        {"admission": {"kind": "frequency", "k": 2}},
        {"placement": "replicated"},
    ],
)
def test_tables_with_options_are_averaged(options: Any) -> None:
    pair = Pair(torch.optim.Adagrad, **options)
    ours = AveragedModel(pair.model, avg_fn=get_ema_avg_fn(0.7))
    ids = torch.arange(NUM_IDS)
    expected = None
    for number in range(12):
        pair.step()
        ours.update_parameters(pair.model)
        now = rows(pair.model)
        expected = now if expected is None else expected.lerp(now, 0.3)
        if number % 3 == 0:
            with torch.no_grad():
                torch.testing.assert_close(ours.module[0](ids), expected)
    torch.testing.assert_close(rows(ours.module), expected)


def test_averages_of_averages_are_current() -> None:
    pair = Pair()
    ours = AveragedModel(pair.model, avg_fn=get_ema_avg_fn(0.7))
    theirs = AveragedModel(pair.dense, avg_fn=get_ema_avg_fn(0.7))
    again, expected = (
        AveragedModel(each.module, avg_fn=get_ema_avg_fn(0.5)) for each in (ours, theirs)
    )
    for _ in range(8):
        pair.step()
        for one, other, model in ((ours, again, pair.model), (theirs, expected, pair.dense)):
            one.update_parameters(model)
            other.update_parameters(one.module)
    compare(again, expected)


@pytest.mark.parametrize("storage", ["memory", {"backend": "hkv", "capacity": 64}])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8])
def test_tables_of_all_dtypes_and_storages_are_averaged(storage: Any, dtype: torch.dtype) -> None:
    pair = Pair(lr=0.1, dtype=dtype, storage=storage)
    atol = {torch.float64: 1e-12, torch.bfloat16: 0.05, torch.int8: 0.1}[dtype]
    function = get_ema_multi_avg_fn(0.7)
    ours, theirs = (AveragedModel(each, multi_avg_fn=function) for each in (pair.model, pair.dense))
    for _ in range(8):
        pair.step()
        ours.update_parameters(pair.model)
        theirs.update_parameters(pair.dense)
    compare(ours, theirs, atol)


def test_rows_that_others_write_are_averaged() -> None:
    pair = Pair()
    function = get_ema_multi_avg_fn(0.5)
    ours, theirs = (AveragedModel(each, multi_avg_fn=function) for each in (pair.model, pair.dense))

    def update(count: int = 2) -> None:
        for _ in range(count):
            ours.update_parameters(pair.model)
            theirs.update_parameters(pair.dense)

    pair.step()
    update()
    saved = copy.deepcopy((pair.model.state_dict(), pair.dense.state_dict()))
    container = pair.model[0].agent.container
    container.assign("items", np.array([2, 28]), np.full((2, 3), 7, np.float32))
    with torch.no_grad():
        pair.dense[0].weight[torch.tensor([2, 28])] = 7
    update()
    compare(ours, theirs)
    pair.step()
    update()
    pair.model.load_state_dict(saved[0])
    pair.dense.load_state_dict(saved[1])
    update()
    # The average forgets rows that the table no longer has.
    keys = torch.tensor(list(read_rows(container, "items")))
    assert 28 not in keys
    torch.testing.assert_close(rows(ours.module)[keys], theirs.module[0].weight.detach()[keys])
    assert ours.module[0].num_rows() == {"items": len(keys)}
    # Rows of the average itself.
    key = int(keys[0])
    with torch.no_grad():
        theirs.module[0].weight[key] = 9
    ours.module[0].agent.container.assign("items", [key], np.full((1, 3), 9, np.float32))
    pair.step()
    update(1)
    torch.testing.assert_close(rows(ours.module)[key], theirs.module[0].weight[key].detach())
    container.storage("items").erase([key])
    update(1)
    ids = torch.tensor([key])
    assert torch.equal(ours.module[0].read_embeddings(ids), pair.model[0].read_embeddings(ids))


def test_an_averaged_model_is_saved_and_resumed() -> None:
    pair = Pair(torch.optim.Adagrad)
    function = get_ema_multi_avg_fn(0.6)
    ours, theirs = (AveragedModel(each, multi_avg_fn=function) for each in (pair.model, pair.dense))
    for _ in range(6):
        pair.step()
        ours.update_parameters(pair.model)
        theirs.update_parameters(pair.dense)
    states = copy.deepcopy((pair.model.state_dict(), ours.state_dict()))
    # A state with optimizer state, as from a release that did not average rows.
    older, started = (
        AveragedModel(each, multi_avg_fn=function) for each in (pair.model, pair.dense)
    )
    older.module.load_state_dict(pair.model.state_dict())
    for each in (older, started):
        each.n_averaged += 1

    for is_first in (True, False):  # the average is loaded before or after the model
        resumed = Pair(torch.optim.Adagrad)
        again = AveragedModel(resumed.model, multi_avg_fn=function)
        loads = [(resumed.model, states[0]), (again, states[1])]
        for module, state in reversed(loads) if is_first else loads:
            module.load_state_dict(state)
        compare(again, theirs)
        assert torch.equal(rows(resumed.model), rows(pair.model))
    copied = copy.deepcopy(ours)
    again = AveragedModel(pair.model, multi_avg_fn=function)
    again.load_state_dict(states[1])
    for _ in range(6):
        pair.step()
        for each in (ours, copied, again, older):
            each.update_parameters(pair.model)
        for each in (theirs, started):
            each.update_parameters(pair.dense)
    for each in (ours, copied, again):
        compare(each, theirs)
    compare(older, started)
    # A served model has the averages.
    served = nn.Sequential(
        Embedding(3, name="items", initializer=NORMAL), nn.Linear(3, 1), nn.BatchNorm1d(1)
    )
    served.load_state_dict(ours.module.state_dict())
    torch.testing.assert_close(rows(served), theirs.module[0].weight.detach())
    Optimizer(served, torch.optim.Adagrad, lr=0.1)
    # A model with an optimizer keeps its state if the averages are copied.
    with pytest.raises(InvalidArgumentError, match=r"no optimizer.*p\.data\.copy_\(q\.data\)"):
        pair.model.load_state_dict(ours.module.state_dict())
    for mine, average in zip(pair.model.parameters(), ours.module.parameters(), strict=True):
        mine.data.copy_(average.data)
    torch.testing.assert_close(rows(pair.model), theirs.module[0].weight.detach())


def test_batch_statistics_of_an_averaged_model_are_updated() -> None:
    pair = Pair()
    ours, theirs = (AveragedModel(each) for each in (pair.model, pair.dense))
    for _ in range(5):
        pair.step()
        ours.update_parameters(pair.model)
        theirs.update_parameters(pair.dense)
    for each in (ours, theirs):
        update_bn([torch.arange(10), torch.arange(5, 20)], each)
    torch.testing.assert_close(ours.module[2].running_mean, theirs.module[2].running_mean)
    ids = torch.arange(NUM_IDS)
    torch.testing.assert_close(ours.eval()(ids), theirs.eval()(ids))


def test_a_table_of_two_modules_is_averaged_once() -> None:
    model = Model()
    early = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    optimizer = optimizer_of(model)
    averages = [early, AveragedModel(model, avg_fn=get_ema_avg_fn(0.5))]
    ids = torch.arange(-20, 40)
    expected = None
    for step in range(6):
        train(model, optimizer, step, step + 1)
        now = [model.users.read_embeddings(ids), model.items.read_embeddings(ids)]
        expected = now if expected is None else torch._foreach_lerp(expected, now, 0.5)
        for each in averages:
            each.update_parameters(model)
            with torch.no_grad():
                each(torch.arange(step, step + 4))
    assert expected is not None
    for each in averages:
        found = each.module
        torch.testing.assert_close(found.users.read_embeddings(ids), expected[0], atol=5e-3, rtol=0)
        for module in (found.items, found.seen):
            torch.testing.assert_close(module.read_embeddings(ids), expected[1])


def test_other_averaging_functions_raise_when_the_model_is_created() -> None:
    model = nn.Sequential(Embedding(3, name="items"), nn.Linear(3, 1))

    def geometric(averaged: Tensor, current: Tensor, _: Any) -> Tensor:
        return (averaged.abs() * current.abs()).sqrt()

    def by_distance(averaged: Tensor, current: Tensor, _: Any) -> Tensor:
        return averaged.lerp(current, (averaged - current).norm().clamp(0.1, 1).item())

    def in_place(averaged: Any, current: Any, _: Any) -> None:
        for mine, theirs in zip(averaged, current, strict=True):
            mine.copy_(torch.maximum(mine, theirs))

    for arguments in (
        {"avg_fn": geometric},
        {"avg_fn": by_distance},
        {"avg_fn": lambda a, p, _: a + p},
        {"multi_avg_fn": in_place},
        {"multi_avg_fn": lambda *_: None},
    ):
        with pytest.raises(UnsupportedError, match="no weighted sum"):
            AveragedModel(model, **arguments)
        AveragedModel(model[1], **arguments)  # without tables
    with shared_rows():
        AveragedModel(model, avg_fn=geometric)
    averaged = AveragedModel(model, device=torch.device("cpu"), avg_fn=get_ema_avg_fn())
    assert type(averaged) is AveragedModel


def test_averages_count_in_the_memory_budget() -> None:
    container = StepContainer(memory_bytes=40_000)
    items = Embedding(64, name="items", storage="memory", container=container)
    optimizer = Optimizer(items, torch.optim.SGD, lr=0.1)
    averaged = AveragedModel(items)
    ids = torch.arange(90)

    def train(begin: int) -> None:
        optimizer.zero_grad()
        items(ids[begin : begin + 10]).sum().backward()
        optimizer.step()

    for begin in range(0, 30, 10):
        train(begin)
        averaged.update_parameters(items)
    before = averaged.module.read_embeddings(ids)
    train(30)
    with pytest.raises(CapacityError, match=r"budget is 40,000. No row was changed"):
        averaged.update_parameters(items)
    assert torch.equal(averaged.module.read_embeddings(ids), before)


@pytest.mark.parametrize("created_at", [0, 2])
@pytest.mark.parametrize("plan", [None, {"items": "table_wise"}])
def test_each_rank_averages_its_rows(plan: Any, created_at: int, tmp_path: Path) -> None:
    function = get_ema_multi_avg_fn(0.6)

    def body(container: StepContainer) -> tuple[Tensor, Tensor, dict[str, int]]:
        rank, world_size = container.collective.rank, container.collective.world_size
        items = Embedding(3, name="items", initializer=NORMAL)
        averaged: Any = AveragedModel(items, multi_avg_fn=function)
        items.agent.join(container)
        optimizer = Optimizer(items, torch.optim.Adagrad, lr=0.5)
        for step in range(10):
            if step == created_at > 0:
                averaged = AveragedModel(items, multi_avg_fn=function)
            optimizer.zero_grad()
            ids = torch.tensor([step, step % 3, 7])[rank::world_size]
            (items(ids).sum() * (step - 4) * world_size).backward()
            optimizer.step()
            if step >= created_at:
                averaged.update_parameters(items)
                if step % 3 == 0:
                    with torch.no_grad():  # different ids per rank
                        averaged(torch.arange(rank, 5))
        found = averaged.module.read_embeddings(torch.arange(12))
        with torch.no_grad():
            assert torch.equal(averaged(torch.arange(12)), found)
        own_container = averaged.module.agent.container
        own_container.save(str(tmp_path / f"of-{world_size}"))
        loaded = Embedding(3, name="items", initializer=NORMAL)
        loaded.agent.join(CopyContainer(container))
        loaded.load_state_dict(averaged.module.state_dict())
        assert torch.equal(loaded.read_embeddings(torch.arange(12)), found)
        own_container.close()
        return found, items.read_embeddings(torch.arange(12)), items.num_rows()

    ((expected, expected_rows, _),) = run_containers(1, body)
    results = run_containers(2, body, plan=plan)
    for found, own, _ in results:
        torch.testing.assert_close(own, expected_rows)
        torch.testing.assert_close(found, expected)
    assert sum(count["items"] for *_, count in results) == 10
