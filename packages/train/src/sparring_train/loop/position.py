"""Position of a run in its data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sparring.errors import SnapshotError
from sparring_train.columns import Cut

__all__ = ["POSITION", "Position", "mark_epoch_ends", "read_position"]

POSITION = "position"
"""Name of the state that contains the position of the run in its data."""


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a run in its data."""

    step: int = 0
    """Number of completed steps."""
    epoch: int = 0
    """Index of the current epoch."""
    batch: int = 0
    """Number of batches of this epoch that were trained on."""
    stream: Mapping[str, int] | None = None
    """Partition → offset of the next event, if the examples are a stream."""
    event_time: float | None = None
    """Time of the newest event that was trained, in seconds since 1970; None if it is unknown."""

    def after(self, cut: Cut) -> Position:
        """Returns the position after a step on a stream."""
        times = [each for each in (self.event_time, cut.event_time) if each is not None]
        return Position(self.step + 1, 0, 0, cut.positions, max(times, default=None))

    def values(self) -> dict[str, Any]:
        """Returns the values to store."""
        return {name: each for name, each in asdict(self).items() if each is not None}


def read_position(url: str, values: Mapping[str, Any]) -> Position:
    """Returns the position of the run that wrote the snapshot at `url`.

    Raises:
        SnapshotError: the snapshot does not contain a valid position.
    """
    counts: list[Any] = [values.get(name) for name in ("step", "epoch", "batch")]
    stream = values.get("stream")
    offsets = list(stream.values()) if isinstance(stream, dict) else []
    if not all(type(count) is int and count >= 0 for count in counts + offsets):
        raise SnapshotError(
            f"snapshot {url}: found no valid step, epoch and batch in its state {POSITION!r}; resume "
            "from a snapshot of `sparring train`, or load only the rows of this one with container.load",
            url=url,
        )
    step, epoch, batch = counts
    return Position(step, epoch, batch, stream, values.get("event_time"))


def mark_epoch_ends(batches: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
    """Yields each batch, and whether it is the last one."""
    batch = next(batches, None)
    while batch is not None:
        after = next(batches, None)
        yield batch, after is None
        batch = after
