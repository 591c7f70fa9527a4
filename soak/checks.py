"""Compares the result of a run with a run without faults, and with what its clients received."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from reliability.published_models import check_published

from soak.clients import NUM_PUSHED, pushed_keys
from soak.feed import MESSAGE, STREAMS
from soak.processes import NUM_RANKS
from soak.world import World
from sparring import list_snapshots, open_snapshot, scan_rows
from sparring_serve import ParameterClient
from sparring_train.data.stream.cut_log import read_cuts
from sparring_train.run.replay import list_differences

__all__ = ["check_pushes", "check_replies", "check_rows", "read_lines", "run_checks"]

_MAX_LINE_BYTES = 400
_PULL_SECONDS = 60.0
_REPLAY_SECONDS = 1_800


def run_checks(world: World, counts: Counter[str]) -> list[str]:
    """Returns a line for each violated promise; adds to `counts` what was compared."""
    found = []
    checks: list[Callable[[World, Counter[str]], None]] = [check_pushes, check_replies, check_rows]
    for check in checks:
        try:
            check(world, counts)
        except AssertionError as error:
            found.append(str(error))
        # A check that cannot run proves nothing.
        except Exception as error:
            found.append(f"{check.__name__} failed: {type(error).__name__}: {error}")
    return found


def check_rows(world: World, counts: Counter[str]) -> None:
    """Raises AssertionError if an event was lost or trained twice, or if a row differs from those of a
    training of the same steps without faults, on storages in memory."""
    saved = list_snapshots(str(world.snapshots))
    assert saved, "there is no snapshot"
    last = open_snapshot(saved[-1])
    steps = world.plan.num_steps
    assert last.step == steps, f"the last snapshot has {last.step} steps, expected {steps}"
    cuts = read_cuts(str(world.snapshots))
    assert [cut.step for cut in cuts] == [*range(1, steps + 1)], "cuts of some steps are missing"
    for stream in STREAMS:
        ranges = [each for cut in cuts for each in cut.ranges if each.partition == stream]
        begins, ends = [each.begin for each in ranges], [each.end for each in ranges]
        assert begins == [1, *ends[:-1]], f"events of {stream} are missing, or were trained twice"
        num = sum(each.num_events for each in ranges)
        assert num == steps * MESSAGE, f"{num} events of {stream} were trained"
    counts["events trained once"] = steps * MESSAGE * NUM_RANKS
    output = world.disk / "replayed"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--local-addr", "127.0.0.1", "--nproc-per-node", str(NUM_RANKS), "-m", "sparring"]
    replay = ["replay", str(world.train_config), f"--output={output}"]
    with (world.output / "logs" / "replay.txt").open("wb") as log:
        done = subprocess.run(
            [*torchrun, *replay], stdout=log, stderr=log, timeout=_REPLAY_SECONDS, check=False
        )
    if done.returncode:  # The disk ends with the run.
        for each in (world.snapshots, output):
            if each.exists():
                shutil.copytree(each, world.output / "different" / each.name)
    assert done.returncode == 0, f"the replay ended with {done.returncode}, see logs/replay.txt"
    expected = open_snapshot(list_snapshots(str(output))[-1])
    differences = [each for each in list_differences(expected, last) if each != "state origins"]
    assert not differences, f"a run without faults has other bits: {differences}"
    counts["rows equal a run without faults"] = sum(
        len(chunk.keys) for table in last.tables for chunk in scan_rows(last, table)
    )
    check_published(world.served, last)


def check_replies(world: World, counts: Counter[str]) -> None:
    """Raises AssertionError if a reply mixed versions, or if two replies of a step had different rows."""
    rows: dict[int, set[str]] = defaultdict(set)
    for path in sorted(world.output.glob("lookups-*.jsonl")):
        for line in read_lines(path):
            if "rows" in line:
                rows[line["step"]].add(line["rows"])
            for name, count in line.get("counts", {}).items():
                counts[f"replies, {name}" if "error" not in name else f"lookups, {name}"] += count
    assert rows, "no client received a version"
    counts["versions in replies"] = len(rows)
    assert not counts["replies, mixed"], f"{counts['replies, mixed']} replies mixed versions"
    different = [step for step, hashes in rows.items() if len(hashes) > 1]
    assert not different, f"replies of the versions {different[:5]} had different rows"
    assert max(rows) == world.plan.num_steps, (
        f"the newest reply has step {max(rows)}, expected {world.plan.num_steps}"
    )


def check_pushes(world: World, counts: Counter[str]) -> None:
    """Raises AssertionError if an acknowledged push is not in the rows exactly once."""
    lines = list(read_lines(world.output / "pushes.jsonl"))
    ended = bool(lines) and "is_end" in lines[-1]
    assert ended, "the client of the parameter service did not end normally"
    unknown = {line["unknown"] for line in lines if "unknown" in line}
    least, most = np.zeros(NUM_PUSHED), np.zeros(NUM_PUSHED)
    for number in range(lines[-1]["pushes"]):
        keys = pushed_keys(number)
        most[keys] += 1
        if number not in unknown:
            least[keys] += 1
    acknowledged = lines[-1]["pushes"] - len(unknown)
    counts["pushes acknowledged"] = acknowledged
    counts["pushes with an error"] = len(unknown)
    # Each fault ends long before the deadline of a push.
    assert acknowledged > 99 * len(unknown), (
        f"{len(unknown)} of {lines[-1]['pushes']} pushes raised an error"
    )
    keys = {"item": np.arange(NUM_PUSHED)}
    with ParameterClient.from_config(world.parameters_config) as client:
        rows = client.pull(keys, deadline_seconds=_PULL_SECONDS).rows["item"]
        _end_leaders(world)
        after = client.pull(keys, deadline_seconds=_PULL_SECONDS).rows["item"]
    assert (after == rows).all(), "the rows of followers differ from those of their leaders"
    counts["rows equal on leader and follower"] = NUM_PUSHED
    assert (rows == rows[:, :1]).all(), "a row of the parameter service is torn"
    found = -rows[:, 0]
    lost, twice = int((found < least).sum()), int((found > most).sum())
    assert lost + twice == 0, f"pushes are missing from {lost} rows, and repeated in {twice}"


def _end_leaders(world: World) -> None:
    """Kills the leader of each shard of the parameter service when its follower is in sync."""
    for shard in range(2):
        end = time.monotonic() + _PULL_SECONDS
        while (
            len((state := world.parameter_state(shard)).in_sync) < 2
            or (leader := world.parameter_leader(shard)) is None
        ):
            assert time.monotonic() < end, f"shard {shard + 1} has no follower in sync: {state}"
            time.sleep(0.1)
        world.supervisor.release(leader)
        leader.kill()


def read_lines(path: Path, num_last: int | None = None) -> Iterable[dict[str, Any]]:
    """Yields the objects of a file with a line of JSON each, or the last of them. A process that is
    writing, or was killed, leaves an incomplete line."""
    if not path.exists():
        return
    with path.open("rb") as file:
        if num_last is not None:
            file.seek(max(0, file.seek(0, os.SEEK_END) - num_last * _MAX_LINE_BYTES))
        for line in file.read().splitlines()[-(num_last or 0) :]:
            with suppress(ValueError):
                yield json.loads(line)
