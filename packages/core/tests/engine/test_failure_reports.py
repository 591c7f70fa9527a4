"""A failure of one rank is reported to the others at once, so that none waits for its deadline."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from sparring.contracts.ranks.collective import Collective
from sparring.contracts.storage.updates import MethodChoice, UpdateMethod, UpdateRows
from sparring.contracts.tables.hyperparameters import HyperParameters
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.errors import InvalidArgumentError, PartialStepError, PeerFailure
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

IDS = np.arange(40)
SOON, LONG = 20.0, 60.0
"""Seconds: how soon ranks must be told, and what they would wait if nobody did."""


def container(collective: Collective, **table: Any) -> StepContainer:
    rendezvous = ThreadRendezvous(collective.world_size)
    made = StepContainer(collective=collective, rendezvous=rendezvous)
    made.declare(TableConfig("films", 2, initializer="zeros", **table))
    return made


def accumulate(made: StepContainer) -> None:
    found = made.lookup("films", IDS)
    assert found.shadow_id is not None
    made.resources.accumulate(found.shadow_id, np.ones_like(found.rows))


def rows(made: StepContainer) -> float:
    """Returns the value of this rank's rows, which are all equal."""
    mine = np.concatenate([chunk.rows for chunk in made.storage("films").scan()])
    assert len(np.unique(mine)) == 1
    return float(mine[0, 0])


class Descent(UpdateMethod):
    """A method written in Python, which gets rows in arrays."""

    name = "descent"
    hyperparameters = HyperParameters

    def __init__(self) -> None:
        self.failure: BaseException | None = None

    def state_width(self, dim: int) -> int:
        return 0

    def update(self, rows: UpdateRows, hyper: HyperParameters) -> None:
        rows.embeddings -= rows.gradients
        if self.failure is not None:
            raise self.failure


@pytest.mark.parametrize("failure", [MemoryError("no more"), FloatingPointError("overflow")])
def test_an_update_method_that_fails_on_one_rank_after_the_vote_is_reported_to_the_others(
    failure: Exception,
) -> None:
    ended = threading.Barrier(2)

    def body(collective: Collective) -> Exception:
        method = Descent()
        choices = {"films": MethodChoice(method, HyperParameters(), 1)}
        with container(collective) as made:
            accumulate(made)
            made.apply_methods(choices)
            accumulate(made)
            if collective.rank == 1:
                method.failure = failure
                with pytest.raises(PartialStepError) as mine:
                    made.apply_methods(choices)
                ended.wait(LONG)  # notified, instead of noticing the end of this rank
                assert rows(made) == -1
                return mine.value
            made.apply_methods(choices)
            begin = time.monotonic()
            with pytest.raises(PeerFailure) as theirs:
                made.lookup("films", IDS)
            assert time.monotonic() - begin < SOON
            ended.wait(LONG)
            assert rows(made) == -2
            return theirs.value

    told, failed = run_ranks(2, body, deadline=LONG)
    assert told.details["rank"] == 1
    assert failed.__cause__ is failure
    assert "reached other ranks only" in str(failed)
    assert failed.untouched == ("films",)


def test_ids_of_a_manual_step_that_one_rank_rejects_are_rejected_by_all_and_training_continues() -> (
    None
):
    ended = threading.Barrier(2)

    def descend(updates: Any) -> None:
        for each in updates:
            each.rows -= each.gradients

    def body(collective: Collective) -> InvalidArgumentError:
        with container(collective) as made:
            begin = time.monotonic()
            ids = IDS + 0.5 if collective.rank == 1 else IDS
            with pytest.raises(InvalidArgumentError) as caught, made.step(descend) as step:
                step.lookup("films", ids)
            assert time.monotonic() - begin < SOON
            ended.wait(LONG)  # the end of a rank would also notify the other
            with made.step(descend) as step:
                found = step.lookup("films", IDS)
                step.accumulate(found, np.ones_like(found.rows))
            assert made.counters.steps == 1
            assert rows(made) == -1
            return caught.value

    told, refused = run_ranks(2, body, deadline=LONG)
    assert told.details["rank"] == 1
    assert "found dtype float64" in str(refused)
    assert str(refused) in str(told)


def test_a_lookup_ahead_that_fails_on_one_rank_fails_on_all_when_it_is_finished() -> None:
    def body(collective: Collective) -> Exception:
        own_error = InvalidArgumentError("no such batch") if collective.rank == 1 else None
        with container(collective) as made:
            ahead = made.prefetch([("films", IDS)], own_error=own_error)
            with pytest.raises(InvalidArgumentError) as caught:
                ahead.finish()
            collective.barrier()
            assert len(made.lookup("films", IDS).rows) == len(IDS)
            collective.barrier()
            return caught.value

    told, refused = run_ranks(2, body, deadline=LONG)
    assert str(refused) == "no such batch"
    assert told.details["rank"] == 1
