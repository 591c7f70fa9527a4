"""Steps that a run has dropped, because they trained bad events, and the offsets of these events.

    <snapshots.url>/cuts/<good step>-<last step>.quarantined.json

    {"format": 1, "good_step": 120, "last_step": 141, "reason": "…", "begin": 1795804200.0, "time": …,
     "ranges": [{"partition": "clicks/0", "begin": 7680, "end": 9024, "num_events": 1344}]}

The run continues from the state after `good_step`. This counts as step ``last_step + 1``, so that later
versions have higher steps than the dropped ones:

    steps        1 … 120  121 … 141   142   143 …
                 trained   dropped   return  trained

The file is written before anything else changes. A run that is killed during the return therefore
makes it when it is resumed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import fsspec  # type: ignore[import-untyped]  # it ships no types

from sparring.errors import DataError
from sparring_train.columns import CutRange

__all__ = ["Quarantine", "is_dropped", "read_quarantines", "write_quarantine"]

_ENDING = ".quarantined.json"


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Dropped steps of a run, and the offsets of their events."""

    good_step: int
    """The step from whose state the run continues."""
    last_step: int
    """The last dropped step."""
    reason: str
    """Metrics of the bad windows."""
    begin: float
    """Event time of the begin of the first bad window."""
    time: float
    """Time of the return, in seconds since 1970."""
    ranges: tuple[CutRange, ...]
    """Offsets of the events of the dropped steps."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Quarantine:
        """Returns the result of `values`."""
        return cls(**{**values, "ranges": tuple(CutRange(**each) for each in values["ranges"])})

    def values(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        values = asdict(self)
        for each in values["ranges"]:
            del each["read_time"]
        return values

    @property
    def step(self) -> int:
        """The step that the return counts as."""
        return self.last_step + 1

    @property
    def num_events(self) -> int:
        return sum(each.num_events for each in self.ranges)


def is_dropped(step: int, quarantines: Iterable[Quarantine]) -> bool:
    """Returns whether a step was dropped."""
    return any(each.good_step < step <= each.last_step for each in quarantines)


def write_quarantine(snapshots_url: str, quarantine: Quarantine) -> None:
    """Adds dropped steps to a run.

    Raises:
        OSError: the file cannot be written.
    """
    system, path = fsspec.core.url_to_fs(snapshots_url)
    folder = f"{path.rstrip('/')}/cuts"
    system.makedirs(folder, exist_ok=True)
    name = f"{folder}/{quarantine.good_step:012d}-{quarantine.last_step:012d}{_ENDING}"
    with system.open(f"{name}.unfinished", "w") as file:
        json.dump({"format": 1, **quarantine.values()}, file)
    system.mv(f"{name}.unfinished", name)


def read_quarantines(snapshots_url: str) -> list[Quarantine]:
    """Returns the dropped steps of a run, in their order.

    Raises:
        DataError: a file cannot be read.
    """
    try:
        system, path = fsspec.core.url_to_fs(snapshots_url)
        folder = f"{path.rstrip('/')}/cuts"
        system.invalidate_cache(folder)
        found = [json.loads(system.cat_file(name)) for name in system.glob(f"{folder}/*{_ENDING}")]
        return sorted(map(_decoded, found), key=lambda each: each.last_step)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"reading the quarantined offsets of the run in {snapshots_url} failed: {error!r}; restore "
            f"the files cuts/*{_ENDING}",
            path=snapshots_url,
        ) from error


def _decoded(values: dict[str, Any]) -> Quarantine:
    if (found := values.pop("format")) != 1:
        raise ValueError(f"the format is {found!r}, expected 1")
    return Quarantine.of(values)
