"""Log of the cuts that a run has trained, in the folder of its snapshots.

    <snapshots.url>/cuts/<number>-<first step>.parquet

One row per step and partition:

    step, begin, end, num_events   int64, see `Cut`
    partition                      string
    world_size                     int32
    event_time, read_time          float64, null if unknown. Logs of earlier versions lack these columns.
    read_number                    int32, null unless the data are a join: rows of one read have the same
                                   number. A read without events has one row with an empty partition.
    watermark, max_examples        float64 and int64, see `CutRead`

A file is written before each snapshot, and when many cuts are waiting. If a run was interrupted
and resumed, its next file replaces the cuts of the same and later steps in earlier files.

64 small files are replaced by one with the number of the last of them and the same cuts. It replaces the
cuts of the others by the rule above, so that the log can be read after an interruption.

`sparring_train.data.stream.quarantine` describes the files of steps that the run has dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import fsspec  # type: ignore[import-untyped]  # it ships no types
import pyarrow
from pyarrow import compute, parquet

from sparring.errors import DataError
from sparring_train.columns import Cut, CutRange, CutRead
from sparring_train.data.stream.quarantine import is_dropped, read_quarantines

__all__ = ["CutLog", "RecordedCut", "join_ranges", "read_cuts"]

_FOLDER = "cuts"
_ENDING = ".parquet"
_UNFINISHED = ".unfinished"
_MAX_WAITING_ROWS = 20_000
"""Number of rows in memory after which they are written."""
_MAX_SMALL_FILES = 64
_SMALL_BYTES = 1 << 16
_READ_ATTEMPTS = 5
_RANGE = ("partition", "begin", "end", "num_events", "read_time")
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
        "read_number": pyarrow.int32(),
        "watermark": pyarrow.float64(),
        "max_examples": pyarrow.int64(),
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
    reads: tuple[CutRead, ...] = ()
    """See `Cut.reads`."""


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
        self._flush_at = _MAX_WAITING_ROWS

    @property
    def is_written(self) -> bool:
        """Whether all cuts are in files."""
        return not self._rows

    def add(self, step: int, cut: Cut) -> None:
        """Adds the cut that a step has trained."""
        if self._url is None:
            return
        shared = {"step": step, "world_size": self._world_size, "event_time": cut.event_time}
        if not cut.reads:
            self._rows += [shared | _row_of(each) for each in cut.ranges]
        for number, read in enumerate(cut.reads):
            join = {
                "read_number": number,
                "watermark": read.watermark,
                "max_examples": read.max_examples,
            }
            ranges = read.ranges or (CutRange("", 0, 0, 0),)
            self._rows += [shared | _row_of(each) | join for each in ranges]
        if len(self._rows) >= self._flush_at:
            self.flush()

    def flush(self) -> None:
        """Writes the cuts since the last call. If that fails, the next call tries again."""
        if self._url is None or not self._rows:
            return
        try:
            system, folder = _folder_of(self._url)
            system.makedirs(folder, exist_ok=True)
            numbers = [_number_of(each) for each in _list(system, folder)]
            number = max(numbers, default=-1) + 1
            _write(system, folder, number, pyarrow.Table.from_pylist(self._rows, _SCHEMA))
        except OSError as error:
            self._tell(
                f"writing the cuts of the run to {self._url} failed: {error}; training continues, and "
                "the next snapshot tries again"
            )
            self._flush_at = len(self._rows) + _MAX_WAITING_ROWS
            return
        self._rows, self._flush_at = [], _MAX_WAITING_ROWS
        try:
            _merge_files(system, folder)
        except (OSError, pyarrow.ArrowException) as error:
            self._tell(
                f"merging the files of the cuts of the run in {self._url} failed: {error}; training "
                "continues, and the next snapshot tries again"
            )


def _write(system: Any, folder: str, number: int, rows: pyarrow.Table) -> str:
    name = f"{folder}/{number:08d}-{rows['step'][0].as_py():012d}{_ENDING}"
    with system.open(name + _UNFINISHED, "wb") as file:
        parquet.write_table(rows, file)
    system.mv(name + _UNFINISHED, name)
    return name


def _merge_files(system: Any, folder: str) -> None:
    """Replaces the newest small files by one, if there are too many."""
    names = _list(system, folder)
    if len(names) < _MAX_SMALL_FILES:
        return
    small: list[str] = []
    for name in reversed(names):
        if system.size(name) >= _SMALL_BYTES:
            break
        small.insert(0, name)
    if len(small) < _MAX_SMALL_FILES:
        return
    tables: list[pyarrow.Table] = []
    end: int | None = None  # Later files repeat the steps from here on.
    for name in reversed(small):
        with system.open(name, "rb") as file:
            # The memory pool would keep the memory of each thread.
            options = {"use_threads": False, "pre_buffer": False}
            found = parquet.read_table(file, schema=_SCHEMA, **options)
        first = found["step"][0].as_py()
        tables.insert(0, found if end is None else found.filter(compute.less(found["step"], end)))
        end = first if end is None else min(first, end)
    rows = pyarrow.concat_tables(tables).combine_chunks()
    written = _write(system, folder, _number_of(small[-1]), rows)
    del tables, found, rows
    pyarrow.default_memory_pool().release_unused()
    # The oldest first: each remaining file is replaced by the written one, or contains the same cuts.
    for name in small:
        if name != written:
            system.rm_file(name)


def read_cuts(
    snapshots_url: str,
    steps: Sequence[tuple[int, int]] | None = None,
    *,
    are_dropped: bool = False,
) -> list[RecordedCut]:
    """Returns the recorded cuts of a run, in the order of steps.

    Args:
        snapshots_url: folder of the run's snapshots.
        steps: half-open ranges of the steps that are needed; files without them are not read. None: all.
        are_dropped: whether the cuts of the steps that the run has dropped are returned, instead of the
            others.

    Raises:
        DataError: the log cannot be read.
    """
    quarantines = read_quarantines(snapshots_url)
    found: dict[int, list[dict[str, Any]]] = {}
    try:
        for attempt in range(_READ_ATTEMPTS):
            try:
                found = _read_rows(snapshots_url, steps)
                break
            except FileNotFoundError:  # The run has merged files since they were listed.
                if attempt == _READ_ATTEMPTS - 1:
                    raise
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(
            f"reading the cuts of the run in {snapshots_url} failed: {error}; check the URL, and restore "
            "its folder cuts",
            path=snapshots_url,
        ) from error
    return [
        _recorded(step, rows)
        for step, rows in sorted(found.items())
        if (steps is None or any(begin <= step < end for begin, end in steps))
        and is_dropped(step, quarantines) == are_dropped
    ]


def _read_rows(
    snapshots_url: str, steps: Sequence[tuple[int, int]] | None
) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    system, folder = _folder_of(snapshots_url)
    for name, begin, end in _list_steps(_list(system, folder)):
        if steps is not None and not any(max(begin, each[0]) < min(end, each[1]) for each in steps):
            continue
        with system.open(name, "rb") as file:
            rows = parquet.read_table(file, schema=_SCHEMA).to_pylist()
        first = rows[0]["step"]
        found = {step: each for step, each in found.items() if step < first}
        for row in rows:
            found.setdefault(row["step"], []).append(row)
    return found


def _list_steps(names: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yields each file with the half-open range of steps that no later file replaces."""
    end = 2**63
    found = []
    for name in reversed(names):
        first = int(name.removesuffix(_ENDING).rpartition("-")[2])
        found.append((name, first, end))
        end = min(end, first)
    yield from reversed(found)


def _row_of(each: CutRange) -> dict[str, Any]:
    return {name: getattr(each, name) for name in _RANGE}


def _recorded(step: int, rows: list[dict[str, Any]]) -> RecordedCut:
    reads: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if row["read_number"] is not None:
            reads.setdefault(row["read_number"], []).append(row)
    found = tuple(
        CutRead(_ranges_of(each), each[0]["watermark"], each[0]["max_examples"])
        for each in reads.values()
    )
    ranges = join_ranges(_ranges_of(rows))
    return RecordedCut(step, ranges, rows[0]["world_size"], rows[0]["event_time"], found)


def _ranges_of(rows: list[dict[str, Any]]) -> tuple[CutRange, ...]:
    return tuple(
        CutRange(**{name: row[name] for name in _RANGE}) for row in rows if row["partition"]
    )


def join_ranges(ranges: Iterable[CutRange]) -> tuple[CutRange, ...]:
    """Returns one range per partition, for ranges of each partition that follow each other."""
    found: dict[str, CutRange] = {}
    for each in ranges:
        first = found.get(each.partition, each)
        count = each.num_events + (first.num_events if each.partition in found else 0)
        found[each.partition] = replace(each, begin=first.begin, num_events=count)
    return tuple(found.values())


def _folder_of(snapshots_url: str) -> tuple[Any, str]:
    system, path = fsspec.core.url_to_fs(snapshots_url)
    return system, f"{path.rstrip('/')}/{_FOLDER}"


def _list(system: Any, folder: str) -> list[str]:
    """Returns the files of the log, in the order of their numbers."""
    system.invalidate_cache(folder)
    return sorted(system.glob(f"{folder}/*{_ENDING}")) if system.isdir(folder) else []


def _number_of(path: str) -> int:
    return int(path.rpartition("/")[2].partition("-")[0])
