"""The gradients of tables on devices: added up by key, and brought to the devices of their owners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparring.contracts.collective import Reduction
from sparring.contracts.kernels import DeviceArray, KernelSet
from sparring.engine.apply.owned_gradients import finite_only, summed_gradients
from sparring.engine.device_gradients import DeviceGradients, SummedByKey
from sparring.engine.resource_manager import Accumulated
from sparring.engine.state import EngineState, NonFinite
from sparring.exchange.device_push import DevicePushed, DevicePushRequest
from sparring.kernels.admission_filters import Decision

__all__ = ["OwnedOnDevice", "average", "check_owned_on_device", "owned_on_device"]


@dataclass(slots=True)
class OwnedOnDevice:
    """The gradients of all ranks for the keys of this one, some of them."""

    kernels: KernelSet
    keys: DeviceArray
    """``(u,)``"""
    gradients: DeviceArray
    """``(u, dim)`` of the computing dtype"""
    error: BaseException | None = None
    """As of `DevicePushed`."""
    decision: Decision | None = None
    """Of an admission filter that was asked already, about all keys that have no row."""


@dataclass(slots=True)
class _Finite:
    """This rank's own gradients without those of rows that hold NaN or infinity."""

    summed: dict[str, SummedByKey]
    num_skipped: int = 0


def owned_on_device(
    state: EngineState,
    taken: Mapping[str, Any],
    kernels: Mapping[str, KernelSet],
    refusal: BaseException | None,
) -> dict[str, OwnedOnDevice]:
    """The finite gradients of all ranks for the keys of this one, by table; none without keys.

    They are sums over all ranks; `average` makes means of them, where these are wanted.

    Args:
        taken: table → what was accumulated on this rank; others than those of `kernels` are left.
        kernels: the tables that stay on a device, the same on all ranks.
        refusal: why this rank cannot apply the step.

    Raises:
        BaseException: `refusal`, or in its place another rank's, naming that rank.
        NonFiniteGradientError: there are such gradients, on any rank, and the policy is to raise.
        PeerFailure: a rank is gone, silent or elsewhere.
    """
    own, is_alone = _Finite({}), state.collective.world_size == 1
    if is_alone and refusal is not None:
        raise refusal
    if kernels and refusal is None:
        try:
            own = _own_gradients(state, taken, kernels)
        except Exception as error:
            if is_alone:
                raise
            refusal = error
    owned: dict[str, OwnedOnDevice] = {}
    for names in _by_device(kernels):
        works = kernels[names[0]]
        if is_alone:
            mine = [own.summed.get(name) for name in names]
            sums = [None if one is None else DevicePushed(one.keys, one.gradients) for one in mine]
        else:
            requests = [_request(state, name, works, own.summed.get(name)) for name in names]
            with state.span("push"):
                sums = [*state.exchange.on_device(works).push_all(requests, error=refusal)]
        for name, each in zip(names, sums, strict=True):
            if each is not None and (len(each.keys) or each.error is not None):
                owned[name] = OwnedOnDevice(works, each.keys, each.gradients, each.error)
    state.counters.rows_skipped_non_finite += own.num_skipped
    return {name: owned[name] for name in kernels if name in owned}


def check_owned_on_device(owned: Mapping[str, OwnedOnDevice]) -> None:
    """Raises what the owner of some keys met with while it added up their gradients."""
    for each in owned.values():
        if each.error is not None:
            raise each.error


def average(state: EngineState, owned: Mapping[str, OwnedOnDevice]) -> None:
    """Makes means over ranks of sums, if the container wants these."""
    world_size = state.collective.world_size
    if state.reduction is not Reduction.MEAN or world_size == 1:
        return
    for each in owned.values():
        gradients: Any = each.gradients
        dtype = str(gradients.dtype).rsplit(".", 1)[-1]
        # By an array: PyTorch multiplies by the reciprocal of a plain number, which has other bits.
        gradients /= each.kernels.arrays.from_host(np.array([world_size], dtype))


def _by_device(kernels: Mapping[str, KernelSet]) -> Iterator[list[str]]:
    """The tables of one device together, in the order of declaration."""
    groups: dict[str, list[str]] = {}
    for name, each in kernels.items():
        groups.setdefault(each.device, []).append(name)
    return iter(groups.values())


def _own_gradients(
    state: EngineState, taken: Mapping[str, Any], kernels: Mapping[str, KernelSet]
) -> _Finite:
    finite = _Finite({})
    for name, works in kernels.items():
        found = _summed(state, name, works, taken.get(name))
        if found is None:
            continue
        if not works.is_finite(found.gradients):
            found = _finite_only(state, name, works, found, finite)
        if len(found.keys):
            finite.summed[name] = found
    return finite


def _summed(state: EngineState, name: str, kernels: KernelSet, sources: Any) -> SummedByKey | None:
    """Gradients that were accumulated, by key; None where there are none."""
    if sources is None:
        return None
    if isinstance(sources, DeviceGradients):
        return sources.by_key()
    # Of a table that other modules look up via the host.
    found = sources if isinstance(sources, Accumulated) else summed_gradients(state, name, sources)
    if not len(found.keys):
        return None
    from_host = kernels.arrays.from_host
    return SummedByKey(from_host(found.keys), from_host(found.gradients))


def _finite_only(
    state: EngineState, name: str, kernels: KernelSet, found: SummedByKey, finite: _Finite
) -> SummedByKey:
    arrays, step = kernels.arrays, state.counters.steps
    if state.non_finite is NonFinite.RAISE:
        on_host = Accumulated(arrays.to_host(found.keys), arrays.to_host(found.gradients))
        refusal = finite_only({name: on_host}, state.non_finite, step).refusal
        assert refusal is not None
        raise refusal
    is_good = arrays.to_host(kernels.finite_rows(found.gradients)).astype(np.bool_)
    finite.num_skipped += int(np.count_nonzero(~is_good))
    kept = arrays.from_host(np.flatnonzero(is_good))
    return SummedByKey(arrays.take(found.keys, kept), arrays.take(found.gradients, kept))


def _request(
    state: EngineState, name: str, kernels: KernelSet, summed: SummedByKey | None
) -> DevicePushRequest:
    table = state.tables.entries[name].config
    if summed is not None:
        return DevicePushRequest(table, summed.keys, summed.gradients)
    empty = kernels.arrays.empty
    return DevicePushRequest(
        table, empty((0,), "int64"), empty((0, table.dim), table.computing_dtype.name)
    )
