"""Capabilities of a storage, as data."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Capabilities"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Data that the runtime and the test kit both read.

    A feature declared absent must fail with `UnsupportedError`.
    """

    persistent: bool = False
    """Rows outlive the process: closing and opening again finds them."""
    shared: bool = False
    """Ranks of a job, and other processes, reach the same rows in one place."""
    native: bool = False
    """Its native handle never calls Python (`sparring.contracts.get_capsule`)."""
    devices: tuple[str, ...] = ("cpu",)
    """Where keys and rows may live."""
    concurrent_reads: bool = False
    """Readers may run concurrently with one writer."""
    bounded: bool = False
    """A capacity limits the rows; see `Storage.capacity`."""
    evicts: bool = False
    """A full storage evicts its lowest scores; otherwise it raises `CapacityError`."""
    evict: bool = False
    """`Storage.evict` is offered."""
    touch: bool = False
    """`Storage.touch` is offered."""
    scores: str = "none"
    """`none`: not kept, read as 0. `policy`: the storage's own. `given`: the caller's."""
    notes: bool = False
    """Short texts that the engine keeps with the rows outlive the process, as the rows do."""
    eviction_scope: str = "table"
    """`table`: the lowest score of the whole table leaves. `bucket`: of some bucket."""
