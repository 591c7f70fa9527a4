"""Gradients of a step: taken from the resource manager, summed by key, and sent to their owners.

    taken ──► summed by key ──► finite? ──► pushed to the owners of the keys ──► `OwnedGradients`

Arrays belong to the kernels that update the table: arrays of a device, or NumPy arrays for the kernels
of the CPU, `HOST`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from sparring import _native
from sparring.collective.coordinator import Coordinator
from sparring.contracts.device.kernel_set import KernelSet, TableBags
from sparring.contracts.ranks.collective import Reduction
from sparring.contracts.ranks.exchange_options import WireDtype
from sparring.engine.device_gradients import DeviceGradients, SummedByKey
from sparring.engine.lookup.pooled import take_bag_gradients
from sparring.engine.state import EngineState, NonFinite, Purpose, try_quiesce
from sparring.engine.tables.column_blocks import split_gradients
from sparring.errors import NonFiniteGradientError
from sparring.exchange.messages import OwnedGradients, PushRequest
from sparring.kernels.cpu import HOST

__all__ = [
    "group_by_device",
    "check_and_average",
    "choose_kernels",
    "sum_own_gradients",
    "exchange_gradients",
    "sum_gradients",
    "take_gradients",
]


def take_gradients(
    state: EngineState, *, are_summed: bool
) -> tuple[dict[str, Any], BaseException | None]:
    """Returns the accumulated gradients of each table, and the error if the step cannot be applied.

    Args:
        state: state of the engine.
        are_summed: as for `ResourceManager.take_step`.
    """
    own_error: BaseException | None = try_quiesce(state, Purpose.WRITE)
    if state.exchange.pooling.has_lookups:
        own_error = take_bag_gradients(state, own_error, ends_step=True)
    if own_error is None:
        try:
            return state.resources.take_step(are_summed=are_summed), None
        except Exception as error:
            own_error = error
    state.resources.discard()
    if state.collective.world_size == 1:
        raise own_error
    return {}, own_error


def choose_kernels(
    state: EngineState, taken: Mapping[str, Any], on_host: Set[str] = frozenset()
) -> dict[str, KernelSet]:
    """Returns the kernels that update each table: tables on devices first, then tables on the `HOST`.

    On one rank, the device of the gradients determines the kernels. On several ranks, all of them must
    use the same kernels, including ranks with an empty batch, so only common settings matter. A table
    stays on a device if

    - a framework requested it with `StepContainer.keep_on_device`, which ranks compare at each
    exchange;
    - gradients are exchanged in their own dtype;
    - it is not replicated, because gradients of replicated tables go to all ranks via host memory.

    Args:
        state: state of the engine.
        taken: gradients by table. They are ignored on several ranks.
        on_host: tables that are always updated on the host; the same on all ranks.
    """
    kernels: dict[str, KernelSet] = {}
    if state.collective.world_size == 1:
        for name, each in taken.items():
            if isinstance(each, DeviceGradients) and _takes_arrays(state, name, each.kernels):
                kernels[name] = each.kernels
    elif state.exchange.options.gradient_wire_dtype is WireDtype.EXACT:
        for entry in state.tables.entries.values():
            if entry.kernels is not None and not entry.config.is_replicated:
                kernels[entry.config.name] = entry.kernels
    for name in on_host:
        kernels.pop(name, None)
    for name in state.tables.entries:
        kernels.setdefault(name, HOST)
    return kernels


def _takes_arrays(state: EngineState, name: str, kernels: KernelSet) -> bool:
    devices = {kernels.device, kernels.device.removesuffix(":0")}
    return bool(devices & set(state.tables.storage(name).capabilities.devices))


def exchange_gradients(
    state: EngineState,
    taken: Mapping[str, Any],
    own_error: BaseException | None,
    kernels: Mapping[str, KernelSet],
    by_rows: Set[str],
    *,
    defers_finite_check: bool = False,
) -> dict[str, OwnedGradients]:
    """Exchanges gradients and returns the finite ones of all ranks for this rank's keys, by table.

    The returned gradients are sums over all ranks. If the reduction is the mean,
    `check_and_average` divides them later.

    Args:
        state: state of the engine.
        taken: accumulated gradients of this rank by table; empty if it cannot apply the step.
        own_error: error of this rank, if it cannot apply the step.
        kernels: kernels of all tables; the same on all ranks.
        by_rows: tables whose rows are needed in arrays.
        defers_finite_check: as for `sum_own_gradients`.

    Raises:
        BaseException: `own_error`, or the error of another rank, with that rank's number.
        NonFiniteGradientError: any rank has non-finite gradients, and the policy is to raise.
        PeerFailure: a rank is gone, does not respond, or is in another operation.
    """
    own, owned = _OwnGradients({}, 0), dict[str, OwnedGradients]()
    if own_error is None:
        try:
            divided = dict.fromkeys(taken.keys() - kernels.keys(), HOST)
            own = sum_own_gradients(
                state, taken, {**kernels, **divided}, defers_finite_check=defers_finite_check
            )
        except Exception as error:
            own_error = error
    state.counters.rows_skipped_non_finite += own.num_skipped
    if state.collective.world_size == 1:
        if own_error is not None:
            raise own_error
        for name, mine in own.summed.items():
            owned[name] = OwnedGradients(
                mine.keys,
                mine.gradients,
                kernels[name],
                row_handles=mine.row_handles,
                num_bad=mine.num_bad,
            )
        return owned
    for works, names in group_by_device(kernels):
        with state.span("push"):
            summed = split_gradients(state.tables, own.summed)
            pushed = _push(state, works, names, summed, own_error, by_rows)
        for name, each in zip(names, pushed, strict=True):
            if len(each.keys) or each.error is not None:
                owned[name] = each
    return owned


def sum_gradients(state: EngineState) -> Mapping[str, OwnedGradients]:
    """Sums the accumulated gradients by key over all ranks, so that each rank has the sums of its own
    keys.

    All ranks must call it. The step uses the sums from `ResourceManager.summed` without exchanging them
    again, and computes means over ranks. Pending lookups stay valid. The sums may contain NaN and
    infinity.

    Args:
        state: state of the engine.

    Returns:
        `ResourceManager.summed`: the sums by table, or by block of a table that is sharded by columns.

    Raises:
        BaseException: the error because of which this or another rank cannot apply a step.
        PeerFailure: a rank is gone, does not respond, or is in another operation.
    """
    own_error = take_bag_gradients(state, try_quiesce(state, Purpose.WRITE), ends_step=False)
    taken = dict[str, Any]()
    summed, owned = dict[str, SummedByKey](), state.resources.summed
    kernels = dict[str, KernelSet]()
    try:
        if own_error is None:
            taken = state.resources.take(are_summed=True)
        kernels = choose_kernels(state, taken)
        summed = {
            name: _sum_by_key(state, name, taken[name], kernels.get(name, HOST)) for name in taken
        }
        summed = split_gradients(state.tables, summed)
    except Exception as error:
        own_error = error
    try:
        if state.collective.world_size == 1:
            if own_error is not None:
                raise own_error
            for name, each in summed.items():
                owned[name] = OwnedGradients(each.keys, each.gradients, kernels[name])
            return owned
        failure: BaseException | None = None
        for works, names in group_by_device(kernels or choose_kernels(state, {})):
            pushed = _push(state, works, names, summed, own_error, by_rows=set())
            for name, sums in zip(names, pushed, strict=True):
                failure = failure or sums.error
                # Every rank has the sums of a replicated table, so only rank 0 keeps them.
                if not state.tables.entries[name].config.is_replicated or not state.collective.rank:
                    owned[name] = sums
        Coordinator(state.collective, "sum of gradients").agree(failure)
    except BaseException:
        state.resources.discard()
        raise
    return owned


def check_and_average(state: EngineState, owned: Mapping[str, OwnedGradients]) -> None:
    """Raises an error that this rank had while it summed gradients; then divides the sums by the number
    of ranks, if the reduction is the mean."""
    for each in owned.values():
        if each.error is not None:
            raise each.error
    world_size = state.collective.world_size
    if state.reduction is not Reduction.MEAN or world_size == 1:
        return
    divisors = dict[tuple[str, Any], Any]()
    for each in owned.values():
        gradients: Any = each.gradients
        kind = each.kernels.device, gradients.dtype
        if kind not in divisors:
            dtype = str(gradients.dtype).rsplit(".", 1)[-1]
            # An array, because PyTorch multiplies by the reciprocal of a Python number, which rounds
            # differently.
            divisors[kind] = each.kernels.arrays.from_host(np.array([world_size], dtype))
        gradients /= divisors[kind]


class _OwnGradients(NamedTuple):
    """This rank's gradients, without gradients that contain NaN or infinity."""

    summed: dict[str, SummedByKey]
    num_skipped: int


def sum_own_gradients(
    state: EngineState,
    taken: Mapping[str, Any],
    kernels: Mapping[str, KernelSet],
    *,
    defers_finite_check: bool = False,
) -> _OwnGradients:
    """Returns this rank's gradients summed by key, before they are rounded for the exchange.

    Args:
        state: state of the engine.
        taken: accumulated gradients by table.
        kernels: kernels by table.
        defers_finite_check: whether the caller checks `SummedByKey.num_bad` itself where it is not
            None, which avoids a wait for the device here.
    """
    together = _sum_together(taken, kernels)
    defers_finite_check = defers_finite_check and len(together) == len(taken)
    on_host = _sum_on_host(state, taken, kernels)
    is_host_finite = _native.are_finite([each.gradients for each in on_host.values()])
    summed, num_skipped = dict[str, SummedByKey](), 0
    looked_at: dict[int, bool] = {}  # whether each `num_bad` is 0
    for name, works in kernels.items():
        if name not in taken:
            continue
        found = on_host.get(name) or together.get(name)
        if found is None:
            found = _sum_by_key(state, name, taken[name], works)
        is_finite = is_host_finite and name in on_host
        bad = found.num_bad
        if bad is None or not defers_finite_check:
            if bad is not None and id(bad) not in looked_at:
                looked_at[id(bad)] = not works.arrays.to_host(bad)[0]
            found = found._replace(num_bad=None)
            is_finite = is_finite or looked_at.get(id(bad), False)
            if not is_finite and not works.is_finite(found.gradients):
                found, skipped = _keep_finite(state, name, works, found)
                num_skipped += skipped
        if len(found.keys):
            summed[name] = found
    return _OwnGradients(summed, num_skipped)


def _sum_together(
    taken: Mapping[str, Any], kernels: Mapping[str, KernelSet]
) -> dict[str, SummedByKey]:
    """Sums the gradients of all tables of a device that have a single batch, in one call."""
    summed = dict[str, SummedByKey]()
    for works, names in group_by_device(kernels):
        bags = {}
        for name in names:
            found = taken.get(name)
            only = found.only_bags if isinstance(found, DeviceGradients) else None
            if only is not None and works is not HOST:
                bags[name] = only
        if not bags:
            continue
        for each in bags.values():
            if each.take is not None:
                each.take()
        sums = works.sum_tables(
            [
                TableBags(each.ids, each.offsets, each.gradient, each.mode, each.weights)
                for each in bags.values()
            ]
        )
        for name, keys, gradients in zip(bags, sums.keys, sums.gradients, strict=True):
            summed[name] = SummedByKey(keys, gradients, num_bad=sums.num_bad)
    return summed


def _sum_on_host(
    state: EngineState, taken: Mapping[str, Any], kernels: Mapping[str, KernelSet]
) -> dict[str, SummedByKey]:
    """Sums the gradients of all tables that are updated in host memory, in one native call."""
    names = [
        name
        for name, works in kernels.items()
        if works is HOST and isinstance(taken.get(name), _native.GradientSources)
    ]
    views = [state.tables.entry(name).view for name in names]
    sums = _native.sum_tables([taken[name] for name in names], views)
    summed = {name: SummedByKey(*each) for name, each in zip(names, sums, strict=True)}
    if state.collective.world_size == 1:
        for name, view in zip(names, views, strict=True):
            handles = taken[name].row_handles(view)
            summed[name] = summed[name]._replace(row_handles=handles)
    return summed


def _sum_by_key(state: EngineState, name: str, taken: Any, kernels: KernelSet) -> SummedByKey:
    """Returns accumulated gradients summed by key."""
    if isinstance(taken, DeviceGradients) and kernels is not HOST:
        return taken.by_key()
    summed: SummedByKey = taken
    if not isinstance(taken, SummedByKey):
        view = state.tables.entry(name).view
        handles = None if isinstance(taken, DeviceGradients) else taken.row_handles(view)
        keys, gradients = taken.summed(view)
        summed = SummedByKey(keys, gradients, row_handles=handles)
    if kernels is HOST:
        return summed
    # Other modules look up this table via the host.
    from_host = kernels.arrays.from_host
    return SummedByKey(from_host(summed.keys), from_host(summed.gradients))


def _keep_finite(
    state: EngineState, name: str, kernels: KernelSet, found: SummedByKey
) -> tuple[SummedByKey, int]:
    arrays = kernels.arrays
    is_good = np.asarray(arrays.to_host(kernels.finite_rows(found.gradients))).astype(np.bool_)
    num_bad = int(np.count_nonzero(~is_good))
    if state.non_finite is NonFinite.RAISE:
        step, key = state.counters.steps, int(arrays.to_host(found.keys)[np.argmin(is_good)])
        raise NonFiniteGradientError(
            f"step {step}: the gradients of table {name!r} contain NaN or infinity for "
            f"{num_bad} of {len(is_good)} keys, for example key {key}; no "
            "row was changed. Lower the learning rate, clip gradients, or choose "
            "non_finite_gradients='skip' (in a configuration training.non_finite_gradients=skip)",
            table=name,
            key=key,
            step=step,
        )
    kept = arrays.from_host(np.flatnonzero(is_good))
    return SummedByKey(arrays.take(found.keys, kept), arrays.take(found.gradients, kept)), num_bad


def group_by_device(kernels: Mapping[str, KernelSet]) -> list[tuple[KernelSet, list[str]]]:
    """Groups tables by device, in the order of declaration, with the host last.

    Without tables it returns the host, so that ranks can agree that there are no gradients.
    """
    groups: dict[str, tuple[KernelSet, list[str]]] = {}
    for name, each in kernels.items():
        groups.setdefault(each.device, (each, []))[1].append(name)
    return list(groups.values()) or [(HOST, [])]


def _push(
    state: EngineState,
    kernels: KernelSet,
    names: Sequence[str],
    summed: Mapping[str, SummedByKey],
    error: BaseException | None,
    by_rows: Set[str],
) -> list[OwnedGradients]:
    empty, entries = kernels.arrays.empty, [state.tables.entries[name] for name in names]
    requests = []
    for name, entry in zip(names, entries, strict=True):
        table, found = entry.config, summed.get(name)
        if found is None:
            none = empty((0, table.dim), table.computing_dtype.name)
            found = SummedByKey(empty((0,), "int64"), none)
        # None also if the storage is not open yet, because it may contain rows.
        storage = entry.storage if name in by_rows else None
        requests.append(PushRequest(table, found.keys, found.gradients, storage=storage))
    return state.exchange.push_all(requests, kernels=kernels, error=error)
