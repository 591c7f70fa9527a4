"""Lookups on several ranks whose ids and rows are on devices: as `sparring.engine.lookup` there.

    ids (n) ──► dedup ──► keys (u) ──► pulled from the devices of their owners ──► rows (u, dim)
                                                                  │
                            initial values where there was none ──┘

The host learns how many keys there are, and how many of them each rank owns, and waits for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from sparring.contracts.kernels import Dedup, DeviceArray, KernelSet
from sparring.contracts.table import TableConfig
from sparring.engine.lookup import own_refusal_first
from sparring.engine.state import EngineState, Purpose, try_quiesce
from sparring.exchange.device_pull import DevicePulled, DevicePullRequest
from sparring.exchange.options import WireDtype

__all__ = ["DeviceLookup", "looked_up_on_device", "pulls_on_device", "told_on_device"]


@dataclass(frozen=True, slots=True)
class DeviceLookup:
    """Ids, and the rows that they stand for, on a device."""

    found: Dedup
    rows: DeviceArray
    """``(u, dim)`` of the computing dtype: the embedding of each key."""


def looked_up_on_device(
    state: EngineState,
    kernels: KernelSet,
    requests: Sequence[tuple[str, DeviceArray]],
    *,
    is_training: bool,
    refusal: Exception | None = None,
) -> list[DeviceLookup]:
    """Ids of several tables to rows, in one exchange between ranks; nothing is registered.

    Args:
        kernels: of the device that holds ids and tables.
        requests: table and ids ``(n,)`` int64; the same tables in the same order on all ranks.
        is_training: gradients will come.
        refusal: why this rank cannot, for all ranks to raise; its ids are not looked at.

    Raises:
        Exception: `refusal`, or in its place another rank's, naming that rank.
        UnknownTableError: a table was not declared.
        BackgroundError: the last load in the background failed.
        InterruptedLoadError, InvalidArgumentError: as `StepContainer.lookup_all`, on any rank.
        PeerFailure: a rank is gone, silent, elsewhere, or could not read its rows.
        DeviceMemoryError: a device has no memory for keys or rows, on any rank.
    """
    state.check_open()
    entries = [state.tables.entry(name) for name, _ in requests]
    why_not = try_quiesce(state, Purpose.READ, refusal)
    found: list[Dedup] = []
    if why_not is None:
        try:
            for entry in entries:
                state.tables.check_readable(entry)
            found = [kernels.dedup(ids) for _, ids in requests]
        except Exception as error:
            why_not = error
    if why_not is not None:
        if state.collective.world_size == 1:
            raise why_not
        found = [Dedup((), ())] * len(entries)  # type: ignore[arg-type]  # no one will look
    pulls = [
        DevicePullRequest(entry.storage, entry.config, each.keys)
        for entry, each in zip(entries, found, strict=True)
    ]
    with state.span("look up"), own_refusal_first(why_not):
        pulled = state.exchange.on_device(kernels).pull_all(
            pulls, is_training=is_training, error=why_not
        )
    with told_on_device(state, kernels, [name for name, _ in requests]):
        return [
            DeviceLookup(each, _completed(kernels, entry.config, each, rows))
            for entry, each, rows in zip(entries, found, pulled, strict=True)
        ]


def pulls_on_device(state: EngineState, tables: Iterable[str]) -> bool:
    """Whether rows of these tables come from their owners to this rank's device without a visit to
    the host; the same on all ranks."""
    return state.exchange.options.row_wire_dtype is WireDtype.EXACT and all(
        state.tables.entry(table).kernels is not None for table in tables
    )


def told_on_device(
    state: EngineState, kernels: KernelSet, tables: Sequence[str]
) -> AbstractContextManager[None]:
    """Surrounds work on rows that came from other ranks: where it fails, they are told."""
    configs = [state.tables.entry(table).config for table in tables]
    if state.collective.world_size == 1 or all(each.is_replicated for each in configs):
        return nullcontext()
    return state.exchange.on_device(kernels).report_failure(configs)


def _completed(
    kernels: KernelSet, table: TableConfig, found: Dedup, pulled: DevicePulled
) -> DeviceArray:
    """Initial values where there was no row, in what is computed with."""
    rows = pulled.rows
    if len(found.keys):
        is_found = kernels.arrays.view(pulled.found, "bool")
        kernels.initialize(rows, found.keys, is_found, table)
    return kernels.decode(rows) if table.is_16_bit else rows
