"""The gradients of a step: taken from where they were accumulated, and brought to their owners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sparring import _native
from sparring.contracts.collective import Reduction
from sparring.contracts.kernels import KernelSet
from sparring.engine.device_gradients import DeviceGradients
from sparring.engine.resource_manager import Accumulated
from sparring.engine.state import EngineState, NonFinite, Purpose, try_quiesce
from sparring.errors import NonFiniteGradientError
from sparring.exchange.messages import OwnedGradients, PushRequest
from sparring.exchange.options import WireDtype
from sparring.kernels import functions as kernels

__all__ = [
    "FiniteOnly",
    "check_owned",
    "finite_only",
    "kernels_of_step",
    "own_gradients",
    "owned_gradients",
    "summed_gradients",
    "taken_gradients",
]


def taken_gradients(
    state: EngineState, take: Callable[[str], Any]
) -> tuple[dict[str, Any], BaseException | None]:
    """Gradients that were accumulated, by table, and why the step cannot be applied, if it cannot."""
    taken: dict[str, Any] = {}
    why_not: BaseException | None = try_quiesce(state, Purpose.WRITE)
    if why_not is None:
        try:
            taken = {name: take(name) for name in state.tables.entries}
        except Exception as error:
            why_not = error
    if why_not is not None:
        state.resources.discard()
        if state.collective.world_size == 1:
            raise why_not
        return {}, why_not
    return taken, None


def summed_gradients(state: EngineState, name: str, sources: Any) -> Accumulated:
    """A table's gradients, added up by key.

    Args:
        sources: what was accumulated of it; None: nothing.
    """
    if sources is None:
        return _no_gradients(state, name)
    return Accumulated(*sources.summed(state.tables.entries[name].view))


def own_gradients(
    state: EngineState, make: Callable[[], dict[str, Accumulated]]
) -> tuple[dict[str, Accumulated], BaseException | None]:
    """The result of `make`, or what it raised, for other ranks to be told; alone, that is raised."""
    try:
        return make(), None
    except Exception as error:
        if state.collective.world_size == 1:
            raise
        return {}, error


def _no_gradients(state: EngineState, name: str) -> Accumulated:
    table = state.tables.entries[name].config
    return Accumulated(np.empty(0, np.int64), np.empty((0, table.dim), table.computing_dtype))


def owned_gradients(
    state: EngineState,
    tables: Sequence[str],
    taken: Mapping[str, Accumulated],
    why_not: BaseException | None,
    by_rows: Set[str],
) -> dict[str, OwnedGradients]:
    """The finite gradients of all ranks for the keys of this one, by table; none without keys.

    Args:
        tables: those that are meant, the same on all ranks; if none are, nothing is exchanged.
        taken: this rank's gradients of these tables; none where this rank cannot apply the step.
        why_not: why this rank cannot apply the step.
        by_rows: the tables whose rows are wanted in arrays.
    """
    if not tables and state.tables.entries:
        return {}  # what is refused, the exchange between devices has refused
    finite = finite_only(taken, state.non_finite, state.counters.steps)
    requests = []
    for name in tables:
        table = state.tables.entries[name].config
        mine = finite.gradients.get(name) or _no_gradients(state, name)
        make = partial(state.resources.make_accumulator, table)
        # A storage that was not opened yet might have rows.
        storage = state.tables.entries[name].storage if name in by_rows else None
        requests.append(PushRequest(table, mine.keys, mine.gradients, make, storage))
    with state.span("push"):
        pushed = state.exchange.push_all(requests, error=why_not or finite.refusal)
    state.counters.rows_skipped_non_finite += finite.num_skipped
    world_size = state.collective.world_size
    result = {}
    for request, owned in zip(requests, pushed, strict=True):
        if not len(owned.keys) and owned.error is None:
            continue
        if state.reduction is Reduction.MEAN and world_size > 1:
            np.divide(owned.gradients, world_size, out=owned.gradients)
        result[request.table.name] = owned
    return result


def check_owned(owned: Mapping[str, OwnedGradients]) -> None:
    """Raises what the owner of some keys found wrong with their gradients."""
    for each in owned.values():
        if each.error is not None:
            raise each.error


def kernels_of_step(state: EngineState, taken: Mapping[str, Any]) -> dict[str, KernelSet]:
    """The tables whose gradients and rows stay on a device in this step, with their kernels.

    On one rank the gradients decide. On several, all ranks must go the same way, also those whose
    batch is empty: what all of them have alike decides. A table stays on a device where

    - a framework said so (`StepContainer.keep_on_device`), on all ranks: that is among the settings that
      ranks compare at each exchange;
    - gradients are not narrowed to travel;
    - its gradients have one owner: those of a replicated table go to all ranks via host memory.

    Args:
        taken: table → its gradients, None where it has none. On several ranks they decide nothing.
    """
    if state.collective.world_size == 1:
        return {
            name: each.kernels
            for name, each in taken.items()
            if isinstance(each, DeviceGradients) and _takes_arrays(state, name, each.kernels)
        }
    if state.exchange.options.gradient_wire_dtype is not WireDtype.EXACT:
        return {}
    return {
        entry.config.name: entry.kernels
        for entry in state.tables.entries.values()
        if entry.kernels is not None and not entry.config.is_replicated
    }


def _takes_arrays(state: EngineState, name: str, kernels: KernelSet) -> bool:
    devices = {kernels.device, kernels.device.removesuffix(":0")}
    return bool(devices & set(state.tables.storage(name).capabilities.devices))


@dataclass(frozen=True, slots=True)
class FiniteOnly:
    """Gradients by table without those of rows that hold NaN or infinity."""

    gradients: dict[str, Accumulated]
    num_skipped: int
    """Number of these rows."""
    refusal: NonFiniteGradientError | None
    """Why the step must not be applied on any rank: there is one, and the policy is to raise."""


def finite_only(taken: Mapping[str, Accumulated], policy: NonFinite, step: int) -> FiniteOnly:
    """Looks at this rank's gradients, before anything is rounded to travel."""
    finite = dict(taken)
    broken = {
        name: accumulated
        for name, accumulated in taken.items()
        if not _native.is_finite(accumulated.gradients)
    }
    if policy is NonFinite.RAISE:
        return FiniteOnly(finite, 0, _non_finite_error(broken, step) if broken else None)
    num_skipped = 0
    for name, accumulated in broken.items():
        is_good = kernels.finite_rows(accumulated.gradients)
        num_skipped += int(np.count_nonzero(~is_good))
        finite[name] = Accumulated(accumulated.keys[is_good], accumulated.gradients[is_good])
    return FiniteOnly(finite, num_skipped, None)


def _non_finite_error(broken: Mapping[str, Accumulated], step: int) -> NonFiniteGradientError:
    name, accumulated = next(iter(broken.items()))
    is_good = kernels.finite_rows(accumulated.gradients)
    key = int(accumulated.keys[np.argmin(is_good)])
    return NonFiniteGradientError(
        f"step {step}: the gradients of table {name!r} hold NaN or infinity for "
        f"{int(np.count_nonzero(~is_good))} of {len(is_good)} keys, key {key} among them; no "
        "row was changed. Lower the learning rate, clip gradients, or choose "
        "non_finite_gradients='skip' (in a configuration training.non_finite_gradients=skip)",
        table=name,
        key=key,
        step=step,
    )
