"""What one rank refuses, all ranks refuse: the last thing before rows are written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparring.errors import DeviceError, PartialStepError
from sparring.memory_budget import check_memory

if TYPE_CHECKING:
    from sparring.step import StepContainer

__all__ = ["Commit", "agreed", "committing"]


@dataclass(slots=True)
class Commit:
    """What ranks tell each other before they write."""

    num_rows: dict[str, int]
    """Table → rows that this rank will change."""
    touched: list[str]
    """The tables of which any rank will change rows, in the order of declaration."""


@contextmanager
def committing(container: StepContainer) -> Iterator[Commit]:
    """What the block refuses, all ranks refuse: they go on from its end together, or not at all."""
    commit = Commit({}, [])
    refusal: BaseException | None = None
    try:
        yield commit
        check_memory(container)
    except Exception as error:
        if container.collective.world_size == 1:
            raise
        refusal = error
    names = list(container.tables)
    totals = container.exchange.commit([commit.num_rows.get(name, 0) for name in names], refusal)
    commit.touched = [name for name, total in zip(names, totals, strict=True) if total]


@contextmanager
def agreed(container: StepContainer) -> Iterator[None]:
    """Surrounds what comes after `committing` and before the first write.

    Raises:
        PartialStepError: this rank, of several, had no memory, its device failed, or numpy was told to
            raise what its numbers met; the others have applied the step.
    """
    try:
        yield
    except (DeviceError, MemoryError, FloatingPointError) as error:  # others meet all ranks alike
        if container.collective.world_size == 1:
            raise
        container.exchange.give_up(error)
        names = tuple(container.tables)
        raise PartialStepError(
            f"step {container.counters.steps + 1} reached other ranks only: here it failed when all "
            f"had agreed to apply it ({type(error).__name__}: {error}). No row of this rank has "
            "changed. Mend what failed, then restart all ranks from the last snapshot",
            written=(),
            failed=(),
            untouched=names,
        ) from error
