"""The gradients of a step: taken from where they were accumulated, and brought to their owners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sparring.collective import Reduction
from sparring.exchange import OwnedGradients, PushRequest
from sparring.non_finite import finite_only
from sparring.resources import Accumulated

if TYPE_CHECKING:
    from sparring.step import StepContainer

__all__ = ["check_owned", "own_gradients", "owned_gradients", "summed_gradients", "taken_gradients"]


def taken_gradients(
    container: StepContainer, take: Callable[[str], Any]
) -> tuple[dict[str, Any], BaseException | None]:
    """What was accumulated, by table, and why the step cannot be applied, if it cannot."""
    taken: dict[str, Any] = {}
    try:
        container.loads.check()
        container.flushes.join()
        container.events.check()
        for entry in container.entries():
            if entry.storage is not None:
                entry.storage.wait_for_room()
        taken = {name: take(name) for name in container.tables}
    except Exception as error:
        container.discard()
        if container.collective.world_size == 1:
            raise
        return {}, error
    return taken, None


def summed_gradients(container: StepContainer, name: str, sources: Any) -> Accumulated:
    """A table's gradients, added up by key.

    Args:
        sources: what was accumulated of it; None: nothing.
    """
    if sources is None:
        return _no_gradients(container, name)
    return Accumulated(*sources.summed(container.entry(name).view))


def own_gradients(
    container: StepContainer, make: Callable[[], dict[str, Accumulated]]
) -> tuple[dict[str, Accumulated], BaseException | None]:
    """What `make` gives, and what it refuses where other ranks, which wait for this one's gradients,
    must be told; alone, that is raised."""
    try:
        return make(), None
    except Exception as error:
        if container.collective.world_size == 1:
            raise
        return {}, error


def _no_gradients(container: StepContainer, name: str) -> Accumulated:
    table = container.entry(name).config
    return Accumulated(np.empty(0, np.int64), np.empty((0, table.dim), table.computing_dtype))


def owned_gradients(
    container: StepContainer,
    tables: Sequence[str],
    taken: Mapping[str, Accumulated],
    refusal: BaseException | None,
    by_rows: Set[str],
) -> dict[str, OwnedGradients]:
    """The finite gradients of all ranks for the keys of this one, by table; none without keys.

    Args:
        tables: those that are meant, the same on all ranks; if none are, nothing is exchanged.
        taken: this rank's gradients of these tables; none where there is a refusal.
        refusal: why this rank cannot apply the step.
        by_rows: the tables whose rows are wanted in arrays.
    """
    if not tables and container.tables:
        return {}  # what is refused, the exchange between devices has refused
    finite = finite_only(taken, container.non_finite, container.counters.steps)
    requests = []
    for name in tables:
        table = container.entry(name).config
        mine = finite.gradients.get(name) or _no_gradients(container, name)
        make = partial(container.resources.make_accumulator, table)
        # A storage that was not opened yet might have rows.
        storage = container.entry(name).storage if name in by_rows else None
        requests.append(PushRequest(table, mine.keys, mine.gradients, make, storage))
    with container.span("push"):
        pushed = container.exchange.push_all(requests, error=refusal or finite.refusal)
    container.counters.rows_skipped_non_finite += finite.num_skipped
    world_size = container.collective.world_size
    result = {}
    for request, owned in zip(requests, pushed, strict=True):
        if not len(owned.keys) and owned.error is None:
            continue
        if container.reduction is Reduction.MEAN and world_size > 1:
            np.divide(owned.gradients, world_size, out=owned.gradients)
        result[request.table.name] = owned
    return result


def check_owned(owned: Mapping[str, OwnedGradients]) -> None:
    """Raises what the owner of some keys found wrong with their gradients."""
    for each in owned.values():
        if each.error is not None:
            raise each.error
