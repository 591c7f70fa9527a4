"""Options and results of saves and loads, for users and framework adapters.

Examples:
    >>> from sparring import Retention, SaveOptions
    >>> options = SaveOptions(is_base=True, retention=Retention("runs/a", keep=3))
    >>> options.deadline_seconds, options.retention.keep
    (600.0, 3)
"""

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
    """Additional state that a training needs to resume: numbers and arrays, but no objects.

    Examples:
        >>> import numpy as np
        >>> from sparring import State
        >>> states = {"model": State({"epoch": 3}, {"weight": np.zeros((2, 2))})}
        >>> states["model"].values
        {'epoch': 3}
    """

    values: JSON = None
    """None, bool, int, float, str, and lists and string-keyed mappings of these."""
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """Arrays by name. They must not change until the save has finished."""
    is_of_rank: bool = False
    """Whether each rank saves a separate state; otherwise the state of the first rank is saved."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Rule that selects the snapshots to keep after a snapshot was committed.

    Examples:
        >>> from sparring import Retention, SaveOptions
        >>> SaveOptions(retention=Retention("runs/a", keep=3)).retention.keep
        3
    """

    root: str
    """Folder of the snapshots."""
    keep: int
    """Number of newest snapshots to keep, in addition to the bases that they need. The last 1,000
    snapshots that this container saved or loaded count as newer than all others, in that order."""
    damaged: tuple[str, ...] = ()
    """URLs of snapshots that are known to be damaged; they are neither counted nor removed."""
    pinned: tuple[str, ...] = ()
    """URLs of snapshots that are kept at any age, with their bases."""


EMBEDDING_PARTS = "embedding_parts"
"""Name of the state that describes the parts of embeddings, for exports. Its values map table → part
→ [begin, end], for example ``{"item": {"bias": [0, 1], "embedding": [1, 33]}}``."""

UNDO_BYTES = 64 << 20
"""Default of `SaveOptions.undo_bytes`."""

SaveSeconds = Annotated[
    Number,
    Field(
        gt=0,
        le=threading.TIMEOUT_MAX,
        description="Maximum time that the first rank waits for the parts of the others, and that they "
        "wait for its commit. `close`, the end of the program, and calls that need the save to be "
        "finished wait at most this long.",
    ),
]


@checked("save")
@settings_dataclass(frozen=True, slots=True, config=SETTINGS)
class SaveOptions:
    """Options of a save."""

    undo_bytes: Annotated[
        WholeNumber,
        Field(
            ge=1,
            description="Memory for old versions of rows that change during a save. If it is full, steps "
            "wait for the save.",
        ),
    ] = UNDO_BYTES
    deadline_seconds: SaveSeconds = 600.0
    retention: Annotated[
        Retention | None,
        Field(description="Which snapshots to keep after this one was committed; None keeps all."),
    ] = None
    share: Annotated[
        Annotated[Number, Field(gt=0, le=1)] | None,
        Field(
            description="Share of one core that all threads of a background save use together. Steps "
            "that keep all cores busy become slower by about this share, and the duration of the save is "
            "its processor time divided by this share. 1: no pauses. None: 1 if there are more than 4 "
            "cores, otherwise 0.15. The save does not pause while three quarters of `undo_bytes` are in "
            "use, or while a caller waits for it."
        ),
    ] = None
    is_base: Annotated[
        bool,
        Field(
            strict=True,
            description="Record which keys change from now on, so that a later save can use this one as "
            "its base. This takes at most 64 MiB per table and some time in each step.",
        ),
    ] = False
    index_keys: Annotated[
        bool,
        Field(
            strict=True,
            description="Write a sorted copy of the changed keys into each delta, so that `sparring "
            "blame` and `sparring get --at` find the versions of a row without reading all deltas.",
        ),
    ] = False
    report_failure: Annotated[
        bool,
        Field(
            strict=True,
            description="Whether the step after a failed background save raises `BackgroundError`; "
            "otherwise only the task reports the failure.",
        ),
    ] = True
    token: Annotated[
        str | None,
        Field(
            description="Only for ranks without a common collective (`Rendezvous.is_independent`): "
            "identifier of the save, 1 to 64 letters, digits, `_` or `-`, the same on all ranks and "
            "different for each save."
        ),
    ] = None
    step: Annotated[
        WholeNumber | None,
        Field(
            description="Only for ranks without a common collective, which count steps separately: the "
            "step of the snapshot. None: the step of the container."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class SaveResult:
    """Result of a save. The snapshot is committed.

    Examples:
        >>> import tempfile
        >>> from sparring import StepContainer, TableConfig
        >>> with tempfile.TemporaryDirectory() as folder, StepContainer() as container:
        ...     container.declare(TableConfig("user", dim=2))
        ...     container.assign("user", [1, 2, 3], [[0, 1], [2, 3], [4, 5]])
        ...     dict(container.save(f"{folder}/step-000000000").rows)
        {'user': 3}
    """

    url: str
    step: int
    base: str | None
    """URL of the base of a delta; None for a full snapshot."""
    rows: Mapping[str, int]
    """Table → number of rows that this rank wrote."""
    seconds: float
    """Time from the moment whose rows are saved to the end of the save."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Result of a load.

    Examples:
        >>> import tempfile
        >>> from sparring import State, StepContainer, TableConfig
        >>> with tempfile.TemporaryDirectory() as folder, StepContainer() as container:
        ...     container.declare(TableConfig("user", dim=2))
        ...     saved = container.save(f"{folder}/step-000000000", states={"data": State({"at": 7})})
        ...     container.load(saved.url).states["data"].values
        {'at': 7}
    """

    url: str
    step: int
    rows: Mapping[str, int]
    """Table → number of rows that this rank loaded, without those that a full storage evicted."""
    states: Mapping[str, State]
    """The states that were passed to `save`, by name; if each rank saved a separate state, this is
    the state of this rank."""
