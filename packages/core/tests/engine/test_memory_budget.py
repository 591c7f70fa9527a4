"""Steps are rejected if the tables of a rank exceed their memory budget."""

from __future__ import annotations

import numpy as np
import pytest

from sparring.contracts.ranks.collective import Collective
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.job.memory_budget import format_bytes
from sparring.errors import CapacityError, InvalidArgumentError
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.table_steps import declare_tables, descend
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

TABLES = TableConfig("small", 4), TableConfig("large", 16)
BUDGET = 200_000


def train(container: StepContainer, is_fused: bool) -> CapacityError:
    """Trains new keys in each step until a step is rejected."""
    choices = declare_tables(container, TABLES, "memory", "sgd", lr=0.1)
    for step in range(100):
        keys = np.arange(300 * step, 300 * step + 300)
        for found in container.lookup_all([("small", keys[:20].copy()), ("large", keys)]):
            assert found.shadow_id is not None
            container.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
        before = container.num_rows("large"), container.table_bytes("large")
        try:
            if is_fused:
                container.apply_methods(choices)
            else:
                container.apply(descend())
        except CapacityError as error:
            assert (container.num_rows("large"), container.table_bytes("large")) == before
            assert container.counters.steps == step > 0
            return error
    raise AssertionError("no step was refused")


def check(error: CapacityError) -> None:
    found = error.details["memory_bytes"]
    assert BUDGET < found < 2 * BUDGET
    for part in (f"{found:,} bytes", "200,000 bytes (195 KiB)", "table 'large'", "rank 0"):
        assert part in str(error)


@pytest.mark.parametrize("is_fused", [True, False])
def test_a_step_over_the_budget_is_rejected_before_a_row_changes(is_fused: bool) -> None:
    with StepContainer(memory_bytes=BUDGET) as container:
        check(train(container, is_fused))


@pytest.mark.parametrize("is_fused", [True, False])
def test_if_one_rank_exceeds_its_budget_all_reject_the_step(is_fused: bool) -> None:
    def body(collective: Collective) -> CapacityError:
        budget = BUDGET if collective.rank == 0 else None
        rendezvous = ThreadRendezvous(2)
        with StepContainer(
            collective=collective, rendezvous=rendezvous, memory_bytes=budget
        ) as container:
            error = train(container, is_fused)
            collective.barrier()
            return error

    mine, theirs = run_ranks(2, body)
    check(mine)
    assert "rank 0 cannot apply it, so no rank does: the tables of rank 0 use" in str(theirs)


def test_without_a_budget_tables_grow() -> None:
    with StepContainer() as container, pytest.raises(AssertionError, match="no step was refused"):
        train(container, True)


def test_a_budget_of_zero_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="memory_bytes must be at least 1"):
        StepContainer(memory_bytes=0)


def test_bytes_are_shown_exactly_and_in_a_unit() -> None:
    assert format_bytes(1000) == "1,000 bytes"
    assert format_bytes(5 << 30) == "5,368,709,120 bytes (5 GiB)"
