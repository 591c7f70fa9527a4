"""Results of a run as data: what its report shows, and what `sparring report` compares.

A report holds it as JSON in a ``<script type="application/json">``, which no browser runs; a snapshot
of a run with a report holds the same as the state ``report``.
"""

from __future__ import annotations

import json
import math
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from sparring.errors import DataError

__all__ = [
    "NEW_IDS",
    "REPORT",
    "Baseline",
    "Host",
    "Points",
    "RunData",
    "Slice",
    "SnapshotOfRun",
    "render_run_data",
    "read_report",
    "run_data",
]

REPORT = "report"
"""The name of the state of a snapshot that holds a `RunData`."""

NEW_IDS = "new ids"
"""The slice of test samples whose id was never met in training."""

_FORMAT = 1
"""Raised when an older release could no longer read what is written; new keys do not raise it."""

_MAX_BYTES = 256 << 20
_OPEN = '<script type="application/json" id="sparring-run">'
_CLOSE = "</script>"


def _or_nan(value: Any) -> Any:
    return math.nan if value is None else value


Number = Annotated[float, BeforeValidator(_or_nan)]
"""JSON has null for one that is not finite; it reads as NaN."""


class _Part(BaseModel):
    # Keys of later releases are skipped.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, hide_input_in_errors=True)


class Points(_Part):
    """A number over the steps of a run."""

    steps: list[int]
    """Rising."""
    values: list[Number]

    @model_validator(mode="after")
    def _are_pairs(self) -> Points:
        if len(self.steps) != len(self.values):
            raise ValueError(f"{len(self.steps)} steps have {len(self.values)} values")
        return self


class Host(_Part):
    """The machine of the first rank."""

    name: str
    system: str
    processor: str
    usable_cores: int
    memory_bytes: int | None = None
    gpus: list[str] = []


class SnapshotOfRun(_Part):
    """The newest snapshot of a run when its report was written, or the one that holds the report."""

    url: str
    step: int
    manifest_hash: str


class Slice(_Part):
    """Quality on those test samples whose id of a feature was met so often in training."""

    feature: str
    name: str
    """As `NEW_IDS`."""
    met: str = ""
    """In words, how often the first epoch of the training had the id."""
    num_samples: int
    metrics: dict[str, Number]
    one_in: int = 1
    """Of this many ids one was counted; samples of the others are left out."""


class Baseline(_Part):
    """Quality on the test samples of predictions that need no model."""

    name: str
    """In words, what is predicted, as ``the mean of each item``."""
    metrics: dict[str, Number]


class RunData(_Part):
    """Results of a run, with all that is needed to compare it to another."""

    format: int = _FORMAT
    started: str = ""
    """UTC, in ISO 8601; that of the last start, where the run was resumed."""
    seconds: Number
    """From the first step to the last evaluation, since `started`."""
    steps: int
    resumed_steps: int = 0
    metrics: dict[str, Number] = {}
    undefined_metrics: str = ""
    """Names of metrics that the test rows do not determine, and the reason."""
    best: dict[str, Number] = {}
    """Name of a metric → the best value that can be reached, where that is known."""
    baselines: list[Baseline] = []
    """Where `best` is not known."""
    validation: dict[str, Number] = {}
    """Metrics on the validation samples after `best_step`."""
    best_step: int | None = None
    rows: dict[str, int] = {}
    not_admitted: dict[str, int] = {}
    skipped: dict[str, int] = {}
    tiers: dict[str, list[dict[str, Any]]] = {}
    series: dict[str, Points] = {}
    """Name → points: ``loss``, metrics, ``validation/<metric>``, ``rows/<table>``."""
    slices: list[Slice] = []
    slices_absence: str = ""
    """Why there are none, where a person would expect some."""
    config: dict[str, Any] = {}
    versions: dict[str, str] = {}
    """Distribution → version."""
    backends: dict[str, str] = {}
    """Framework, storage and collective → name."""
    host: Host | None = None
    world_size: int = 1
    threads: int | None = None
    """Of each rank."""
    peak_memory_bytes: int | None = None
    """Of the process with the largest."""
    snapshot: SnapshotOfRun | None = None

    @property
    def steps_per_second(self) -> float | None:
        """Of the steps that this run took, evaluation included; None where it took none."""
        taken = self.steps - self.resumed_steps
        return taken / self.seconds if taken and self.seconds > 0 else None

    def as_json(self) -> dict[str, Any]:
        """Values of JSON: None for a number that is not finite."""
        values: dict[str, Any] = json.loads(self.model_dump_json())
        return values


def run_data(values: Any, place: str) -> RunData:
    """Reads what `RunData.as_json` gave; `place` is how messages call it.

    Raises:
        DataError: it is no such data, or that of a later release.
    """
    found = values.get("format") if isinstance(values, dict) else None
    if isinstance(found, int) and found > _FORMAT:
        raise DataError(
            f"{place}: its data have format {found}, this release reads up to {_FORMAT}; read it "
            "with the release that wrote it, or a later one: pip install --upgrade sparring-train",
            path=place,
        )
    try:
        return RunData.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "all"
        raise DataError(
            f"{place}: its data are damaged: {where}: {first['msg']}; take another copy of the file, "
            "or train again",
            path=place,
        ) from error


def render_run_data(data: RunData) -> str:
    """The element of a page that holds the data."""
    text = json.dumps(data.as_json(), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # So that no text of the data ends the element.
    return _OPEN + text.replace("<", r"\u003c") + _CLOSE


def read_report(path: str | PathLike[str]) -> RunData:
    """The data of a report.

    Raises:
        DataError: the file cannot be read, holds no data, is damaged, or is of a later release.
    """
    place = str(path)
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise DataError(
            f"{place}: the report cannot be read: {error.strerror}; give the HTML file of a run, "
            "as report.path names it, or a snapshot",
            path=place,
        ) from error
    _, begin, rest = content.partition(_OPEN.encode())
    if not begin or len(content) > _MAX_BYTES:
        raise DataError(
            f"{place}: found no data of a run; give the HTML file that `sparring train` wrote to "
            "report.path, and train again where a release without such data wrote it",
            path=place,
        )
    text, end, _ = rest.partition(_CLOSE.encode())
    try:
        if not end:
            raise ValueError("the file ends within them")
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{place}: its data are damaged: {error}; take another copy of the file, or train again",
            path=place,
        ) from error
    return run_data(values, place)
