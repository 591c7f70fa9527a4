"""What is asked of a save, and what a save and a load gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

__all__ = ["Loaded", "Retention", "SaveCounters", "Saved", "State"]

JSON = Any


@dataclass(frozen=True, slots=True)
class State:
    """What else a training must have again to go on: numbers and arrays, no objects."""

    values: JSON = None
    """None, bool, int, float, str, and lists and string-keyed mappings of these."""
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """By name; they must not change until the save has ended."""
    is_of_rank: bool = False
    """Every rank gives its own; otherwise that of the first rank is saved, for all."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Which snapshots stay when one was committed."""

    root: str
    """The folder that holds them."""
    keep: int
    """How many, the newest; a snapshot that another needs stays too. Those that this container saved
    or loaded, the last 1,000, are newer than all others, the last one the newest."""
    damaged: tuple[str, ...] = ()
    """URLs of those that are known to be damaged: neither counted nor removed."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A snapshot that this rank has done its part of; the first rank has committed it."""

    url: str
    step: int
    base: str | None
    """Of a delta; None for a full snapshot."""
    rows: Mapping[str, int]
    """Table → rows that this rank wrote."""
    seconds: float
    """From the freeze to the end."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was taken over from a snapshot."""

    url: str
    step: int
    rows: Mapping[str, int]
    """Table → rows that this rank took over."""
    states: Mapping[str, State]
    """What was given to `save` under these names; of this rank, where ranks gave their own."""


@dataclass(slots=True)
class SaveCounters:
    """What saves did since the container was made, on this rank."""

    saves: int = 0
    """That have ended well."""
    failed: int = 0
    """That have not, beside steps or not."""
    freeze_seconds: float = 0.0
    """For which steps stood still while tables were frozen."""
    wait_seconds: float = 0.0
    """For which steps waited, as too many old rows were kept already."""
    work_seconds: float = 0.0
    """Processor time of all threads that saved."""
    rows_kept: int = 0
    """Old rows that steps read for a save."""
    most_kept_bytes: int = 0
    """That were held at a time."""
