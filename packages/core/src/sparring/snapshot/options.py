"""Options of the files of a snapshot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparring.errors import InvalidArgumentError
from sparring.snapshot.format.hashes import no_pause
from sparring.snapshot.format.limits import NUM_PARTITIONS

__all__ = ["SnapshotOptions"]


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """Sizes of the files of a snapshot, and of the buffers that write them.

    A table that fits `small_bytes` is one file. A larger one is cut into `num_ranges` ranges of
    partitions, so that a reader of some partitions reads few files.

    Args:
        num_ranges: ranges of partitions, a power of two up to 4,096.
        file_bytes: a file that reaches this is closed, and its range goes on in another.
        buffer_bytes: of all ranges' buffers together; each range writes a segment when its share
            is full, of which no more than 64 MiB are used.
        small_bytes: the largest table that is one file; held in memory as a whole. No more than
            64 MiB are used.
        pause: called by each writing thread after about a MiB of work; it may sleep, to leave the
            machine to other threads.

    Raises:
        InvalidArgumentError: any of these is out of range.
    """

    num_ranges: int = 16
    file_bytes: int = 256 << 20
    buffer_bytes: int = 36 << 20
    small_bytes: int = 24 << 20
    pause: Callable[[], None] = no_pause

    def __post_init__(self) -> None:
        ranges = self.num_ranges
        if not 1 <= ranges <= NUM_PARTITIONS or ranges & (ranges - 1):
            raise InvalidArgumentError(
                f"num_ranges must be a power of two from 1 to {NUM_PARTITIONS}, found {ranges}"
            )
        for name in ("file_bytes", "buffer_bytes", "small_bytes"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(
                    f"{name} must be at least 1, found {getattr(self, name)}"
                )
