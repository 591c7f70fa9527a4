"""The `snapshots` section: location and frequency of snapshots."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sparring.adapter import SaveSeconds
from sparring.contracts import LocalPath
from sparring_train.config.section import PositiveFloat, PositiveInt, Section

__all__ = ["SnapshotHistory", "SnapshotsConfig"]


class SnapshotHistory(Section):
    """Older snapshots that are kept for `sparring get --at`, `sparring diff` and `sparring blame`.

    Deltas also contain an index of their keys. If both limits are set, both apply.
    """

    versions: PositiveInt | None = Field(
        None, description="Number of the newest snapshots to keep; null: no limit."
    )
    days: PositiveFloat | None = Field(
        None, description="Number of days that a snapshot is kept; null: no limit."
    )


class SnapshotsConfig(Section):
    """Snapshots are written concurrently with training, and once more when training ends."""

    url: LocalPath | None = Field(
        None,
        min_length=1,
        description="Folder of this run's snapshots, reachable by all ranks: a path, or a URL of fsspec "
        "such as s3://bucket/run. Null saves none. Relative paths start at the folder of the "
        "configuration file.",
    )
    every_steps: PositiveInt | None = Field(
        None, description="Number of steps between saves; null: no saves by steps."
    )
    every_minutes: PositiveFloat | None = Field(
        None, description="Minutes between saves; null: no saves by time."
    )
    at_end: bool = Field(True, description="Whether to save when training ends.")
    keep: Annotated[int, Field(ge=2, le=1_000_000)] = Field(
        3,
        description="Number of snapshots to keep, the newest ones. Snapshots that a kept delta needs are "
        "kept, too, and always two that share no file.",
    )
    history: SnapshotHistory | None = Field(
        None, description="History of the tables; null keeps no more than `keep` snapshots."
    )
    full_every: Annotated[int, Field(ge=1, le=1001)] = Field(
        1,
        description="Number of snapshots of which one is full; the others are deltas to the previous "
        "one. 1: all snapshots are full.",
    )
    deadline_seconds: SaveSeconds = Field(
        600.0, description="Maximum time that a snapshot waits for the data of other ranks."
    )
    start_from: LocalPath | None = Field(
        None,
        min_length=1,
        description="Snapshot of another run, or the folder of its snapshots, from which this run starts "
        "if it does not resume from `url`. A stream can continue files with the same columns.",
    )
    resume: bool = Field(
        False,
        description="Resume from the newest readable snapshot in the folder; start from the beginning if "
        "there is none. `sparring train --resume` sets it. If false, a folder that contains snapshots "
        "and a storage that contains rows of an earlier run are rejected.",
    )
