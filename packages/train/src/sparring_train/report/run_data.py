"""Results of a run as data, which its report shows and `sparring report` compares.

A report contains them as JSON in a ``<script type="application/json">``, which browsers do not run. A
snapshot of a run with a report contains the same data as the state ``report``.
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
    "MEMORY",
    "NEW_IDS",
    "REPORT",
    "SAMPLES",
    "SECONDS",
    "TOTAL",
    "WINDOW",
    "Baseline",
    "Calibration",
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
"""Name of the state of a snapshot that contains a `RunData`."""

NEW_IDS = "new ids"
"""Slice of test samples whose id did not occur in the training."""

SECONDS = "seconds/"
"""Prefix of series of cumulative seconds; `sparring_train.report.step_times.PARTS` or `TOTAL` follows."""

TOTAL = "total"
"""Name of the sum of all parts of the time."""

SAMPLES = "samples"
"""Series with the cumulative number of training samples."""

MEMORY = "memory"
"""Series with the resident memory of the first rank's process, in bytes."""

WINDOW = "window/"
"""Prefix of series over windows of event time. Their steps are the ends of windows, in seconds since
1970. A metric follows, or ``<metric>/<column>=<value>``."""

_FORMAT = 1
"""Incremented if older releases cannot read new data; not incremented for new keys."""

_MAX_BYTES = 256 << 20
_OPEN = '<script type="application/json" id="sparring-run">'
_CLOSE = "</script>"


def _or_nan(value: Any) -> Any:
    return math.nan if value is None else value


Number = Annotated[float, BeforeValidator(_or_nan)]
"""JSON represents numbers that are not finite by null, which is read as NaN."""


class _Part(BaseModel):
    # Keys of later releases are ignored.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, hide_input_in_errors=True)


class Points(_Part):
    """Values of a number over the steps of a run."""

    steps: list[int]
    """Ascending."""
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
    """The newest snapshot when the report was written, or the one that contains the report."""

    url: str
    step: int
    manifest_hash: str


class Slice(_Part):
    """Metrics of the test samples whose id of one feature occurred in training within a range of
    frequencies."""

    feature: str
    name: str
    """For example `NEW_IDS`."""
    met: str = ""
    """Number of occurrences of the id in the first epoch, in words."""
    num_samples: int
    metrics: dict[str, Number]
    one_in: int = 1
    """One of this many ids was counted; samples with other ids are left out."""


class Baseline(_Part):
    """Metrics of predictions without a model on the test samples."""

    name: str
    """Description of the prediction, for example ``the mean of each item``."""
    metrics: dict[str, Number]


class Calibration(_Part):
    """Test samples with similar predictions."""

    num_samples: int
    predicted: Number
    """Mean predicted probability."""
    observed: Number
    """Share of samples with the label 1."""


class RunData(_Part):
    """Results of a run, with everything that is needed to compare it to another one."""

    format: int = _FORMAT
    started: str = ""
    """UTC, in ISO 8601. The last start, if the run was resumed."""
    seconds: Number
    """Time from the first step since `started` to the last evaluation."""
    steps: int
    resumed_steps: int = 0
    metrics: dict[str, Number] = {}
    undefined_metrics: str = ""
    """Names of metrics that the test rows do not determine, and the reason."""
    best: dict[str, Number] = {}
    """Metric → best possible value, if it is known."""
    baselines: list[Baseline] = []
    """Predictions without a model, for comparison; only present if `best` is unknown."""
    validation: dict[str, Number] = {}
    """Metrics on the validation samples after `best_step`."""
    best_step: int | None = None
    rows: dict[str, int] = {}
    not_admitted: dict[str, int] = {}
    skipped: dict[str, int] = {}
    tiers: dict[str, list[dict[str, Any]]] = {}
    series: dict[str, Points] = {}
    """Name → points: ``loss``, metrics, ``validation/<metric>``, ``rows/<table>``, ``seconds/<part>``,
    ``samples``, ``memory``, ``window/<metric>``."""
    calibration: list[Calibration] = []
    """Groups of test samples by ascending prediction, for models with a binary label."""
    slices: list[Slice] = []
    slices_absence: str = ""
    """Why there are no slices, if a user might expect them."""
    config: dict[str, Any] = {}
    versions: dict[str, str] = {}
    """Distribution → version."""
    backends: dict[str, str] = {}
    """Framework, storage and collective → name."""
    host: Host | None = None
    world_size: int = 1
    threads: int | None = None
    """Number of threads per rank."""
    peak_memory_bytes: int | None = None
    """Maximum resident memory of a process of the run, over all ranks."""
    snapshot: SnapshotOfRun | None = None

    @property
    def steps_per_second(self) -> float | None:
        """Steps per second of this run, including evaluation; None without steps."""
        taken = self.steps - self.resumed_steps
        return taken / self.seconds if taken and self.seconds > 0 else None

    def as_json(self) -> dict[str, Any]:
        """Returns JSON values, with None for numbers that are not finite."""
        values: dict[str, Any] = json.loads(self.model_dump_json())
        return values


def run_data(values: Any, place: str) -> RunData:
    """Reads the result of `RunData.as_json`; `place` is its name in messages.

    Raises:
        DataError: the values are no such data, or were written by a later release.
    """
    found = values.get("format") if isinstance(values, dict) else None
    if isinstance(found, int) and found > _FORMAT:
        raise DataError(
            f"{place}: found data of format {found}, expected at most {_FORMAT}; read it "
            "with the release that wrote it, or a later one: pip install --upgrade sparring-train",
            path=place,
        )
    try:
        return RunData.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "all"
        raise DataError(
            f"{place}: its data are damaged: {where}: {first['msg']}; use another copy of the file, "
            "or train again",
            path=place,
        ) from error


def render_run_data(data: RunData) -> str:
    """Renders the element of a page that contains the data."""
    text = json.dumps(data.as_json(), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Escaped, so that no text of the data can close the element.
    return _OPEN + text.replace("<", r"\u003c") + _CLOSE


def read_report(path: str | PathLike[str]) -> RunData:
    """Reads the data of a report.

    Raises:
        DataError: the file cannot be read, contains no data, is damaged, or was written by a later
            release.
    """
    place = str(path)
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise DataError(
            f"reading the report {place} failed: {error.strerror}; give the HTML file of a run "
            "(report.path), or a snapshot",
            path=place,
        ) from error
    _, begin, rest = content.partition(_OPEN.encode())
    if not begin or len(content) > _MAX_BYTES:
        raise DataError(
            f"{place}: found no data of a run; give the HTML file that `sparring train` wrote to "
            "report.path, and train again if an old release without such data wrote it",
            path=place,
        )
    text, end, _ = rest.partition(_CLOSE.encode())
    try:
        if not end:
            raise ValueError("the file ends early")
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{place}: its data are damaged: {error}; use another copy of the file, or train again",
            path=place,
        ) from error
    return run_data(values, place)
