"""Replays of runs on streams: their configuration, and the comparison of the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparring import Snapshot, scan_rows
from sparring.contracts import NUM_PARTITIONS
from sparring.errors import ConfigError, DataError
from sparring_train.config.run import ReportConfig, RunConfig, StorageConfig
from sparring_train.config.sections.change_notes import ChangeNotesConfig
from sparring_train.config.sections.metrics import MetricsConfig
from sparring_train.config.sections.publish import PublishConfig
from sparring_train.config.sections.snapshots import SnapshotsConfig
from sparring_train.config.sections.stream import StreamData
from sparring_train.data.stream.cut_log import RecordedCut, read_cuts
from sparring_train.data.stream.quarantine import is_dropped, read_quarantines
from sparring_train.run.snapshot_folder import list_good_snapshots

__all__ = ["Replay", "list_differences", "plan_replay"]

_PARTITIONS_PER_SCAN = 256
_STATES_OF_RUN = {
    "run",
    "position",
    "pinned_data",
    "report",
    "erasure",
    "gate",
    "changed_keys",
    "join",
}
"""States that describe the run and its files, and therefore differ."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Plan of a replay."""

    config: RunConfig
    start: str | None
    """URL of the snapshot to start from; None: the beginning of the run."""
    start_step: int
    until: int
    """Number of steps at the end."""
    expected: str | None
    """URL of the run's snapshot after `until` steps, if it exists."""
    cuts: list[RecordedCut]
    """Cuts to train."""
    is_of_quarantine: bool = False
    """Whether they are those that the run has dropped."""


def plan_replay(
    config: RunConfig,
    output: str,
    start: int | None,
    until: int | None,
    *,
    is_of_quarantine: bool = False,
) -> Replay:
    """Returns the plan of a replay.

    Args:
        config: configuration of the run.
        output: folder for the snapshot of the result.
        start: the replay starts from the newest snapshot with at most this number of steps. None: from
            the first recorded cut if the log has one of step 1, otherwise from the oldest snapshot.
        until: number of steps at the end. None: the step of the newest snapshot.
        is_of_quarantine: whether the cuts that the run has dropped are trained, from the newest snapshot
            unless `start` is set, which is not before the last return. Then `until` is None.

    Raises:
        ConfigError: the run has no stream or no snapshots.
        DataError: cuts or snapshots are missing.
    """
    url = config.snapshots.url
    if not isinstance(config.data, StreamData) or url is None:
        raise ConfigError(
            f"replay: found data.kind: {config.data.kind} and snapshots.url: {url or 'null'}, expected a "
            "run with data.kind: stream and a folder in snapshots.url; give its configuration",
            setting="data.kind" if url else "snapshots.url",
        )
    snapshots = {snapshot.step: snapshot for snapshot in list_good_snapshots(url)}
    quarantines = read_quarantines(url)
    cuts = read_cuts(url)
    if not snapshots or not cuts:
        raise DataError(
            f"replay: found {len(snapshots)} snapshots and {len(cuts)} cuts in {url}, expected at least "
            "one of each; train the run first",
            path=url,
        )
    if is_of_quarantine:
        returned_at = max((each.step for each in quarantines), default=0)
        return _plan_quarantine(config, output, start, snapshots, returned_at)
    until = max(snapshots) if until is None else until
    is_complete = cuts[0].step == 1
    candidates = ([0] if is_complete else []) + [step for step in snapshots if step < until]
    chosen = [step for step in candidates if start is None or step <= start]
    if not chosen:
        raise DataError(
            f"replay: found snapshots of the steps {', '.join(map(str, sorted(snapshots)))} in {url}, "
            f"expected one before step {until if start is None else start + 1}; choose other steps with "
            "--start and --until",
            path=url,
        )
    first = min(chosen) if start is None else max(chosen)
    wanted = [each for each in cuts if first < each.step <= until]
    returns = {each.step for each in quarantines}
    steps = [
        each
        for each in range(first + 1, until + 1)
        if each not in returns and not is_dropped(each, quarantines)
    ]
    if [each.step for each in wanted] != steps or is_dropped(until, quarantines):
        left_out = "".join(
            f", without the dropped steps {each.good_step + 1} to {each.last_step}"
            for each in quarantines
            if first < each.step and each.good_step < until
        )
        raise DataError(
            f"replay: found {len(wanted)} recorded cuts after step {first}, expected the steps "
            f"{first + 1} to {until}{left_out}; choose other steps with --start and --until",
            path=url,
        )
    begin, end = snapshots.get(first), snapshots.get(until)
    return Replay(
        _config_of_replay(config, output, begin, until),
        None if begin is None else begin.url,
        first,
        until,
        None if end is None else end.url,
        wanted,
    )


def _plan_quarantine(
    config: RunConfig,
    output: str,
    start: int | None,
    snapshots: Mapping[int, Snapshot],
    returned_at: int,
) -> Replay:
    """Returns the plan of training the dropped cuts, after a snapshot whose position in the stream is
    after them. After an earlier one, a run that continues with the result would train them twice."""
    url = config.snapshots.url or ""
    cuts = read_cuts(url, are_dropped=True)
    chosen = [
        step for step in snapshots if step >= returned_at and (start is None or step <= start)
    ]
    if not cuts or not chosen:
        raise DataError(
            f"replay --quarantined: found {len(cuts)} quarantined cuts and {len(chosen)} snapshots to "
            f"start from in {url}, expected at least one of each; start from step {returned_at} or "
            "later, and resume the run if it has no such snapshot",
            path=url,
        )
    first = max(chosen)
    until = first + len(cuts)
    changed = _config_of_replay(config, output, snapshots[first], until, is_of_quarantine=True)
    return Replay(changed, snapshots[first].url, first, until, None, cuts, is_of_quarantine=True)


def _config_of_replay(
    config: RunConfig,
    output: str,
    begin: Snapshot | None,
    until: int,
    *,
    is_of_quarantine: bool = False,
) -> RunConfig:
    assert isinstance(config.data, StreamData)
    data: dict[str, Any] = {
        "cuts_from": config.snapshots.url,
        "dead_letters": None,
        "quarantined": is_of_quarantine,
    }
    join = config.data.join
    if join is not None and join.path is not None:
        # The run may be active, and uses the folder.
        data["join"] = join.model_copy(update={"path": f"{join.path}/replay"})
    changes: dict[str, Any] = {
        "data": config.data.model_copy(update=data),
        "training": config.training.model_copy(update={"steps": until}),
        "snapshots": SnapshotsConfig(url=output, start_from=None if begin is None else begin.url),
        # The rows of the run stay as they are, and no other storage changes a bit.
        "storage": StorageConfig(backend="memory"),
        "change_notes": ChangeNotesConfig(),
        "publish": PublishConfig(),
        # The open window is part of a snapshot.
        "metrics": MetricsConfig(
            window_seconds=config.metrics.window_seconds, slices=config.metrics.slices
        ),
        "report": ReportConfig(),
    }
    return config.model_copy(update=changes)


def list_differences(expected: Snapshot, found: Snapshot) -> list[str]:
    """Returns the names of tables and states whose bits differ."""
    differences = [
        f"table {name}" for name in expected.tables if not _has_same_rows(expected, found, name)
    ]
    for name in expected.state_names():
        if name not in _STATES_OF_RUN and not _is_same_state(expected, found, name):
            differences.append(f"state {name}")
    return differences


def _is_same_state(one: Snapshot, other: Snapshot, name: str) -> bool:
    if name not in other.state_names():
        return False
    states = one.state(name), other.state(name)
    values, arrays = [each.values for each in states], [each.arrays for each in states]
    if name == "windows" and values[0]["dimensions"] != values[1]["dimensions"]:
        return True  # A replay does not know the ages of rows.
    return (
        values[0] == values[1]
        and arrays[0].keys() == arrays[1].keys()
        and all(_has_same_bits(arrays[0][key], arrays[1][key]) for key in arrays[0])
    )


def _has_same_rows(one: Snapshot, other: Snapshot, table: str) -> bool:
    # Storages yield rows in different orders, so some partitions are sorted at a time.
    return all(
        _has_same_bits(mine, its)
        for begin in range(0, NUM_PARTITIONS, _PARTITIONS_PER_SCAN)
        for mine, its in zip(
            _sorted_rows(one, table, begin), _sorted_rows(other, table, begin), strict=True
        )
    )


def _sorted_rows(snapshot: Snapshot, table: str, begin: int) -> Iterator[Any]:
    """Yields keys and rows of some partitions, sorted by key."""
    chunks = list(scan_rows(snapshot, table, range(begin, begin + _PARTITIONS_PER_SCAN)))
    if not chunks:
        yield from (np.empty(0), np.empty(0))
        return
    keys = np.concatenate([each.keys for each in chunks])
    order = np.argsort(keys)
    yield keys[order]
    yield np.concatenate([each.rows for each in chunks])[order]


def _has_same_bits(one: Any, other: Any) -> bool:
    shapes = (one.dtype, one.shape) == (other.dtype, other.shape)
    return shapes and one.tobytes() == other.tobytes()
