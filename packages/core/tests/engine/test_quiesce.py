"""Operations wait for background work in the order of the tables in `Purpose`."""

from __future__ import annotations

import re
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from sparring.engine.state import Purpose, quiesce, try_quiesce
from sparring.runtime.lifecycle import ProcessGuard

DOCUMENT = Purpose.__doc__ or ""
DOCUMENTED = {
    name: [int(step) for step in steps.split()]
    for name, steps in re.findall(r"\| ([A-Z]+) +\| ([\d ]+)\|", DOCUMENT)
}


class Busy:
    """A state with all kinds of background work, one of which fails.

    It records which work is joined or checked.
    """

    def __init__(self, failing: int | None = None) -> None:
        self.steps: list[int] = []
        self._failing = failing
        self.discarded = 0
        running = SimpleNamespace(future=SimpleNamespace(done=self._pulled, exception=lambda: None))
        storage = SimpleNamespace(wait_for_capacity=self._at(7))
        self.process = ProcessGuard("a state")
        self.loads = SimpleNamespace(task=1, ended=1, join=self._at(1), check=self._at(3))
        self.prefetches = SimpleNamespace(unfinished=[running])
        self.flushes = SimpleNamespace(task=1, join=self._at(4))
        self.saves = SimpleNamespace(running=1, join=self._at(5), wait_for_capacity=self._at(8))
        self.events = SimpleNamespace(first_failed=1, check=self._at(6))
        self.tables = SimpleNamespace(entries={"films": SimpleNamespace(written_back=storage)})

    def _pulled(self) -> bool:
        self.steps.append(2)
        return True

    def _at(self, step: int) -> Any:
        def call(*_: object) -> None:
            self.steps.append(step)
            if step == self._failing:
                raise OSError(f"step {step}")

        return call


def test_every_purpose_is_in_the_table() -> None:
    assert set(DOCUMENTED) == set(Purpose.__members__)


@pytest.mark.parametrize("purpose", Purpose, ids=lambda each: each.name)
def test_steps_of_a_purpose_run_in_order(purpose: Purpose) -> None:
    state: Any = Busy()
    quiesce(state, purpose)
    assert state.steps == DOCUMENTED[purpose.name] == sorted(state.steps)


@pytest.mark.parametrize("purpose", Purpose, ids=lambda each: each.name)
def test_failures_from_the_third_step_on_are_returned_and_end_it(purpose: Purpose) -> None:
    for step in DOCUMENTED[purpose.name]:
        if step < 3:
            continue
        state: Any = Busy(step)
        assert str(try_quiesce(state, purpose)) == f"step {step}"
        assert state.steps == [each for each in DOCUMENTED[purpose.name] if each <= step]
        with pytest.raises(OSError, match=f"step {step}"):
            quiesce(Busy(step), purpose)  # type: ignore[arg-type]


def test_a_known_error_is_returned_once_the_exchange_is_free() -> None:
    state: Any = Busy()
    known = ValueError("bad ids")
    assert try_quiesce(state, Purpose.WRITE, known) is known
    assert state.steps == [1, 2]


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_failed_prefetch_is_raised_if_there_are_other_ranks(world_size: int) -> None:
    state: Any = Busy()
    future: Future[None] = Future()
    future.set_exception(OSError("not pulled"))
    dropped: list[int] = []
    state.prefetches.unfinished = [SimpleNamespace(future=future)]
    state.collective = SimpleNamespace(world_size=world_size)
    state.resources = SimpleNamespace(discard=lambda: dropped.append(1))
    if world_size == 1:
        assert try_quiesce(state, Purpose.WRITE) is None  # `Prefetch.finish` raises it
    else:
        with pytest.raises(OSError, match="not pulled"):
            try_quiesce(state, Purpose.WRITE)
    assert len(dropped) == world_size - 1


def test_nothing_is_joined_if_nothing_runs() -> None:
    state: Any = Busy()
    state.loads.task = state.loads.ended = state.flushes.task = state.saves.running = None
    state.prefetches.unfinished = []
    quiesce(state, Purpose.WRITE)
    assert state.steps == [6, 7]
