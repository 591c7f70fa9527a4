"""If a rank cannot contribute its gradients to a step, no rank waits for them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from sparring.contracts.ranks.collective import Collective
from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.table import TableConfig
from sparring.engine.apply import gradients
from sparring.engine.container import StepContainer
from sparring.errors import DeviceMemoryError, SparringError
from sparring.updates.resolve import parse_hyper, resolve_method
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

KEYS = np.arange(6)
BROKEN = 1
SECONDS = 60.0


def add_one(updates: Any) -> None:
    for each in updates:
        each.rows += 1


@pytest.mark.parametrize(
    ("world_size", "is_fused"),
    [(3, True), (3, False), (1, False)],  # on one rank, a step by methods sums natively
    ids=["methods", "function", "alone"],
)
def test_a_rank_that_cannot_add_its_gradients_notifies_all(
    world_size: int, is_fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = resolve_method("sgd")
    choice = MethodChoice(method, parse_hyper(method, {"lr": 1.0}), 1)
    add_up = gradients.sum_own_gradients
    failures = [DeviceMemoryError("the device is full")]

    def fail(state: Any, *arguments: Any, **named: Any) -> Any:
        if failures and state.collective.rank == BROKEN % world_size:
            raise failures.pop()
        return add_up(state, *arguments, **named)

    def train(made: StepContainer) -> None:
        found = made.lookup("item", KEYS)
        assert found.shadow_id is not None
        made.resources.accumulate(found.shadow_id, np.ones((len(found.keys), 2), np.float32))
        if is_fused:
            made.apply_methods({"item": choice})
        else:
            made.apply(add_one)

    def body(collective: Collective) -> tuple[SparringError, float]:
        made = StepContainer(
            collective=collective, rendezvous=ThreadRendezvous(collective.world_size)
        )
        made.declare(TableConfig("item", 2, initializer="zeros"))
        begin = time.monotonic()
        with pytest.raises(SparringError) as caught:
            train(made)
        seconds = time.monotonic() - begin
        train(made)
        assert made.counters.steps == 1
        return caught.value, seconds

    monkeypatch.setattr(gradients, "sum_own_gradients", fail)
    for rank, (error, seconds) in enumerate(run_ranks(world_size, body, deadline=SECONDS)):
        assert type(error) is DeviceMemoryError
        assert "the device is full" in str(error)
        assert (f"rank {BROKEN} cannot apply it" in str(error)) == (rank != BROKEN % world_size)
        assert seconds < SECONDS / 2


def test_an_owner_that_cannot_add_gradients_before_the_step_notifies_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    push = gradients._push

    def failing(state: Any, *arguments: Any, **named: Any) -> Any:
        pushed = push(state, *arguments, **named)
        if state.collective.rank == BROKEN:
            pushed[0].error = DeviceMemoryError("the device is full")
        return pushed

    def body(collective: Collective) -> str:
        made = StepContainer(collective=collective, rendezvous=ThreadRendezvous(2))
        made.declare(TableConfig("item", 2, initializer="zeros"))
        with pytest.raises(DeviceMemoryError) as caught:
            gradients.sum_gradients(made.state)
        assert not made.resources.summed
        return str(caught.value)

    monkeypatch.setattr(gradients, "_push", failing)
    said = run_ranks(2, body, deadline=SECONDS)
    assert "rank 1 failed: the device is full" in said[0]
