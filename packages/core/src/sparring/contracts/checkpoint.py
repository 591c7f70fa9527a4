"""Requests and results of saves and loads, as users and framework adapters give and get them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy.typing as npt

from sparring.errors import InvalidArgumentError

__all__ = ["EMBEDDING_PARTS", "Loaded", "Retention", "SaveOptions", "Saved", "State", "UNDO_BYTES"]

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


EMBEDDING_PARTS = "embedding_parts"
"""Name of the state that says what parts an embedding has, for exports: values table → part →
[begin, end], as ``{"item": {"bias": [0, 1], "embedding": [1, 33]}}``."""

UNDO_BYTES = 64 << 20
"""Old rows that a save holds before steps wait for it."""


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """Options of a save.

    Args:
        undo_bytes: old rows that are held in memory before steps wait for the save.
        deadline_seconds: how long the first rank waits for the parts of the others, and they for its
            commit; and how long `close`, the end of the program, and whatever must not begin before
            the save is over, wait for it. Above 0.
        retention: which snapshots stay when this one was committed; None: all.
        share: of the time of one core that all threads of a save in the background take together, above
            0 and at most 1. Steps that keep all cores busy take about as much longer, and the save
            takes its processor time divided by it. 1: no pauses. None: 1 where there are more than
            4 cores, and else 0.15. There are no pauses while three quarters of `undo_bytes` wait,
            and once a caller waits for the save.
        is_base: count from now on which keys change, so that a later save can name this one as
            its base. It costs at most 64 MiB a table and some time in each step.
        report_failure: the step after a save that failed in the background raises `BackgroundError`;
            otherwise the task alone tells of the failure.
        token: of ranks that meet in no collective (`Rendezvous.is_apart`): 1 to 64 letters, digits, ``_``
            or ``-``, the same on all ranks of this save, and of no other save; others give none.
        step: of the snapshot, likewise: such ranks count steps apart. None: that of the container.
    """

    undo_bytes: int = UNDO_BYTES
    deadline_seconds: float = 600.0
    retention: Retention | None = None
    share: float | None = None
    is_base: bool = False
    report_failure: bool = True
    token: str | None = None
    step: int | None = None

    def __post_init__(self) -> None:
        numbers = {"undo_bytes": self.undo_bytes, "deadline_seconds": self.deadline_seconds}
        if self.share is not None:
            numbers["share"] = self.share
        for name, number in numbers.items():
            if isinstance(number, bool) or not isinstance(number, Real):
                raise InvalidArgumentError(f"save: {name} must be a number, found {number!r}")
        # Not a number is not in any range.
        if not (
            self.undo_bytes >= 1
            and 0 < self.deadline_seconds <= threading.TIMEOUT_MAX
            and (self.share is None or 0 < self.share <= 1)
        ):
            raise InvalidArgumentError(
                "save: undo_bytes must be at least 1, deadline_seconds above 0 and finite, and share "
                f"above 0 and at most 1, found undo_bytes={self.undo_bytes}, "
                f"deadline_seconds={self.deadline_seconds} and share={self.share}"
            )


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
    """Result of a load."""

    url: str
    step: int
    rows: Mapping[str, int]
    """Table → rows that this rank took over."""
    states: Mapping[str, State]
    """State that was given to `save`, by name; of this rank, where ranks gave their own."""
