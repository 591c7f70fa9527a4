"""Where and how often a run is saved: the `snapshots` section."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sparring.adapter import SaveSeconds
from sparring.contracts import LocalPath
from sparring_train.config.section import PositiveFloat, PositiveInt, Section

__all__ = ["SnapshotsConfig"]


class SnapshotsConfig(Section):
    """Snapshots are written in the background of steps, and once more when training ends."""

    url: LocalPath | None = Field(
        None,
        min_length=1,
        description="The folder of this run's snapshots, which all ranks reach: a path, or a URL "
        "of fsspec as s3://bucket/run; null saves none. Relative paths start at the file's "
        "folder.",
    )
    every_steps: PositiveInt | None = Field(
        None, description="Save after every so many steps; null does not count steps."
    )
    every_minutes: PositiveFloat | None = Field(
        None, description="Save when so much time has passed; null does not look at the clock."
    )
    at_end: bool = Field(True, description="Save when training has ended.")
    keep: Annotated[int, Field(ge=2, le=1_000_000)] = Field(
        3,
        description="How many snapshots stay, the newest; one that a delta needs stays too, and "
        "always two that share no file.",
    )
    full_every: PositiveInt = Field(
        1,
        description="One in so many snapshots is full; those between are deltas over the one "
        "before them. 1 writes full ones only.",
    )
    deadline_seconds: SaveSeconds = Field(
        600.0, description="How long a snapshot waits for the parts of other ranks."
    )
    resume: bool = Field(
        False,
        description="Go on from the newest snapshot in the folder that can be read; where there is "
        "none, start from the beginning. `sparring train --resume` sets it. Without it, a folder "
        "that has snapshots is refused, and so is a storage that has rows of an earlier run.",
    )
