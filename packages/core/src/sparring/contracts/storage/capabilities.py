"""Capabilities that a storage declares."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Capabilities"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Features of a storage, which the engine and the conformance kit read.

    A feature that is not declared must fail with `UnsupportedError`.
    """

    persistent: bool = False
    """Rows outlive the process: they can be read again after close and open."""
    shared: bool = False
    """All ranks of a job, and other processes, access the same rows."""
    native: bool = False
    """The native handle never calls Python (`sparring.contracts.get_capsule`)."""
    devices: tuple[str, ...] = ("cpu",)
    """Device types whose memory may contain the keys and rows of a call."""
    concurrent_reads: bool = False
    """Readers may run concurrently with one writer."""
    bounded: bool = False
    """A capacity limits the number of rows; see `Storage.capacity`."""
    evicts: bool = False
    """A full storage evicts the rows with the lowest scores; otherwise it raises `CapacityError`."""
    evict: bool = False
    """`Storage.evict` is supported."""
    touch: bool = False
    """`Storage.touch` is supported."""
    scores: str = "none"
    """Origin of scores. `none`: scores are not stored and read as 0. `policy`: the storage sets them.
    `given`: the caller
    sets them."""
    notes: bool = False
    """Short texts that the engine stores with the rows (`SupportsNotes`) outlive the process."""
    eviction_scope: str = "table"
    """`table`: the lowest score of the whole table is evicted. `bucket`: the lowest score of
    a bucket is evicted."""
