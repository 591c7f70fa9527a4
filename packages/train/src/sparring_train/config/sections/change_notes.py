"""When servers with caches before the backend learn of trained rows: the `change_notes` section."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sparring.contracts import LocalPath
from sparring_train.config.section import PositiveFloat, PositiveInt, Section

__all__ = ["ChangeNotesConfig"]


class ChangeNotesConfig(Section):
    """Notes of which rows have changed, for servers with caches before the storage that this run trains
    into: Redis, say. Before each, rows that wait in tiers above go down to it.
    """

    every_steps: PositiveInt | None = Field(
        None, description="Publish after every so many steps; null does not count steps."
    )
    every_seconds: PositiveFloat | None = Field(
        None, description="Publish when so much time has passed; null does not look at the clock."
    )
    url: LocalPath | None = Field(
        None,
        min_length=1,
        description="The folder of the notes, which servers reach: a path, or a URL of fsspec. Relative "
        "paths start at the file's folder. Null: they are with the rows, where the storage keeps notes, "
        "as `redis` does.",
    )
    keep: Annotated[int, Field(ge=2, le=100_000)] = Field(
        64,
        description="How many notes stay, the newest. A server that has missed more empties its cache "
        "gradually.",
    )

    @property
    def is_on(self) -> bool:
        """Whether any are published."""
        return self.every_steps is not None or self.every_seconds is not None
