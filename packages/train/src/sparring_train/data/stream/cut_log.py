"""Log of the cuts that a run has trained, in the folder of its snapshots.

    <snapshots.url>/cuts/<number>-<first step>.parquet

One row per step and partition:

    step, begin, end, num_events   int64, see `Cut`
    partition                      string
    world_size                     int32
    event_time, read_time          float64, null if unknown. Logs of earlier versions lack these columns.

A file is written before each snapshot, with the cuts since the previous one. If a run was interrupted
and resumed, its next file replaces the cuts of the same and later steps in earlier files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec  # type: ignore[import-untyped]  # it ships no types
import pyarrow
from pyarrow import parquet

from sparring.errors import DataError
from sparring_train.columns import Cut, CutRange

__all__ = ["CutLog", "RecordedCut", "read_cuts"]

_FOLDER = "cuts"
_ENDING = ".parquet"
_UNFINISHED = ".unfinished"
_SCHEMA = pyarrow.schema(
    {
        "step": pyarrow.int64(),
        "partition": pyarrow.string(),
        "begin": pyarrow.int64(),
        "end": pyarrow.int64(),
        "num_events": pyarrow.int64(),
        "world_size": pyarrow.int32(),
        "event_time": pyarrow.float64(),
        "read_time": pyarrow.float64(),
    }
)


@dataclass(frozen=True, slots=True)
class RecordedCut:
    """Cut of one step in the log."""

    step: int
    ranges: tuple[CutRange, ...]
    world_size: int
    event_time: float | None = None
    """See `Cut.event_time`."""


class CutLog:
    """Records cuts.

    Args:
        snapshots_url: folder of the run's snapshots, on the first rank; None records nothing.
        world_size: number of ranks.
        tell: reports a one-line message to the user.
    """

    def __init__(
        self, snapshots_url: str | None, world_size: int, tell: Callable[[str], None]
    ) -> None:
        self._url, self._world_size, self._tell = snapshots_url, world_size, tell
        self._rows: list[dict[str, Any]] = []

    def add(self, step: int, cut: Cut) -> None:
        """Adds the cut that a step has trained."""
        if self._url is None:
            return
        self._rows += [
            {
                "step": step,
                "partition": each.partition,
                "begin": each.begin,
                "end": each.end,
                "num_events": each.num_events,
                "world_size": self._world_size,
                "event_time": cut.event_time,
                "read_time": each.read_time,
            }
            for each in cut.ranges
        ]

    def flush(self) -> None:
        """Writes the cuts since the last call. If that fails, the next call tries again."""
        if self._url is None or not self._rows:
            return
        try:
            system, folder = _folder_of(self._url)
            system.makedirs(folder, exist_ok=True)
            numbers = [_number_of(each) for each in _list(system, folder)]
            number = max(numbers, default=-1) + 1
            name = f"{folder}/{number:08d}-{self._rows[0]['step']:012d}{_ENDING}"
            with system.open(name + _UNFINISHED, "wb") as file:
                parquet.write_table(pyarrow.Table.from_pylist(self._rows, _SCHEMA), file)
            system.mv(name + _UNFINISHED, name)
        except OSError as error:
            self._tell(
                f"writing the cuts of the run to {self._url} failed: {error}; training continues, and "
                "the next snapshot tries again"
            )
            return
        self._rows = []


def read_cuts(
    snapshots_url: str, steps: Sequence[tuple[int, int]] | None = None
) -> list[RecordedCut]:
    """Returns the recorded cuts of a run, in the order of steps.

    Args:
        snapshots_url: folder of the run's snapshots.
        steps: half-open ranges of the steps that are needed; files without them are not read. None: all.

    Raises:
        DataError: the log cannot be read.
    """
    found: dict[int, list[dict[str, Any]]] = {}
    try:
        system, folder = _folder_of(snapshots_url)
        names = _list(system, folder)
        for name, begin, end in _list_steps(names):
            if steps is not None and not any(
                max(begin, each[0]) < min(end, each[1]) for each in steps
            ):
                continue
            with system.open(name, "rb") as file:
                rows = parquet.read_table(file, schema=_SCHEMA).to_pylist()
            first = rows[0]["step"]
            found = {step: each for step, each in found.items() if step < first}
            for row in rows:
                found.setdefault(row["step"], []).append(row)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(
            f"reading the cuts of the run in {snapshots_url} failed: {error}; check the URL, and restore "
            "its folder cuts",
            path=snapshots_url,
        ) from error
    return [
        _recorded(step, rows)
        for step, rows in sorted(found.items())
        if steps is None or any(begin <= step < end for begin, end in steps)
    ]


def _list_steps(names: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yields each file with the half-open range of steps that no later file replaces."""
    end = 2**63
    found = []
    for name in reversed(names):
        first = int(name.removesuffix(_ENDING).rpartition("-")[2])
        found.append((name, first, end))
        end = min(end, first)
    yield from reversed(found)


def _recorded(step: int, rows: list[dict[str, Any]]) -> RecordedCut:
    names = ("partition", "begin", "end", "num_events", "read_time")
    ranges = tuple(CutRange(**{name: row[name] for name in names}) for row in rows)
    return RecordedCut(step, ranges, rows[0]["world_size"], rows[0]["event_time"])


def _folder_of(snapshots_url: str) -> tuple[Any, str]:
    system, path = fsspec.core.url_to_fs(snapshots_url)
    return system, f"{path.rstrip('/')}/{_FOLDER}"


def _list(system: Any, folder: str) -> list[str]:
    """Returns the files of the log, in the order of their numbers."""
    system.invalidate_cache(folder)
    return sorted(system.glob(f"{folder}/*{_ENDING}")) if system.isdir(folder) else []


def _number_of(path: str) -> int:
    return int(path.rpartition("/")[2].partition("-")[0])
