"""Crashes of training on a stream, simulated at each operation, in one process.

A run reads a stream, trains, writes snapshots, deltas and its log of cuts, and publishes each second
step as a version, also in this process. Each trial chooses an operation: a read of the stream, the end
of a step, or a call to the disk. From this operation on, every operation raises `Crash`, as if the
process had died. The published version must be readable then. The run is resumed without faults, in a
third of the trials after a second crash. Its rows, parameters and cuts, and the rows and parameters of
its last version, must equal those of a run without a crash.

In every second trial, the run has a gate that closes twice: it returns to a snapshot, and quarantines
offsets, which must be equal, too.
"""

from __future__ import annotations

import logging
import random
import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]  # no types

import sparring_packed
from reliability.published_models import check_published
from reliability.report import Report
from reliability.small_snapshots import scratch_folder
from sparring import list_snapshots, make_plugin_manager, open_snapshot
from sparring.contracts import Options, hookimpl
from sparring.plugins.registry import PluginSource
from sparring_serve.publishing.model_files import ReadModel, find_model_reader
from sparring_serve.publishing.publisher import (
    PublisherOptions,
    find_merge,
    merge_layers,
    publish_newest,
)
from sparring_testing.faults.faulty_disk import faulty_disk
from sparring_train.config.reading.loader import parse_config
from sparring_train.config.sections.publish import PublishConfig
from sparring_train.data.stream.cut_log import read_cuts
from sparring_train.data.stream.quarantine import read_quarantines
from sparring_train.hookspecs import StreamDescriptor
from sparring_train.live import publishing, run_gate
from sparring_train.live.gate import Closing, Opening, QualityGate
from sparring_train.live.publisher_process import PublishCounters, SavedStep
from sparring_train.live.windows import WindowResult
from sparring_train.run.replay import list_differences
from sparring_train.run.result import SilentProgress
from sparring_train.streams import StreamMessage, StreamRead

__all__ = ["TRIALS", "Crash", "run"]

TRIALS = 3_000

_PARTITIONS = ("a", "b")
_MESSAGES = 24
_ROWS = 8
_BEGIN = 1.7e9
"""Time of the first message in seconds since 1970."""

_CONFIG = f"""
seed: 3
threads: 1
data: {{kind: stream, url: "simulated://events", stop_at_end: true, max_milliseconds: 20000,
       label: clicked, categorical: [user, item], numeric: [], batch_size: {4 * _ROWS}}}
model: {{kind: dlrm, embedding_dim: 2, bottom_mlp: [2], top_mlp: [2]}}
storage: {{backend: memory}}
snapshots: {{every_steps: 3, full_every: 3, resume: true}}
publish: {{every_seconds: 4, full_every: 3, keep: 2}}
"""
_GATE = ("metrics.window_seconds=2", "publish.gate={on_close: return}")
_BAD_WINDOWS = (3, 7)
"""Numbers of the windows at which the gate closes. Each step is in one window."""


class Crash(BaseException):
    """The simulated process has died."""


class _Faults:
    """Counts operations, and raises `Crash` from one of them on."""

    def __init__(self, crash_at: int | None) -> None:
        self._crash_at = crash_at
        self._lock = threading.Lock()
        self.names: list[str] = []
        self.crashed_at: str | None = None

    def reach(self, name: str) -> None:
        """Called before each operation, on any thread."""
        with self._lock:
            self.names.append(name)
            if self.crashed_at is None and len(self.names) == self._crash_at:
                self.crashed_at = name
            if self.crashed_at is not None:
                raise Crash


class _Source:
    """A stream in memory, see `StreamSource`. After two messages of a partition, the next read of it
    finds nothing, so that each step reads both partitions, also after a run was resumed."""

    def __init__(self, faults: _Faults) -> None:
        self._faults = faults
        self._last: tuple[str, int] | None = None
        """Partition and end of the last read, if it found messages."""

    def partitions(self) -> Sequence[str]:
        return _PARTITIONS

    def earliest_offsets(self) -> Mapping[str, int]:
        return dict.fromkeys(_PARTITIONS, 0)

    def end_offsets(self) -> Mapping[str, int]:
        return dict.fromkeys(_PARTITIONS, _MESSAGES)

    def read(self, partition: str, offset: int, max_events: int, deadline: float) -> StreamRead:
        self._faults.reach("read the stream")
        if self._last == (partition, offset):
            self._last = None
            return StreamRead(offset)
        messages = [
            StreamMessage(each, _payload(partition, each), _BEGIN + each)
            for each in range(offset, min(offset + 2, _MESSAGES))
        ]
        self._last = partition, offset + len(messages)
        return StreamRead(offset + len(messages), messages)

    def close(self) -> None:
        """Has nothing to release."""


class _NoOptions(Options):
    """The simulated stream has no options."""


class _Plugin:
    """Registers the stream of the current trial."""

    def __init__(self) -> None:
        self.faults = _Faults(None)

    @hookimpl(optionalhook=True)
    def sparring_register_streams(self) -> Sequence[StreamDescriptor]:
        return [
            StreamDescriptor(
                name="simulated",
                api_version=(1, 0),
                options=_NoOptions,
                open=lambda *_: _Source(self.faults),
            )
        ]


@cache
def _payload(partition: str, offset: int) -> bytes:
    draw = np.random.default_rng([_PARTITIONS.index(partition), offset])
    users, items = draw.integers(0, 30, _ROWS), draw.integers(0, 40, _ROWS)
    table = pyarrow.table({"user": users, "item": items, "clicked": (users + items) % 2})
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    payload: bytes = sink.getvalue().to_pybytes()
    return payload


class _Gate(QualityGate):
    """Judges windows by their numbers."""

    def add(self, window: WindowResult) -> Closing | Opening | None:
        if (window.begin - _BEGIN) / 2 in _BAD_WINDOWS:
            good, self._good_steps, self.is_closed = self._good_steps, [], True
            return Closing("bad by its number", window.begin, good[-2])
        self._good_steps = [*self._good_steps, window.step][-2:]
        if not self.is_closed:
            return None
        self.is_closed, self.num_returns = False, 0
        return Opening("good by its number")


class _Progress(SilentProgress):
    def __init__(self, faults: _Faults) -> None:
        self._faults = faults

    def on_step(self, step: int, loss: float, samples: int) -> None:
        self._faults.reach("end a step")


class _Publisher:
    """Publishes in this process, like `PublisherThread`, before the next step."""

    is_free = True

    def __init__(self, config: PublishConfig, faults: _Faults, read_model: ReadModel) -> None:
        self._config, self._faults, self._read_model = config, faults, read_model
        self.counters = PublishCounters()

    def submit(self, saved: SavedStep) -> None:
        url = saved.url if saved.task is None else saved.task.result().url
        chosen = self._config
        options = PublisherOptions(
            chosen.quantize,
            full_every=chosen.full_every,
            keep=chosen.keep,
            merges_separately=True,
        )
        assert chosen.url is not None
        self._faults.reach("publish")
        publish_newest(url, chosen.url, options, None, self._read_model)
        self._faults.reach("answer of the publisher")
        if (name := find_merge(chosen.url, options)) is not None:
            merge_layers(chosen.url, name)

    def join(self, timeout: float) -> bool:
        return True

    def close(self) -> None:
        """Has nothing to release."""


class _World:
    """The trials of one folder."""

    def __init__(self, folder: Path, *, has_gate: bool) -> None:
        self.folder, self._has_gate = folder, has_gate
        self._plugin = _Plugin()
        self._manager = make_plugin_manager()
        self._manager.load(
            PluginSource("simulated", "sparring-simulated", "1", lambda: self._plugin)
        )
        self._read_model = find_model_reader(self._manager)
        whole = self.train(folder / "whole", None)
        self.num_operations = len(whole.names)
        self.places: dict[str, list[int]] = {}
        """Name of an operation → its places among all operations of a run, counted from 1."""
        for at, name in enumerate(whole.names, 1):
            self.places.setdefault(name, []).append(at)
        self.expected = folder / "whole"
        num_returns = len(read_quarantines(str(self.expected / "snapshots")))
        assert num_returns == (len(_BAD_WINDOWS) if has_gate else 0), f"{num_returns} returns"

    def train(self, folder: Path, crash_at: int | None) -> _Faults:
        """Runs or resumes a training, until its end or a crash."""
        faults = self._plugin.faults = _Faults(crash_at)
        overrides = [f"snapshots.url={folder / 'snapshots'}", f"publish.url={folder / 'served'}"]
        overrides += _GATE if self._has_gate else ()
        config = parse_config(_CONFIG, overrides, plugin_manager=self._manager)
        from sparring_train.pytorch.trainer import train

        def make_publisher(config: PublishConfig, _: object) -> _Publisher:
            return _Publisher(config, faults, self._read_model)

        with (
            _faulty(faults),
            mock.patch.object(publishing, "_open_thread", make_publisher),
            mock.patch.object(run_gate, "QualityGate", _Gate),
        ):
            try:
                result = train(config, self._manager, _Progress(faults))
            except BaseException:
                # A crash can also arrive as the cause of another error, from a thread.
                if faults.crashed_at is None:
                    raise
            else:
                if result.is_terminated:
                    # A run ends early on SIGTERM, which was meant for this program.
                    raise SystemExit(f"the trials were ended by SIGTERM after step {result.steps}")
        if any((folder / "served").glob("step-*")):
            # Its files are whole after a crash, too.
            sparring_packed.open(folder / "served", verify="all").close()
        return faults

    def check(self, folder: Path) -> None:
        """Raises AssertionError if the result differs from a run without a crash."""
        url, expected = str(folder / "snapshots"), str(self.expected / "snapshots")
        newest, wanted = (open_snapshot(list_snapshots(each)[-1]) for each in (url, expected))
        assert newest.step == wanted.step, f"{newest.step} steps, expected {wanted.step}"
        differences = list_differences(wanted, newest)
        assert not differences, f"differs: {differences}"
        # Without a column of times, events have the time at which they were read.
        found, right = (
            [(cut.step, cut.ranges, cut.world_size) for cut in read_cuts(each)]
            for each in (url, expected)
        )
        assert found == right, "other cuts"
        dropped, right_dropped = (
            [(each.good_step, each.last_step, each.ranges) for each in read_quarantines(place)]
            for place in (url, expected)
        )
        assert dropped == right_dropped, f"quarantined {dropped}, expected {right_dropped}"
        check_published(folder / "served", newest)


@contextmanager
def _faulty(faults: _Faults) -> Iterator[None]:
    opened, moved = LocalFileSystem.open, LocalFileSystem.mv

    def open_or_crash(self: Any, path: str, mode: str = "rb", *rest: Any, **options: Any) -> Any:
        if "w" in mode:
            faults.reach("open the log of cuts")
        return opened(self, path, mode, *rest, **options)

    def move_or_crash(self: Any, *arguments: Any, **options: Any) -> Any:
        faults.reach("rename the log of cuts")
        return moved(self, *arguments, **options)

    with (
        faulty_disk(faults.reach),
        mock.patch.object(LocalFileSystem, "open", open_or_crash),
        mock.patch.object(LocalFileSystem, "mv", move_or_crash),
    ):
        yield


def run(trials: int, first: int = 0) -> Report:
    """Crashes at each kind of operation in turn.

    Args:
        trials: number of trials.
        first: number of the first trial, which determines where it crashes.
    """
    counts: Counter[str] = Counter()
    failures: list[str] = []
    logging.disable(logging.CRITICAL)
    try:
        with scratch_folder(in_memory=True) as scratch:
            worlds = [
                _World(scratch / name, has_gate=has_gate)
                for name, has_gate in (("plain", False), ("gate", True))
            ]
            counts["kinds of operations"] = len(worlds[1].places)
            counts["operations of a run"] = worlds[0].num_operations
            counts["operations of a run that returns"] = worlds[1].num_operations
            for trial in range(first, first + trials):
                draw = random.Random(trial)
                world = worlds[trial % 2]
                folder = world.folder / f"trial-{trial}"
                names = sorted(world.places)
                at = draw.choice(world.places[names[trial // 2 % len(names)]])
                found = []
                try:
                    found.append(world.train(folder, at).crashed_at)
                    if trial % 3 == 2:
                        again = draw.randrange(1, world.num_operations)
                        found.append(world.train(folder, again).crashed_at)
                    world.train(folder, None)
                    world.check(folder)
                except Exception as error:
                    failures.append(f"trial {trial}, crashes at {found}: {error}")
                for name in filter(None, found):
                    counts["crashes"] += 1
                    counts[f"at {name}"] += 1
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        logging.disable(logging.NOTSET)
    return Report(trials, counts, failures)
