"""Ranks as threads of one process, connected by the local collective."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sparring import LocalGroup, StepContainer
from sparring.contracts import Collective
from sparring.errors import PeerFailure
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

__all__ = ["run_containers", "run_ranks"]

Join = Callable[[LocalGroup, int], Collective]
"""Returns the collective of a rank of a group."""


def run_ranks(
    world_size: int,
    body: Callable[[Collective], Any],
    deadline: float = 60.0,
    join: Join | None = None,
) -> list[Any]:
    """Runs `body` on each rank, each on its own thread.

    Args:
        world_size: number of ranks.
        body: receives the collective of the rank.
        deadline: deadline of the collectives, in seconds.
        join: opens the collectives, which are closed after `body`. None: collectives of a `LocalGroup`,
            which stay open.

    Returns:
        The results of `body`, ordered by rank.

    Raises:
        Exception: the error of the first rank that failed by itself, or else of the first rank that
            reported the failure of another one.
    """
    group = LocalGroup(world_size, deadline_seconds=deadline)

    def run(rank: int) -> Any:
        if join is None:
            return body(group.join(rank))
        with join(group, rank) as collective:
            return body(collective)

    with ThreadPoolExecutor(world_size) as threads:
        futures = [threads.submit(run, rank) for rank in range(world_size)]
    errors = [error for each in futures if (error := each.exception()) is not None]
    # An error that another rank's error caused is less informative.
    for error in sorted(errors, key=lambda each: isinstance(each, PeerFailure)):
        raise error
    return [each.result() for each in futures]


def run_containers(
    world_size: int,
    body: Callable[[StepContainer], Any],
    deadline: float = 60.0,
    join: Join | None = None,
    **options: Any,
) -> list[Any]:
    """Runs `body` with a container on each rank, each on its own thread.

    Args:
        world_size: number of ranks.
        body: receives the container of the rank, which is closed afterwards.
        deadline: deadline of the collectives, in seconds.
        join: opens the collectives; see `run_ranks`.
        options: more arguments of `StepContainer`. The default of `rendezvous` is a `ThreadRendezvous`.

    Returns:
        The results of `body`, ordered by rank.
    """
    options = {"rendezvous": ThreadRendezvous(world_size)} | options

    def run(collective: Collective) -> Any:
        with StepContainer(collective=collective, **options) as container:
            return body(container)

    return run_ranks(world_size, run, deadline, join)
