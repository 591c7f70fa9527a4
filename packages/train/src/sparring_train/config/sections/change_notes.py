"""The `change_notes` section: publication of changed rows."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sparring.contracts import LocalPath
from sparring_train.config.section import PositiveFloat, PositiveInt, Section

__all__ = ["ChangeNotesConfig"]


class ChangeNotesConfig(Section):
    """Publishes which rows have changed, for servers that cache the storage of this run, such as Redis.
    Rows that are pending in upper tiers are written to the storage before each publication.
    """

    every_steps: PositiveInt | None = Field(
        None, description="Number of steps between publications; null: no publications by steps."
    )
    every_seconds: PositiveFloat | None = Field(
        None, description="Seconds between publications; null: no publications by time."
    )
    url: LocalPath | None = Field(
        None,
        min_length=1,
        description="Folder of the notes, readable by servers: a path, or a URL of fsspec. Relative "
        "paths start at the folder of the configuration file. Null: notes are stored with the rows, if "
        "the storage supports it, for example `redis`.",
    )
    keep: Annotated[int, Field(ge=2, le=100_000)] = Field(
        64,
        description="Number of notes to keep, the newest ones. A server that missed older notes clears "
        "its cache gradually.",
    )

    @property
    def is_on(self) -> bool:
        """Whether notes are published."""
        return self.every_steps is not None or self.every_seconds is not None
