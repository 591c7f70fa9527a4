"""A failure of one rank is reported to the others at once, so that none waits for its deadline."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from sparring.contracts.storage.updates import MethodChoice, UpdateMethod, UpdateRows
from sparring.contracts.tables.hyperparameters import HyperParameters
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.errors import InvalidArgumentError, PartialStepError, PeerFailure
from sparring_testing.processes.rank_threads import run_containers
from sparring_testing.processes.table_steps import accumulate, descend

IDS = np.arange(40)
SOON, LONG = 20.0, 60.0
"""Seconds: how soon ranks must be told, and what they would wait if nobody did."""


TABLE = TableConfig("films", 2, initializer="zeros")


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

    def body(made: StepContainer) -> Exception:
        method = Descent()
        choices = {"films": MethodChoice(method, HyperParameters(), 1)}
        made.declare(TABLE)
        accumulate(made, {"films": IDS})
        made.apply_methods(choices)
        accumulate(made, {"films": IDS})
        if made.collective.rank == 1:
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

    told, failed = run_containers(2, body, LONG)
    assert told.details["rank"] == 1
    assert failed.__cause__ is failure
    assert "reached other ranks only" in str(failed)
    assert failed.untouched == ("films",)


def test_ids_of_a_manual_step_that_one_rank_rejects_are_rejected_by_all_and_training_continues() -> (
    None
):
    ended = threading.Barrier(2)

    def body(made: StepContainer) -> InvalidArgumentError:
        made.declare(TABLE)
        begin = time.monotonic()
        ids = IDS + 0.5 if made.collective.rank == 1 else IDS
        with pytest.raises(InvalidArgumentError) as caught, made.step(descend(1.0)) as step:
            step.lookup("films", ids)
        assert time.monotonic() - begin < SOON
        ended.wait(LONG)  # the end of a rank would also notify the other
        with made.step(descend(1.0)) as step:
            found = step.lookup("films", IDS)
            step.accumulate(found, np.ones_like(found.rows))
        assert made.counters.steps == 1
        assert rows(made) == -1
        return caught.value

    told, refused = run_containers(2, body, LONG)
    assert told.details["rank"] == 1
    assert "found dtype float64" in str(refused)
    assert str(refused) in str(told)


def test_a_lookup_ahead_that_fails_on_one_rank_fails_on_all_when_it_is_finished() -> None:
    def body(made: StepContainer) -> Exception:
        made.declare(TABLE)
        is_failing = made.collective.rank == 1
        own_error = InvalidArgumentError("no such batch") if is_failing else None
        ahead = made.prefetch([("films", IDS)], own_error=own_error)
        with pytest.raises(InvalidArgumentError) as caught:
            ahead.finish()
        made.collective.barrier()
        assert len(made.lookup("films", IDS).rows) == len(IDS)
        made.collective.barrier()
        return caught.value

    told, refused = run_containers(2, body, LONG)
    assert str(refused) == "no such batch"
    assert told.details["rank"] == 1
