"""Lookups on several ranks whose ids and rows lie on devices: what `lookup_ahead.looked_up` does there.

    ids (n) ──► dedup ──► keys (u) ──► pulled from the devices of their owners ──► rows (u, dim)
                                                                  │
                            initial values where there was none ──┘

The host learns how many keys there are, and how many of them each rank owns, and waits for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparring.exchange import DevicePulled, DevicePullRequest
from sparring.kernel_set import DeviceArray, KernelSet
from sparring.kernels import Dedup
from sparring.lookup_ahead import own_refusal_first

if TYPE_CHECKING:
    from sparring.step import StepContainer
    from sparring.table import TableConfig

__all__ = ["DeviceLookup", "looked_up_on_device", "told_on_device"]


@dataclass(frozen=True, slots=True)
class DeviceLookup:
    """Ids, and the rows that they stand for, on a device."""

    found: Dedup
    rows: DeviceArray
    """``(u, dim)`` of the computing dtype: the embedding of each key."""


def looked_up_on_device(
    container: StepContainer,
    kernels: KernelSet,
    requests: Sequence[tuple[str, DeviceArray]],
    *,
    is_training: bool,
    refusal: Exception | None = None,
) -> list[DeviceLookup]:
    """Ids of several tables to rows, in one exchange between ranks; nothing is registered.

    Args:
        kernels: of the device on which ids and tables lie.
        requests: table and ids ``(n,)`` int64; the same tables in the same order on all ranks.
        is_training: gradients will come.
        refusal: why this rank cannot, for all ranks to raise; its ids are not looked at.

    Raises:
        Exception: `refusal`, or in its place another rank's, naming that rank.
        UnknownTableError: nobody declared a table.
        BackgroundError: the last load failed beside what its caller did.
        InterruptedLoadError, InvalidArgumentError: as `StepContainer.lookup_all`, on any rank.
        PeerFailure: a rank is gone, silent, elsewhere, or could not read its rows.
        DeviceMemoryError: a device has no memory for keys or rows, on any rank.
    """
    container.check_open()
    container.join_ahead()
    entries = [container.entry(name) for name, _ in requests]
    found: list[Dedup] = []
    try:
        if refusal is not None:
            raise refusal
        container.loads.check()
        for entry in entries:
            container.seek_rows(entry)
            entry.check_whole()
        found = [kernels.dedup(ids) for _, ids in requests]
    except Exception as error:
        if container.collective.world_size == 1:
            raise
        refusal = error
        found = [Dedup((), ())] * len(entries)  # type: ignore[arg-type]  # nobody will look
    pulls = [
        DevicePullRequest(entry.storage, entry.config, each.keys)
        for entry, each in zip(entries, found, strict=True)
    ]
    with container.span("look up"), own_refusal_first(refusal):
        pulled = container.exchange.on_device(kernels).pull_all(
            pulls, is_training=is_training, error=refusal
        )
    with told_on_device(container, kernels, [name for name, _ in requests]):
        return [
            DeviceLookup(each, _completed(kernels, entry.config, each, rows))
            for entry, each, rows in zip(entries, found, pulled, strict=True)
        ]


def told_on_device(
    container: StepContainer, kernels: KernelSet, tables: Sequence[str]
) -> AbstractContextManager[None]:
    """Surrounds what is made of rows that came from other ranks: where it fails, they are told."""
    if container.reads_directly(tables):
        return nullcontext()
    configs = [container.entry(table).config for table in tables]
    return container.exchange.on_device(kernels).told(configs)


def _completed(
    kernels: KernelSet, table: TableConfig, found: Dedup, pulled: DevicePulled
) -> DeviceArray:
    """Initial values where there was no row, in what is computed with."""
    rows = pulled.rows
    if len(found.keys):
        is_found = kernels.arrays.view(pulled.found, "bool")
        kernels.initialize(rows, found.keys, is_found, table)
    return kernels.decode(rows) if table.is_half else rows
