"""Requests and results of saves and loads, as users and framework adapters give and get them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy.typing as npt
from pydantic import Field
from pydantic.dataclasses import dataclass as settings_dataclass

from sparring.contracts.options import WholeNumber
from sparring.contracts.settings import SETTINGS, Number, checked

__all__ = [
    "EMBEDDING_PARTS",
    "UNDO_BYTES",
    "LoadResult",
    "Retention",
    "SaveOptions",
    "SaveSeconds",
    "SaveResult",
    "State",
]

JSON = Any


@dataclass(frozen=True, slots=True)
class State:
    """Other state that a training needs to go on: numbers and arrays, no objects."""

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
    """Number of snapshots that stay, the newest; a snapshot that another needs stays too. Those that
    this container saved or loaded, the last 1,000, are newer than all others, the last one the
    newest."""
    damaged: tuple[str, ...] = ()
    """URLs of those that are known to be damaged: neither counted nor removed."""
    pinned: tuple[str, ...] = ()
    """URLs of those that stay however old they are, with their bases."""


EMBEDDING_PARTS = "read_embedding_parts"
"""Name of the state that says what parts an embedding has, for exports: values table → part →
[begin, end], as ``{"item": {"bias": [0, 1], "embedding": [1, 33]}}``."""

UNDO_BYTES = 64 << 20
"""Old rows that a save holds before steps wait for it."""

SaveSeconds = Annotated[
    Number,
    Field(
        gt=0,
        le=threading.TIMEOUT_MAX,
        description="How long the first rank waits for the parts of the others, and they for its commit; "
        "and how long `close`, the end of the program, and whatever must not begin before the save is "
        "over, wait for it.",
    ),
]


@checked("save")
@settings_dataclass(frozen=True, slots=True, config=SETTINGS)
class SaveOptions:
    """Options of a save."""

    undo_bytes: Annotated[
        WholeNumber,
        Field(ge=1, description="Old rows that are held in memory before steps wait for the save."),
    ] = UNDO_BYTES
    deadline_seconds: SaveSeconds = 600.0
    retention: Annotated[
        Retention | None,
        Field(description="Which snapshots stay when this one was committed; None: all."),
    ] = None
    share: Annotated[
        Annotated[Number, Field(gt=0, le=1)] | None,
        Field(
            description="Of the time of one core that all threads of a save in the background take "
            "together. Steps that keep all cores busy take about as much longer, and the save takes its "
            "processor time divided by it. 1: no pauses. None: 1 where there are more than 4 cores, and "
            "else 0.15. There are no pauses while three quarters of `undo_bytes` wait, and once a caller "
            "waits for the save."
        ),
    ] = None
    is_base: Annotated[
        bool,
        Field(
            strict=True,
            description="Count from now on which keys change, so that a later save can name this one as "
            "its base. It costs at most 64 MiB a table and some time in each step.",
        ),
    ] = False
    report_failure: Annotated[
        bool,
        Field(
            strict=True,
            description="The step after a save that failed in the background raises `BackgroundError`; "
            "otherwise the task alone tells of the failure.",
        ),
    ] = True
    token: Annotated[
        str | None,
        Field(
            description="Of ranks that meet in no collective (`Rendezvous.is_independent`): 1 to "
            "64 letters, "
            "digits, `_` or `-`, the same on all ranks of this save, and of no other save; others give "
            "none."
        ),
    ] = None
    step: Annotated[
        WholeNumber | None,
        Field(
            description="Of the snapshot, likewise: such ranks count steps apart. None: that of the "
            "container."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class SaveResult:
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
class LoadResult:
    """Result of a load."""

    url: str
    step: int
    rows: Mapping[str, int]
    """Table → rows that this rank took over."""
    states: Mapping[str, State]
    """State that was given to `save`, by name; of this rank, where ranks gave their own."""
