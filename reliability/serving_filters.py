"""Ten million changed keys: none is missing from the filter of changed keys, or of existing ones.

Deltas of up to a million keys are published one after another, each based on the previous one. Some of
the keys of each change or are erased in two training snapshots, so that one delta contains both. Each
published filter is queried for every key, and for as many other keys, to count false positives. Memory
contains the keys of one delta.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

import sparring_packed
from reliability.report import Report
from reliability.small_snapshots import scratch_folder
from sparring import ScanChunk, SnapshotWriter, TableDescription
from sparring.contracts import TableConfig
from sparring_packed.filters import read_filter

__all__ = ["TRIALS", "run"]

TRIALS = 10_000_000

_TABLE = TableConfig("item", 1, initializer="zeros")
_KEYS_OF_DELTA = 1_000_000
_CHUNK = 65_536
_FALSE_RATE = 0.01
"""False positive rate for which filters are written; see `WriteOptions.filter_rate`."""

Keys = npt.NDArray[np.int64]


def run(trials: int) -> Report:
    """Publishes deltas of `trials` changed keys in total."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    with scratch_folder() as folder:
        # The contents of the full snapshot do not matter: deltas have different keys.
        _save(folder, 0, _keys(-1, 1000), _keys(0, 0), base=None)
        _publish(folder, 0, base=None)
        for number, begin in enumerate(range(0, trials, _KEYS_OF_DELTA), 1):
            count = min(_KEYS_OF_DELTA, trials - begin)
            keys = _keys(number, count)
            first, last = 2 * number - 1, 2 * number
            # Of twelve parts, 0-7 change first; of these, 0-1 change again and 2-3 are erased; 8-9 change
            # only in the second snapshot; 10-11 are erased without ever having had a row.
            part = np.array_split(keys, 12)
            _save(folder, first, np.concatenate(part[:8]), np.concatenate(part[10:11]), first - 1)
            changed, erased = [*part[:2], *part[8:10]], [*part[2:4], part[11]]
            _save(folder, last, np.concatenate(changed), np.concatenate(erased), first)
            _publish(folder, last, last - 2)
            _ask(folder, last, keys, np.concatenate([*part[:2], *part[4:10]]), counts, failures)
    counts["false answers, per mille"] = round(1000 * counts.pop("false answers") / trials)
    if counts["false answers, per mille"] > 2000 * _FALSE_RATE:
        failures.append(f"{counts['false answers, per mille']} of 1,000 other keys seem changed")
    return Report(trials, counts, failures)


def _keys(number: int, count: int) -> Keys:
    """Returns distinct keys for each delta: an odd factor maps numbers to different keys."""
    places = np.arange(count, dtype=np.uint64) + np.uint64((number + 1) << 32)
    with np.errstate(over="ignore"):
        keys: Keys = (places * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
    return keys


def _ask(
    folder: Path,
    step: int,
    keys: Keys,
    existing: Keys,
    counts: Counter[str],
    failures: list[str],
) -> None:
    url = str(folder / f"served/step-{step}")
    changed = read_filter(url, _TABLE.name, "changed")
    has_row = read_filter(url, _TABLE.name, "existing")
    if changed is None or has_row is None:
        failures.append(f"step {step}: the filter is missing")
        return
    for kind, keyed, asked in (("changed", changed, keys), ("existing", has_row, existing)):
        missed = sum(int((~keyed.contains(some)).sum()) for some in _chunks(asked))
        counts[f"{kind} keys queried"] += len(asked)
        counts[f"{kind} keys missed"] += missed
        if missed:
            failures.append(f"step {step}: {missed:,} of {len(asked):,} {kind} keys are missing")
    others = _keys(step + (1 << 20), len(keys))
    counts["false answers"] += sum(int(changed.contains(some).sum()) for some in _chunks(others))
    counts["deltas"] += 1


def _chunks(keys: Keys) -> Iterator[Keys]:
    return (keys[at : at + _CHUNK] for at in range(0, len(keys), _CHUNK))


def _save(folder: Path, step: int, changed: Keys, erased: Keys, base: int | None) -> None:
    """Writes a training snapshot; the row of each key is the step."""
    writer = SnapshotWriter(
        str(folder / f"run/step-{step}"),
        step=step,
        base=None if base is None else str(folder / f"run/step-{base}"),
    )
    rows = (
        ScanChunk(some, np.full((len(some), 1), step, np.float32), np.zeros(len(some), np.uint64))
        for some in _chunks(changed)
    )
    writer.write_table(TableDescription.of(_TABLE), rows, list(_chunks(erased)))
    writer.finish()
    writer.commit()


def _publish(folder: Path, step: int, base: int | None) -> None:
    sparring_packed.write(
        str(folder / f"run/step-{step}"),
        str(folder / f"served/step-{step}"),
        base=None if base is None else str(folder / f"served/step-{base}"),
    )
