"""A stream of impressions, joined with actions, as a data set.

Each read of the streams adds events to the join and advances the watermark. Reads without examples are
part of the next step, and the log of cuts contains each read with its watermark. So a replay makes the
same reads, and no clock determines its result.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import State
from sparring.contracts import validate_options
from sparring.errors import DataError, SnapshotError
from sparring_train.columns import ColumnBatch, Cut, CutRange, CutRead
from sparring_train.config.sections.stream import StreamData
from sparring_train.data.dataset import OpenRequest
from sparring_train.data.join.joiner import Counts, Event, Example, Joiner, Window, partition_of
from sparring_train.data.join.row_codec import RowCodec
from sparring_train.data.join.state_files import JOIN, StateFiles
from sparring_train.data.join.step_store import MAX_STEPS, StepStore
from sparring_train.data.join.streams import IMPRESSIONS, JoinedDecoder, JoinedSource
from sparring_train.data.join.waiting_events import take_waiting, write_waiting
from sparring_train.data.join.working_folder import WorkingFolder
from sparring_train.data.stream.cut_log import RecordedCut, join_ranges
from sparring_train.data.stream.dataset import StreamDataset, open_source
from sparring_train.data.stream.erased_keys import ErasedKeys
from sparring_train.data.stream.events import Events, MessageDecoder
from sparring_train.join_stores import JoinStore
from sparring_train.registered_kinds import find_join_store
from sparring_train.streams import StreamSource

__all__ = ["JoinedStreamDataset", "open_stream"]

_PAUSE_SECONDS = 0.01
_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class _Moment:
    """What a snapshot contains besides the store, after a step."""

    step: int
    waiting: list[Event]
    own_watermark: float
    watermark: float
    newest: dict[str, float]
    counts: Counts


def open_stream(data: StreamData, request: OpenRequest) -> StreamDataset:
    """Opens a stream, or a join of streams.

    Raises:
        DataError, PluginError: see `StreamDataset` and `JoinedStreamDataset`.
    """
    return (StreamDataset if data.join is None else JoinedStreamDataset)(data, request)


class JoinedStreamDataset(StreamDataset):
    """See the module. Each rank joins the partitions of the same numbers of all streams.

    Args:
        data: the section of the configuration, with `join`.
        request: properties of the run.

    Raises:
        DataError: a stream cannot be opened, or streams have different numbers of partitions.
        PluginError: the store is not available.
    """

    def __init__(self, data: StreamData, request: OpenRequest) -> None:
        assert data.join is not None
        join = self._join = data.join
        late = join.late_seconds if join.late == "correct" else None
        self._window = Window(join.window_seconds, join.watermark_seconds, late)
        self._codec = RowCodec(data.columns, has_weights=data.weight is not None)
        self._joined: JoinedSource | None = None
        super().__init__(data, request)
        self._folder: WorkingFolder | None = None
        self._joiner: Joiner | None = None
        self._files = None if request.snapshots_url is None else StateFiles(request.snapshots_url)
        self._moments: deque[_Moment] = deque(maxlen=MAX_STEPS + 1)
        self._reads: list[CutRead] = []
        self._newest: dict[str, float] = {}
        """Partition → time of its newest event."""
        self._paused: set[str] = set()
        self._watermark = self._used_watermark = -math.inf
        self._is_behind = False
        self._erased_step: float = math.inf

    def _open(self) -> StreamSource:
        data, request = self._data, self._request
        sections = {IMPRESSIONS: data.impressions()}
        sections |= {name: data.actions(name) for name in self._join.actions}
        sources = {name: open_source(each, request) for name, each in sections.items()}
        self._joined = JoinedSource(sources, {name: each.url for name, each in sections.items()})
        decoders = {
            name: MessageDecoder(
                each,
                self.schema.label if name and each.label else None,
                request.rank,
                None if name or self._strings is None else self,
            )
            for name, each in sections.items()
        }
        self._decoders = JoinedDecoder(decoders, self._joined.places)
        self._parser = self._decoders
        return self._joined

    def add(self, feature: str, ids: npt.NDArray[np.int64], strings: Any) -> None:
        """Stores the strings of features, but not those of keys; see `StringReceiver`."""
        if self._strings is not None and feature in self._data.categorical:
            self._strings.add(feature, ids, strings)

    # -- begin and resume -------------------------------------------------------------------

    def _begin_at(self, resumed: Mapping[str, int] | None) -> None:
        super()._begin_at(resumed)
        if self._data.cuts_from is not None:
            self._erased_step = math.inf
        if self._joiner is None:
            self._folder = WorkingFolder(self._join.path, self._request.rank)
            self._start(Joiner(StepStore(self._open_store("open")), self._window))

    def _open_store(self, name: str) -> JoinStore:
        assert self._folder is not None
        kind = find_join_store(self._join.storage, self._request.plugin_manager)
        folder = self._folder.path / name
        folder.mkdir(parents=True, exist_ok=True)
        options = validate_options("store of data.join", kind, self._join.options)
        return kind.open(str(folder), options)

    def _start(self, joiner: Joiner) -> None:
        self._joiner = joiner
        self._moments.append(self._moment())

    def _moment(self) -> _Moment:
        joiner = self._joiner
        assert joiner is not None
        return _Moment(
            self._step,
            joiner.waiting,
            joiner.watermark,
            self._watermark,
            dict(self._newest),
            joiner.counts,
        )

    def resume(
        self, step: int, positions: Mapping[str, int], states: Mapping[str, State], url: str
    ) -> None:
        if JOIN in states:
            error: Exception | None = None
            self._step = step
            try:
                self._restore(states[JOIN].values, url)
            except Exception as failure:  # All ranks must raise.
                error = failure
            self._agreed(None, error)
        super().resume(step, positions, states, url)

    def _restore(self, values: Mapping[str, Any], url: str) -> None:
        """Continues the join of a snapshot."""
        assert self._joined is not None
        if values["num_partitions"] != self._joined.num_partitions:
            raise DataError(
                f"resuming from {url} failed: the streams have {self._joined.num_partitions} partitions, "
                f"expected {values['num_partitions']}, because keys would be in other partitions; use "
                "the original streams"
            )
        self._watermark = self._used_watermark = _as_time(values["watermark"])
        self._newest, self._is_behind = dict(values["newest"]), True
        root = url.rstrip("/").rpartition("/")[0]
        self._erased, self._erased_step = ErasedKeys(root), self._step
        files, saved = StateFiles(root), values["ranks"]
        self._folder = WorkingFolder(self._join.path, self._request.rank)
        if len(saved) == self._request.world_size:
            own = saved[self._request.rank]
            waiting = self._restore_files(files, own["files"], "open")
            joiner = Joiner(StepStore(self._open_store("open")), self._window)
            joiner.waiting, joiner.counts = waiting, Counts(**own["counts"])
        else:
            joiner = self._divided(files, saved)
        joiner.watermark = min(_as_time(each["watermark"]) for each in saved)
        self._start(joiner)

    def _restore_files(self, files: StateFiles, names: Sequence[str], to: str) -> list[Event]:
        """Restores the files of one rank, and returns its waiting events."""
        assert self._folder is not None
        folder = self._folder.path / to
        files.restore(names, folder)
        return take_waiting(folder)

    def _divided(self, files: StateFiles, saved: Sequence[Mapping[str, Any]]) -> Joiner:
        """Joins the records of this rank's partitions, which other numbers of ranks have saved."""
        assert self._folder is not None
        store, waiting, counts = self._open_store("open"), [], Counts()
        for rank, each in enumerate(saved):
            name = f"from-{rank}"
            with self._folder.temporary(name):
                events = self._restore_files(files, each["files"], name)
                waiting += [event for event in events if self._is_mine(event.partition)]
                self._move_own(name, store)
            if rank % self._request.world_size == self._request.rank:
                for key, count in each["counts"].items():
                    setattr(counts, key, getattr(counts, key) + count)
        joiner = Joiner(StepStore(store), self._window)
        joiner.waiting, joiner.counts = sorted(waiting), counts
        return joiner

    def _move_own(self, name: str, store: JoinStore) -> None:
        """Moves the records of this rank's partitions from another store."""
        other = self._open_store(name)
        while records := other.scan(-math.inf, math.inf, _CHUNK):
            other.write([(key, end) for end, key, _ in records], [])
            own = [
                (key, end, value)
                for end, key, value in records
                if self._is_mine(partition_of(value))
            ]
            store.write([], own)
        other.close()

    def _is_mine(self, number: int) -> bool:
        return self._owner_of(number) == self._request.rank

    def _owner_of(self, number: int) -> int:
        count = self._num_groups()
        return number * min(self._request.world_size, count) // count

    def _num_groups(self) -> int:
        assert self._joined is not None
        return self._joined.num_partitions

    def _owned(self) -> list[str]:
        assert self._joined is not None
        return [name for name, number in self._joined.numbers.items() if self._is_mine(number)]

    # -- steps ------------------------------------------------------------------------------

    def _is_at_end(self) -> bool:
        is_settled = not self._is_behind and self._watermark <= self._used_watermark
        return super()._is_at_end() and is_settled

    def _next_batch(self, recorded: RecordedCut | None) -> ColumnBatch | None:
        if recorded is None:
            return self._read_once(None, None)
        batch = None
        for read in recorded.reads:
            batch = self._read_once(read, recorded.event_time)
        return batch

    def _read_once(self, recorded: CutRead | None, event_time: float | None) -> ColumnBatch | None:
        """Reads events, and returns this rank's part of a step if a window of any rank has ended."""
        assert self._reader is not None
        assert self._joiner is not None
        error: Exception | None = None
        taken: dict[str, list[Events]] = {}
        read_times: dict[str, float | None] = {}
        newest: dict[str, float] = {}
        batch = None
        watermark, max_examples = self._watermark, self._data.batch_size
        if recorded is not None:
            watermark, max_examples = recorded.watermark, recorded.max_examples
        num_examples, latest = 0, None
        try:
            if recorded is not None:
                own = {each.partition: each for each in recorded.ranges}
                taken = self._take_recorded(own)
                read_times = {name: own[name].read_time for name in taken}
            elif not self._is_behind:
                taken = self._take_unpaused()
                read_times = dict.fromkeys(taken, time.time())
            events = self._as_events(taken, read_times, newest)
            share = self._share(max_examples)
            examples = self._joiner.advance(self._step + 1, events, watermark, share)
            num_examples = len(examples)
            latest = max((each.impression_time for each in examples), default=None)
            batch = self._as_batch(examples)
        except Exception as failure:  # All ranks must raise.
            error = failure
        counts = {name: sum(map(len, events)) for name, events in taken.items()}
        own_values = [
            self._reader.positions,
            counts,
            read_times,
            newest,
            self._idle(),
            num_examples,
            self._joiner.is_behind,
            latest,
        ]
        every = self._agreed(own_values, error)
        positions, counts, read_times, newest = (
            {name: each for parts in every for name, each in parts[at].items()} for at in range(4)
        )
        ranges = tuple(
            CutRange(name, begin, positions[name], counts.get(name, 0), read_times.get(name))
            for name, begin in self._read.items()
            if positions[name] > begin
        )
        if ranges or watermark > self._used_watermark or self._is_behind:
            self._reads.append(CutRead(ranges, watermark, max_examples))
        self._read = {name: positions[name] for name in self._read}
        self._used_watermark = max(watermark, self._used_watermark)
        self._is_behind = any(parts[6] for parts in every)
        self._note_times(newest, {name for parts in every for name in parts[4]})
        total = sum(parts[5] for parts in every)
        if not total:
            return None
        self._step += 1
        self._positions = dict(self._read)
        reads, self._reads = tuple(self._reads), []
        ranges = join_ranges(each for read in reads for each in read.ranges)
        if event_time is None:
            # The newest impression that is trained, because later events are not trained yet.
            event_time = max(parts[7] for parts in every if parts[7] is not None)
        self._moments.append(self._moment())
        cut = Cut(ranges, dict(self._positions), event_time, reads)
        return replace(self._empty if batch is None else batch, total=total, cut=cut)

    def _take_unpaused(self) -> dict[str, list[Events]]:
        assert self._reader is not None
        if self._paused.issuperset(self._reader.positions):
            time.sleep(_PAUSE_SECONDS)
        return self._take(self._paused)

    def _as_events(
        self,
        taken: Mapping[str, list[Events]],
        read_times: Mapping[str, float | None],
        newest: dict[str, float],
    ) -> list[Event]:
        """Returns the good events, and adds the time of the newest one of each partition to `newest`."""
        assert self._joined is not None
        found: list[Event] = []
        for name, messages in taken.items():
            batch = self._decoders.of(name).decode(messages, read_times)
            if batch is None or not len(batch):
                continue
            stream, number = self._joined.places[name][0], self._joined.numbers[name]
            if batch.event_times is None:
                raise DataError(
                    f"partition {name}: found events without a time; set event_time, or use a stream "
                    "whose messages have times",
                    partition=name,
                )
            times = batch.event_times.tolist()
            newest[name] = max(times)
            action = self._join.actions.get(stream)
            columns = self._join.key if action is None else action.key or self._join.key
            keys = _as_keys(batch, columns)
            step = self._step + 1
            if action is None:
                rows = self._codec.encode(batch)
                found += [
                    Event(at, False, key, row, 0.0, number, step)
                    for at, key, row in zip(times, keys, rows, strict=True)
                ]
            else:
                labels = [1.0] * len(batch) if batch.labels is None else batch.labels.tolist()
                found += [
                    Event(at, True, key, b"", label, number, step)
                    for at, key, label in zip(times, keys, labels, strict=True)
                ]
        return found

    def _as_batch(self, examples: list[Example]) -> ColumnBatch | None:
        if not examples:
            return None
        batch = self._codec.decode([each.row for each in examples])
        weights = batch.weights
        if self.schema.has_weights:
            is_late = np.array([each.is_correction for each in examples])
            weights = np.ones(len(examples), np.float32) if weights is None else weights
            weights = weights * np.where(is_late, self._join.late_weight, 1).astype(np.float32)
        labels = np.array([each.label for each in examples], np.float32)
        batch = replace(
            batch,
            labels=None if self.schema.label is None else labels,
            weights=weights,
            # A correction trains an event again, and is not measured again.
            event_times=np.array(
                [math.nan if each.is_correction else each.impression_time for each in examples]
            ),
        )
        if self._erased is None:
            return batch
        steps = np.array([each.step for each in examples])
        is_kept = self._erased.find_kept(batch, self.schema) | (steps > self._erased_step)
        self._num_erased += int((~is_kept).sum())
        return batch.take(is_kept)

    # -- the watermark ----------------------------------------------------------------------

    def _idle(self) -> list[str]:
        """Returns own partitions that do not delay the watermark."""
        assert self._reader is not None
        positions, ends = self._reader.positions, self._ends or {}
        at_end = [name for name, end in ends.items() if positions.get(name, -1) >= end]
        return [*self._reader.idle(self._join.idle_seconds), *at_end]

    def _note_times(self, newest: Mapping[str, float], idle: set[str]) -> None:
        """Updates the watermark. It is the same on all ranks."""
        for name, each in newest.items():
            self._newest[name] = max(each, self._newest.get(name, -math.inf))
        slack = self._join.watermark_seconds
        active = [self._newest.get(name, -math.inf) for name in self._read if name not in idle]
        slowest = min(active) if active else max(self._newest.values(), default=-math.inf)
        self._watermark = max(slowest - slack, self._watermark)
        # Others wait for the slowest partition, so that few events wait for the watermark.
        limit = slowest + max(slack, 1)
        self._paused = {name for name, each in self._newest.items() if active and each > limit}

    # -- snapshots --------------------------------------------------------------------------

    def states(self, step: int) -> Mapping[str, State]:
        super().states(step)
        files, joiner, folder = self._files, self._joiner, self._folder
        assert files is not None
        assert joiner is not None and folder is not None  # noqa: PT018 (not a test)
        error: Exception | None = None
        names: list[str] = []
        moment = next(each for each in self._moments if each.step == step)
        try:
            with folder.temporary("saved") as saved:
                joiner.store.checkpoint(step, str(saved))
                write_waiting(saved, moment.waiting)
                names = files.save(saved)
        except OSError as failure:
            error = SnapshotError(
                f"saving the open impressions of step {step} failed: {failure}; check free space and "
                "access rights of snapshots.url and data.join.path, then run again with --resume"
            )
        except Exception as failure:
            error = failure
        own = {
            "files": names,
            "watermark": _as_value(moment.own_watermark),
            "counts": asdict(moment.counts),
        }
        ranks = self._agreed(own, error)
        if self._request.rank == 0:
            files.remove_unused(each for rank in ranks for each in rank["files"])
        values = {
            "num_partitions": self._num_groups(),
            "watermark": _as_value(moment.watermark),
            "newest": moment.newest,
            "ranks": ranks,
        }
        return {JOIN: State(values)}

    def metrics(self) -> Mapping[str, Any]:
        if self._joiner is None or self._joiner.watermark == -math.inf:
            return {}
        lag = time.time() - self._joiner.watermark
        return {"join": {**asdict(self._joiner.counts), "watermark_lag_seconds": lag}}

    def close(self) -> None:
        super().close()
        if self._joiner is not None:
            self._joiner.store.close()
        if self._folder is not None:
            self._folder.close()

    def extra(self) -> Mapping[str, Any]:
        """Returns in addition to `StreamDataset.extra` the numbers of joined events of this rank."""
        counts = Counts() if self._joiner is None else self._joiner.counts
        return {**super().extra(), "join": asdict(counts)}


def _as_keys(batch: ColumnBatch, columns: Sequence[str]) -> list[bytes]:
    """Returns the key of each event: its ids, 8 bytes each."""
    content = np.stack([batch.ids[name].ids for name in columns], axis=1).astype("<i8").tobytes()
    width = 8 * len(columns)
    return [content[begin : begin + width] for begin in range(0, len(content), width)]


def _as_value(time: float) -> float | None:
    return None if time == -math.inf else time


def _as_time(value: float | None) -> float:
    return -math.inf if value is None else value
