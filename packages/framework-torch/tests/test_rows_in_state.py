"""`state_dict` contains the rows: torch.save, safetensors, torch.distributed.checkpoint."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import nn

from sparring import LocalGroup, StepContainer
from sparring.contracts import Collective
from sparring.errors import (
    CapacityError,
    DataError,
    InvalidArgumentError,
    SnapshotError,
    UnsupportedError,
)
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_torch import Embedding, EmbeddingBag, gather_state, restore_state, without_rows
from sparring_torch.state import rows_in_state

from .saved_models import NATIVES, Model, optimizer_of, rows_of, train


def through_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("is_loaded_first", [False, True])
@pytest.mark.parametrize("native", NATIVES)
def test_training_continues_as_if_never_interrupted(native: str, is_loaded_first: bool) -> None:
    model = Model()
    optimizer = optimizer_of(model, native)
    train(model, optimizer, 0, 4)
    saved = through_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    rows, expected = rows_of(model), train(model, optimizer, 4, 8)

    other = Model()
    if is_loaded_first:
        assert str(other.load_state_dict(saved["model"])) == "<All keys matched successfully>"
        assert other.users.agent.container is other.seen.agent.container
        with torch.no_grad():
            other(torch.arange(5))  # evaluated before there is an optimizer
    resumed = optimizer_of(other, native)
    if not is_loaded_first:
        other.load_state_dict(saved["model"])
    assert rows_of(other) == rows
    assert other.users.agent.container.counters.steps == 4
    resumed.load_state_dict(saved["optimizer"])
    assert train(other, resumed, 4, 8) == expected
    assert rows_of(other) == rows_of(model)


def test_a_loaded_model_is_not_trained_without_an_optimizer() -> None:
    model, other = Model(), Model()
    train(model, optimizer_of(model), 0, 2)
    other.load_state_dict(model.state_dict())
    other(torch.arange(3)).backward()
    with pytest.raises(InvalidArgumentError, match="no optimizer applies them"):
        other(torch.arange(3))


def test_loaded_rows_replace_existing_rows() -> None:
    model, other = Model(), Model()
    one, two = optimizer_of(model), optimizer_of(other)
    train(model, one, 0, 2)
    train(other, two, 20, 24)
    saved = model.state_dict()
    two.zero_grad()
    other(torch.arange(3)).backward()  # dropped, because its rows are gone
    other.load_state_dict(saved)
    two.step()
    two.zero_grad()
    assert rows_of(other) == rows_of(model)
    # A state is a copy.
    train(model, one, 2, 3)
    other.load_state_dict(copy.deepcopy(saved))
    assert rows_of(other) != rows_of(model)
    # An empty state removes all rows.
    fresh = Model()
    optimizer_of(fresh)
    other.load_state_dict(fresh.state_dict())
    assert rows_of(other) == {"users": {}, "items": {}}


@pytest.mark.parametrize("storage", ["memory", "hkv"])
def test_a_load_between_forward_and_backward(storage: str) -> None:
    model, other = Model(storage=storage), Model(storage=storage)
    train(model, optimizer_of(model), 0, 2)
    optimizer = optimizer_of(other)
    train(other, optimizer, 0, 9)
    optimizer.zero_grad()
    loss = other.items(torch.arange(40)).sum()
    other.load_state_dict(model.state_dict())
    with pytest.raises(InvalidArgumentError, match=r"dropped before .* run the forward pass again"):
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    assert rows_of(other) == rows_of(model)
    train(other, optimizer, 0, 2)


def test_a_shared_table_is_saved_once() -> None:
    model = Model()
    train(model, optimizer_of(model), 0, 40)
    state = model.state_dict()
    sizes = {name: len(value) for name, value in state.items() if name.endswith("_extra_state")}
    assert sizes["items._extra_state"] > 1000 > sizes["seen._extra_state"]
    wrapped = nn.ModuleDict({"one": model, "two": model}).state_dict()
    assert len(wrapped["one.users._extra_state"]) > 1000 > len(wrapped["two.users._extra_state"])
    nn.ModuleDict({"one": (other := Model()), "two": other}).load_state_dict(wrapped)
    assert rows_of(other) == rows_of(model)
    # It is complete without the other module.
    alone = EmbeddingBag(3, name="items", mode="sum", storage="memory")
    alone.load_state_dict(model.seen.state_dict())
    assert torch.equal(alone(torch.tensor([[3]])), model.seen(torch.tensor([[3]])))
    parts = {"_extra_state": state["seen._extra_state"]}
    with pytest.raises(
        InvalidArgumentError, match=r"in the entry of a previous module.*whole model"
    ):
        EmbeddingBag(3, name="items", storage="memory").load_state_dict(parts)
    # Modules with separate containers stay separate.
    apart = Model()
    for each in (apart.users, apart.items):
        each(torch.tensor([1]))
    apart.load_state_dict(state)
    assert rows_of(apart) == rows_of(model)
    assert torch.equal(apart.seen(torch.tensor([[3]])), model.seen(torch.tensor([[3]])))


def test_filters_of_admission_are_saved() -> None:
    admission = {"kind": "frequency", "k": 2}

    def made() -> Model:
        return Model(admission=admission)

    model, other = made(), made()
    optimizer = optimizer_of(model)
    train(model, optimizer, 0, 1)
    saved = model.state_dict()
    resumed = optimizer_of(other)
    other.load_state_dict(saved)
    train(model, optimizer, 0, 1)
    train(other, resumed, 0, 1)
    assert rows_of(other) == rows_of(model)
    assert len(rows_of(model)["users"]) == 5


def test_rows_expire_when_they_would_have() -> None:
    model = Model(expire={"after_steps": 4})
    optimizer = optimizer_of(model)
    train(model, optimizer, 0, 3)
    saved = through_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    other, copied = Model(expire={"after_steps": 4}), copy.deepcopy(model)
    for each in (other, copied):
        resumed = optimizer_of(each)
        if each is other:
            each.load_state_dict(saved["model"])
        resumed.load_state_dict(copy.deepcopy(saved["optimizer"]))
        train(each, resumed, 3, 6)
    train(model, optimizer, 3, 6)
    assert 0 not in rows_of(model)["users"]
    assert rows_of(other) == rows_of(copied) == rows_of(model)


def test_safetensors_accepts_the_state(tmp_path: Path) -> None:
    model, other = Model(), Model()
    train(model, optimizer_of(model), 0, 3)
    state = model.state_dict()
    save_file(state, tmp_path / "model.safetensors")
    found = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in state.items())
    other.load_state_dict(found)
    assert rows_of(other) == rows_of(model)


def test_distributed_checkpoints_keep_rows(tmp_path: Path) -> None:
    model, other = Model(), Model()
    optimizer, resumed = optimizer_of(model), optimizer_of(other)
    train(model, optimizer, 0, 3)
    saved = {"model": model.state_dict()}
    dcp.save(saved, checkpoint_id=tmp_path / "first", no_dist=True)
    state: dict[str, Any] = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=tmp_path / "first", no_dist=True)
    other.load_state_dict(state["model"])
    assert rows_of(other) == rows_of(model)
    # As an object with a state, into a model that has rows.
    train(model, optimizer, 3, 5)
    train(other, resumed, 7, 8)
    dcp.save({"model": model}, checkpoint_id=tmp_path / "second", no_dist=True)
    dcp.load({"model": other}, checkpoint_id=tmp_path / "second", no_dist=True)
    assert rows_of(other) == rows_of(model)


@pytest.mark.parametrize("strict", [True, False])
def test_a_state_without_rows_is_rejected(strict: bool) -> None:
    model = Model()
    with without_rows():
        dense = model.state_dict()
    assert dense.keys() == {"top.weight", "top.bias"}
    with pytest.raises(InvalidArgumentError, match=r"no rows of tables users.*without_rows\(\):`"):
        model.load_state_dict(dense, strict=strict)
    with without_rows():
        model.load_state_dict(dense, strict=strict)


def test_states_of_snapshots_have_no_rows(tmp_path: Path) -> None:
    model, other = Model(), Model()
    optimizer, resumed = optimizer_of(model), optimizer_of(other)
    train(model, optimizer, 0, 3)
    states = {"torch": gather_state(model=model, optimizer=optimizer)}
    assert not any("_extra_state" in name for name in states["torch"].arrays)
    model.users.agent.container.save(str(tmp_path / "one"), states=states)
    loaded = other.users.agent.container.load(str(tmp_path / "one"))
    restore_state(loaded.states["torch"], model=other, optimizer=resumed)
    assert train(other, resumed, 3, 5) == train(model, optimizer, 3, 5)


def test_states_that_do_not_match_are_rejected() -> None:
    model = Model()
    train(model, optimizer_of(model), 0, 2)
    saved = model.items.state_dict()
    wrong: list[tuple[Callable[[], Embedding], Any, str]] = [
        (lambda: Embedding(4, name="items"), InvalidArgumentError, "have dim 3, expected"),
        (
            lambda: Embedding(3, name="x"),
            InvalidArgumentError,
            "found saved rows of tables items; name the tables",
        ),
        (
            lambda: Embedding(3, name="items", num_embeddings=3),
            CapacityError,
            "increase num_embeddings",
        ),
    ]
    for make, kind, message in wrong:
        with pytest.raises(kind, match=message):
            make().load_state_dict(saved)
    other = Model()
    optimizer_of(other, "rowwise_adagrad")
    with pytest.raises(InvalidArgumentError, match=r"state of Adam.*by rowwise_adagrad.*Optimizer"):
        other.items.load_state_dict(saved)
    plain = saved["_extra_state"]
    flipped = plain.clone()
    flipped[-9] ^= 1
    for damaged in (
        plain[:-9],
        plain[:4],
        torch.zeros(3),
        {"rows": 1},
        plain.new_zeros(50),
        flipped,
    ):
        with pytest.raises(DataError, match="load a"):
            other.items.load_state_dict({"_extra_state": damaged})


def test_many_rows_name_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_in_state, "MAX_BYTES", 100)
    model = Model()
    optimizer = optimizer_of(model)
    train(model, optimizer, 0, 3)
    container = model.users.agent.container
    with pytest.raises(
        UnsupportedError, match=r"bytes, more than the maximum of 100.*step 3.*there is none: call"
    ):
        model.state_dict()
    container.save(str(tmp_path / "three"), blocking=False)
    saved = through_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    assert len(saved["model"]["users._extra_state"]) < 1000
    rows, expected = rows_of(model), train(model, optimizer, 3, 5)
    with pytest.raises(UnsupportedError, match="the newest is of step 3: call"):
        model.state_dict()
    container.save(str(tmp_path / "five"))
    model.state_dict()
    container.assign("items", [1], [[1.0, 2.0, 3.0]])  # rows that no snapshot has
    with pytest.raises(UnsupportedError, match="there is none: call"):
        model.state_dict()

    for is_loaded_first in (True, False):
        other = Model()
        if is_loaded_first:
            other.load_state_dict(saved["model"])
        resumed = optimizer_of(other)
        if not is_loaded_first:
            other.load_state_dict(saved["model"])
        resumed.load_state_dict(copy.deepcopy(saved["optimizer"]))  # torch keeps the given object
        assert rows_of(other) == rows
        assert torch.equal(
            other.state_dict()["users._extra_state"], saved["model"]["users._extra_state"]
        )
        assert train(other, resumed, 3, 5) == expected

    (tmp_path / "three").rename(tmp_path / "away")
    with pytest.raises(SnapshotError, match=r"cannot be read.*restore that snapshot at .*three"):
        Model().load_state_dict(saved["model"])
    container.save(str(tmp_path / "three"))
    with pytest.raises(SnapshotError, match=r"but the one found there has hash"):
        Model().load_state_dict(saved["model"])


def test_ranks_name_a_snapshot(tmp_path: Path) -> None:
    group = LocalGroup(2, deadline_seconds=30)

    def body(collective: Collective) -> tuple[Any, list[float]]:
        container = StepContainer(collective=collective, rendezvous=ThreadRendezvous(2))
        model = Model(container)
        optimizer = optimizer_of(model)
        # A new model gives it for loading, and it reports that it has no rows.
        before = model.state_dict()
        with pytest.raises(UnsupportedError, match=r"by 2 ranks before their first step"):
            model.load_state_dict(before)
        train(model, optimizer, 0, 3)
        with pytest.raises(UnsupportedError, match=r"users are on 2 ranks.*step 3 instead"):
            model.state_dict()
        container.save(str(tmp_path / "three"))
        saved = through_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        after = train(model, optimizer, 3, 5)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        assert train(model, optimizer, 3, 5) == after
        lone = Embedding(3, name="items", storage="memory").state_dict()
        with pytest.raises(
            UnsupportedError, match="of one rank, but there are 2 ranks: load it in one"
        ):
            model.items.load_state_dict(lone)
        container.close()
        return saved, after

    with ThreadPoolExecutor(2) as threads:
        (saved, _), (second, _) = threads.map(body, [group.join(rank) for rank in range(2)])
    for name, value in saved["model"].items():
        if name.endswith("_extra_state"):
            assert torch.equal(value, second["model"][name])
    # One process loads the rows of both.
    other = Model()
    other.load_state_dict(saved["model"])
    resumed = optimizer_of(other)
    resumed.load_state_dict(saved["optimizer"])
    assert sorted(rows_of(other)["users"]) == sorted({3 * each for each in range(7)})
    train(other, resumed, 3, 5)
