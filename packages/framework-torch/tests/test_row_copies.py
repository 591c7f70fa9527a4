"""copy.deepcopy, pickle and torch.save copy rows like weights; `shared_rows` shares them."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from sparring import LocalGroup, StepContainer, TableConfig, open_storage
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_torch import Embedding, Optimizer, shared_rows
from sparring_torch.state import rows_in_state

from .saved_models import Model, optimizer_of, rows_of, train


def pickled(model: Model) -> Model:
    copied: Model = pickle.loads(pickle.dumps(model))
    return copied


def saved(model: Model) -> Model:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copied: Model = torch.load(file, weights_only=False)
    return copied


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved])
def test_a_copy_has_the_rows_and_trains_separately(copied: Callable[[Model], Model]) -> None:
    model, reference = Model(), Model()
    optimizer, expected = optimizer_of(model), optimizer_of(reference)
    train(model, optimizer, 0, 4)
    train(reference, expected, 0, 4)
    other = copied(model)
    before = rows_of(model)
    assert rows_of(other) == before
    assert other.items.agent.container is other.seen.agent.container is other.users.agent.container
    assert other.items.agent.container is not model.items.agent.container
    # The copy trains like the original, with a copy of its optimizer's state.
    resumed = optimizer_of(other)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert train(other, resumed, 4, 7) == train(reference, expected, 4, 7)
    assert rows_of(other) == rows_of(reference)
    assert rows_of(model) == before
    train(model, optimizer, 4, 7)
    assert rows_of(model) == rows_of(other)


def test_copies_before_the_first_lookup_have_no_rows() -> None:
    model = Model()
    other = pickled(copy.deepcopy(model))
    assert not other.users.agent.has_container
    train(other, optimizer_of(other), 0, 1)
    assert rows_of(model) == {"users": {}, "items": {}}


def test_the_name_of_a_copy_is_used() -> None:
    data = pickle.dumps(Embedding(2, storage="memory"))
    copied = pickle.loads(data)
    assert Embedding(2, storage="memory").name != copied.name


def test_an_object_that_cannot_be_copied_raises_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = Embedding(2, name="t", storage=open_storage("memory", TableConfig("t", 2)))
    with pytest.raises(UnsupportedError, match=r"'t' was given an open storage. Copy it in `with"):
        copy.deepcopy(given)
    ranks = StepContainer(collective=LocalGroup(2).join(0), rendezvous=ThreadRendezvous(2))
    with pytest.raises(UnsupportedError, match=r"is on 2 ranks.*container.save\(url\)"):
        pickle.dumps(Embedding(2, name="t", container=ranks))
    model = Model()
    optimizer = optimizer_of(model)
    train(model, optimizer, 0, 1)
    monkeypatch.setattr(rows_in_state, "MAX_BYTES", 100)
    for attempt in (copy.deepcopy, pickle.dumps):
        with pytest.raises(UnsupportedError, match="bytes of rows, more than the maximum of 100"):
            attempt(model)


def shared(model: nn.Module) -> Any:
    with shared_rows():
        return copy.deepcopy(model)


def test_a_shared_copy_reads_live_rows_and_rejects_training() -> None:
    model = Model()
    early = shared(model)  # created before there is a container
    optimizer = optimizer_of(model)
    copied = shared(model)
    ids = torch.arange(4) * 3
    for each in (early, copied):
        each.eval()
    for step in range(3):
        train(model, optimizer, step, step + 1)
        for each in (early, copied):
            assert torch.equal(each.users(ids), model.users(ids))
            assert torch.equal(each.seen(ids[None]), model.seen(ids[None]))
    copied.train()
    with pytest.raises(UnsupportedError, match=r"shares the rows of tables users.*call eval\(\)"):
        copied(ids)
    compiled = torch.compile(copied.users, backend="eager", fullgraph=True)
    with pytest.raises(UnsupportedError, match=r"cannot train them"):
        compiled(ids).sum().backward()
    with torch.no_grad():
        copied(ids)
    with pytest.raises(UnsupportedError, match="give the Optimizer the modules that are trained"):
        Optimizer(copied, "sgd", lr=0.1)
    # A copy of it has separate rows again.
    own = copy.deepcopy(copied)
    assert rows_of(own) == rows_of(model)
    train(own, optimizer_of(own), 0, 1)
    assert rows_of(own) != rows_of(model)


def test_a_compiled_copy_that_shares_rows_on_a_device_does_not_train_them() -> None:
    users = Embedding(4, name="users", device="emulated")
    Optimizer(users, "sgd", lr=0.1)
    with shared_rows():
        copied = copy.deepcopy(users)
    compiled = torch.compile(copied, backend="eager", fullgraph=True)
    with pytest.raises(UnsupportedError, match=r"cannot train them"):
        compiled(torch.arange(3)).sum().backward()


def test_a_pickle_of_a_shared_copy_contains_the_rows() -> None:
    model = Model()
    train(model, optimizer_of(model), 0, 1)
    assert rows_of(pickled(shared(model))) == rows_of(model)


def test_averaged_models_average_the_dense_part() -> None:
    model = Model()
    optimizer = optimizer_of(model)
    with shared_rows():
        averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    expected = model.top.weight.detach().clone()
    for step in range(4):
        train(model, optimizer, step, step + 1)
        averaged.update_parameters(model)
        now = model.top.weight.detach()
        expected = now.clone() if step == 0 else expected.lerp(now, 0.5)
    torch.testing.assert_close(averaged.module.top.weight.detach(), expected)
    averaged.eval()
    ids = torch.arange(5)
    assert torch.equal(averaged.module.users(ids), model.users(ids))

    # Both resume, and a served model loads the state of the average.
    states = copy.deepcopy((model.state_dict(), averaged.state_dict()))
    served = Model()
    served.load_state_dict(averaged.module.state_dict())
    assert torch.equal(served.eval()(ids), averaged(ids))
    other = Model()
    with shared_rows():
        resumed = AveragedModel(other)
    resumed.load_state_dict(states[1])  # there are no rows yet
    other.load_state_dict(states[0])
    resumed.load_state_dict(states[1])
    assert torch.equal(resumed.eval()(ids), averaged(ids))
    train(model, optimizer, 4, 5)
    with pytest.raises(
        InvalidArgumentError, match="the state_dict has different ones; load the state of"
    ):
        averaged.load_state_dict(states[1])


def test_tables_on_a_device_are_copied_there(device_place: Any) -> None:
    with device_place.device:
        model = Model(**device_place.table)
        optimizer = optimizer_of(model)
        train(model, optimizer, 0, 3)
        before = rows_of(model)
        copied, loaded = copy.deepcopy(model), Model(**device_place.table)
        loaded.load_state_dict(model.state_dict())
        for each in (copied, loaded):
            assert rows_of(each) == before
            train(each, optimizer_of(each), 3, 4)
        assert rows_of(model) == before
