"""A stream as a data set, whose steps train cuts."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sparring import State
from sparring.errors import DataError, UnsupportedError
from sparring_train.columns import Column, ColumnBatch, Cut, CutRange, Origin, Schema
from sparring_train.config.sections.stream import StreamData
from sparring_train.data.dataset import OpenRequest
from sparring_train.data.stream.cut_log import RecordedCut, read_cuts
from sparring_train.data.stream.erased_keys import ErasedKeys
from sparring_train.data.stream.events import Events, MessageDecoder, Parser
from sparring_train.data.stream.partitions import PartitionReader, owned_partitions
from sparring_train.data.stream.quarantine import Quarantine, read_quarantines
from sparring_train.data.table.dataset import read_table
from sparring_train.data.table.decode import Decoder
from sparring_train.data.table.files import find_files
from sparring_train.data.table.parquet_rows import ParquetRows
from sparring_train.data.table.strings import make_string_writer
from sparring_train.data.table.text.rows import CsvRows
from sparring_train.registered_kinds import find_stream, stream_kinds
from sparring_train.streams import OffsetGoneError, StreamSource

__all__ = ["StreamDataset", "open_source", "read_files"]

_FOLDER = "folder"
"""The stream that opens URLs without a scheme of a stream."""
_TEST_ROWS = 8192


def open_source(data: StreamData, request: OpenRequest) -> StreamSource:
    """Opens the stream of a section.

    Raises:
        DataError: the stream cannot be opened.
        PluginError: a client library is missing, or two distributions register the scheme.
    """
    manager = request.plugin_manager
    scheme = data.url.partition("://")[0] if "://" in data.url else _FOLDER
    kind = find_stream(scheme, manager) or stream_kinds(manager)[_FOLDER]
    return kind.open(data.url, kind.options.model_validate(data.options))


def read_files(data: StreamData, path: str) -> Iterator[ColumnBatch]:
    """Yields all rows of files with the columns of a stream; see `read_table`."""
    return read_table(data.as_table(path), path)


class StreamDataset:
    """Events of a stream. Each rank reads some of the partitions, and yields its part of each step.

    Args:
        data: the section of the configuration.
        request: properties of the run.

    Raises:
        DataError: the stream cannot be opened.
    """

    label_range = None
    steps_per_epoch = None

    def __init__(self, data: StreamData, request: OpenRequest) -> None:
        self._data, self._request = data, request
        label = request.label if data.label is not None else None
        origins: dict[str, Origin] = {
            name: "string" if kind == "string" else "integer"
            for name, kind in data.id_types.items()
        }
        self.schema: Schema = replace(data.columns.with_origins(origins), label=label)
        # A replay reads events of which the run has stored the strings.
        is_chosen = data.dictionary and data.cuts_from is None
        self._strings = make_string_writer(is_chosen, request)
        self._decoder = MessageDecoder(data, label, request.rank, self._strings)
        self._parser: Parser = self._decoder
        self._source: StreamSource | None = None
        self._reader: PartitionReader | None = None
        self._positions: dict[str, int] = {}
        # Further than positions if messages were skipped after the last cut.
        self._read: dict[str, int] = {}
        self._ends: dict[str, int] | None = None
        self._step = 0
        self._quarantines: list[Quarantine] = []
        self._erased: ErasedKeys | None = None
        self._num_erased = 0
        if not request.is_saved:
            self._source = self._open()

    def _open(self) -> StreamSource:
        return open_source(self._data, self._request)

    def resume(
        self, step: int, positions: Mapping[str, int], states: Mapping[str, State], url: str
    ) -> None:
        """See `StreamedDataset.resume`."""
        self._step = step
        self._begin_at(positions or None)

    def states(self, step: int) -> Mapping[str, State]:
        """See `StreamedDataset.states`. Also writes the strings of the trained events."""
        if self._strings is not None:
            self._strings.flush()
        return {}

    def metrics(self) -> Mapping[str, Any]:
        """See `StreamedDataset.metrics`."""
        return {}

    def close(self) -> None:
        """See `StreamedDataset.close`."""
        if self._source is not None:
            self._source.close()

    def find_quarantine(self, step: int) -> Quarantine | None:
        """Returns the first steps after `step` that the run has dropped; None if there are none."""
        return next((each for each in self._quarantines if each.good_step >= step), None)

    def check_exist(self, positions: Mapping[str, int]) -> None:
        """Raises if the stream has removed an event after earlier positions.

        Raises:
            OffsetGoneError: it has.
            DataError: the stream cannot be reached.
        """
        assert self._source is not None
        for name, earliest in self._source.earliest_offsets().items():
            if positions.get(name, earliest) < earliest:
                raise OffsetGoneError(self._data.url, name, positions[name], earliest)

    def is_repeated(self, step: int) -> bool:
        """Returns whether the step after `step` is made again, because the run returned to `step`."""
        found = self.find_quarantine(step) if self._data.cuts_from is None else None
        return found is not None and found.good_step > step

    def skip(self, quarantine: Quarantine) -> Mapping[str, int]:
        """Continues after dropped steps, once `batches` has ended before them. All ranks call it.

        Returns:
            Partition → offset of the next event.
        """
        ends = {each.partition: each.end for each in quarantine.ranges}
        self._step = quarantine.step
        self._move({**self._positions, **ends})
        return dict(self._positions)

    def _move(self, positions: Mapping[str, int]) -> None:
        """Continues at other positions."""
        assert self._source is not None
        self._positions = self._read = dict(sorted(positions.items()))
        own = {name: self._positions[name] for name in self._owned()}
        self._reader = PartitionReader(self._source, self._parser, own, self._ends)

    def _begin_at(self, resumed: Mapping[str, int] | None) -> None:
        """Sets the positions, equally on all ranks."""
        assert self._source is not None
        own: list[Any] | None = None
        error: Exception | None = None
        url = self._data.cuts_from or self._request.snapshots_url
        try:
            has_quarantines = url is not None and not self._data.quarantined
            quarantines = read_quarantines(url or "") if has_quarantines else []
            own = [
                dict(self._source.earliest_offsets()),
                dict(self._source.end_offsets()),
                [each.values() for each in quarantines],
            ]
        except Exception as failure:  # All ranks must raise.
            error = failure
        # Ends differ between ranks, because events arrive meanwhile, and a file may not be visible to all
        # of them yet. All ranks use what the first rank found.
        earliest, ends, found = self._agreed(own, error)[0]
        self._quarantines = [Quarantine.of(each) for each in found]
        if resumed is None:
            self._positions = ends if self._data.start == "latest" else earliest
        else:
            self._check_positions(resumed, earliest, ends)
            self._positions = {**earliest, **resumed}
        if self._data.cuts_from is not None:
            self._erased = ErasedKeys(self._data.cuts_from)
        if self._data.cuts_from is not None and not self._data.quarantined:
            cuts = [each for each in read_cuts(self._data.cuts_from) if each.step > self._step]
            begins = {each.partition: each.begin for cut in reversed(cuts) for each in cut.ranges}
            self._positions.update(begins)
        self._ends = ends if self._data.stop_at_end else None
        self._move(self._positions)

    def _num_groups(self) -> int:
        """Returns the number of groups of partitions that ranks divide."""
        return len(self._positions)

    def _owned(self) -> list[str]:
        """Returns the partitions that this rank reads."""
        request = self._request
        return owned_partitions(list(self._positions), request.rank, request.world_size)

    def _check_positions(
        self, resumed: Mapping[str, int], earliest: Mapping[str, int], ends: Mapping[str, int]
    ) -> None:
        for name, position in resumed.items():
            if name not in ends:
                raise DataError(
                    f"resuming from {self._data.url} failed: partition {name} does not exist, found "
                    f"{', '.join(sorted(ends))}; restore it, or use the original data.url",
                    partition=name,
                    offset=position,
                )
            if position < earliest[name]:
                raise OffsetGoneError(self._data.url, name, position, earliest[name])
            if position > ends[name]:
                raise DataError(
                    f"resuming from {self._data.url} failed: partition {name} ends at offset "
                    f"{ends[name]}, but the run has trained the events before {position}, so this is "
                    "another stream; use the original one, or another folder for snapshots",
                    partition=name,
                    offset=position,
                )

    def batches(self, epoch: int) -> Iterator[ColumnBatch | None]:
        """Yields this rank's part of each cut, and None if there is no event yet.

        Ends before steps that the run has dropped. After `skip`, a new call continues.

        Raises:
            DataError: a message is bad, or was removed.
            UnsupportedError: the run is open for predictions.
        """
        if self._request.is_saved:
            raise UnsupportedError(
                f"reading all events of {self._data.url} again is not supported; use files with the same "
                "columns: data.kind=table data.path=events"
            )
        assert self._source is not None
        if self._reader is None:
            self._begin_at(None)
        following = self.find_quarantine(self._step)
        until = None if following is None else following.good_step
        if self._data.cuts_from is not None and self._data.quarantined:
            yield from self._quarantined_batches(self._data.cuts_from)
        elif self._data.cuts_from is not None:
            yield from self._recorded_batches(self._data.cuts_from, until)
        elif until is not None:
            assert self._request.snapshots_url is not None
            self._erased = ErasedKeys(self._request.snapshots_url)
            yield from self._recorded_batches(self._request.snapshots_url, until)
            self._erased = None
        else:
            while not self._is_at_end():
                yield self._next_batch(None)

    def _is_at_end(self) -> bool:
        ends = self._ends
        return ends is not None and all(self._read[name] >= end for name, end in ends.items())

    def _recorded_batches(self, url: str, until: int | None) -> Iterator[ColumnBatch]:
        """Yields the recorded cuts after the current step, up to the step `until`."""
        step = self._step
        for cut in read_cuts(url, [(step + 1, 2**63 if until is None else until + 1)]):
            if cut.step != step + 1:
                raise DataError(
                    f"the cuts of the run in {url}: found step {cut.step} after step {step}, expected "
                    f"{step + 1}; start from a later snapshot",
                    path=url,
                )
            step = cut.step
            batch = self._next_batch(cut)
            assert batch is not None
            yield batch
        if until is not None and step < until:
            raise DataError(
                f"the cuts of the run in {url}: found none after step {step}, expected them up to step "
                f"{until}, after which the run has dropped steps; restore the folder cuts",
                path=url,
            )

    def _quarantined_batches(self, url: str) -> Iterator[ColumnBatch]:
        """Yields the cuts of dropped steps. The position in the stream remains."""
        final = dict(self._positions)
        for cut in read_cuts(url, are_dropped=True):
            begins = {each.partition: each.begin for each in cut.ranges}
            if any(self._positions[name] != begin for name, begin in begins.items()):
                self._move({**self._positions, **begins})
            batch = self._next_batch(cut)
            if batch is not None and batch.cut is not None:
                yield replace(batch, cut=replace(batch.cut, positions=final))

    def _next_batch(self, recorded: RecordedCut | None) -> ColumnBatch | None:
        """Returns this rank's part of the next step. All ranks call it.

        Args:
            recorded: events of the step; None: those that arrive.
        """
        error: Exception | None = None
        taken: dict[str, list[Events]] = {}
        # Recorded, so that a replay finds the same times and skips the same rows.
        read_times: dict[str, float | None] = {}
        batch = None
        try:
            if recorded is None:
                taken = self._take()
                read_times = dict.fromkeys(taken, time.time())
            else:
                own = {each.partition: each for each in recorded.ranges}
                taken = self._take_recorded(own)
                read_times = {name: own[name].read_time for name in taken}
            events = [each for every in taken.values() for each in every]
            batch = self._decoder.decode(events, read_times)
            if self._erased is not None and batch is not None:
                is_kept = self._erased.find_kept(batch, self.schema)
                self._num_erased += int((~is_kept).sum())
                batch = batch.take(is_kept)
        except Exception as failure:  # All ranks must raise.
            error = failure
        assert self._reader is not None
        counts = {name: sum(map(len, events)) for name, events in taken.items()}
        every = self._agreed([self._reader.positions, counts, read_times, _newest_of(batch)], error)
        # No partition is read by two ranks.
        positions, counts, read_times = (
            {name: each for parts in every for name, each in parts[at].items()} for at in range(3)
        )
        newest = max((parts[3] for parts in every if parts[3] is not None), default=None)
        if recorded is not None and recorded.event_time is not None:
            # Events with erased keys may have been newer.
            newest = recorded.event_time
        self._read = positions
        if not any(counts.values()):
            # Messages that were skipped are part of the next cut.
            return None
        ranges = tuple(
            CutRange(name, begin, positions[name], counts[name], read_times.get(name))
            for name, begin in self._positions.items()
            if positions[name] > begin
        )
        self._positions = {name: positions[name] for name in self._positions}
        cut = Cut(ranges, dict(self._positions), newest)
        return replace(self._empty if batch is None else batch, total=cut.num_events, cut=cut)

    def _take(self, paused: Collection[str] = ()) -> dict[str, list[Events]]:
        assert self._reader is not None
        deadline = time.monotonic() + self._data.max_milliseconds / 1000
        return self._reader.take(self._share(self._data.batch_size), deadline, paused)

    def _share(self, size: int) -> int:
        """Returns this rank's share of a number of events, at least 1."""
        rank, owners = self._request.rank, min(self._request.world_size, self._num_groups())
        return max(size * (rank + 1) // owners - size * rank // owners, 1)

    def _take_recorded(self, recorded: Mapping[str, CutRange]) -> dict[str, list[Events]]:
        assert self._reader is not None
        mine = [name for name in self._reader.positions if name in recorded]
        taken = {name: self._reader.take_range(name, recorded[name].end) for name in mine}
        for name, events in taken.items():
            found, expected = sum(map(len, events)), recorded[name].num_events
            if found != expected:
                raise DataError(
                    f"partition {name}, offsets {recorded[name].begin} to {recorded[name].end - 1}: "
                    f"found {found} events, expected {expected}, which the run has trained; restore them",
                    partition=name,
                    offset=recorded[name].begin,
                )
        return taken

    def _agreed(self, value: Any, error: Exception | None) -> list[Any]:
        """Returns the values of all ranks, which are JSON values. All ranks call it.

        Raises:
            DataError: another rank has an error.
            Exception: `error`, if this rank has one.
        """
        text = None if error is None else f"{type(error).__name__}: {error}"
        gather, own = self._request.gather, [value, text]
        every = [own]
        if gather is not None:
            every = [json.loads(each) for each in gather(json.dumps(own).encode())]
        if error is not None:
            raise error
        for rank, (_, problem) in enumerate(every):
            if problem is not None:
                raise DataError(f"rank {rank} failed: {problem}")
        return [each for each, _ in every]

    @property
    def _empty(self) -> ColumnBatch:
        """A batch without examples."""
        none = np.empty(0, np.float32)
        return ColumnBatch(
            {each.name: Column(np.empty(0, np.int64)) for each in self.schema.features},
            np.empty((0, len(self.schema.numbers)), np.float32),
            None if self.schema.label is None else none,
            none if self.schema.has_weights else None,
            event_times=np.empty(0),
        )

    def test_batches(self) -> Iterator[ColumnBatch]:
        """Yields the rows of `test_path`, the same on all ranks."""
        path = self._data.test_path
        if path is None:
            return
        data = self._data.as_table(path)
        label = data.label if self.schema.label is not None else None
        names = (*data.categorical, *data.numeric, label, data.weight)
        columns = tuple(dict.fromkeys(name for name in names if name is not None))
        files = find_files(path, data.form)
        if files[0].format == "parquet":
            parquet = ParquetRows(files, columns)
            parquet.types.check_origins(data.types)
            rows = parquet.read(parquet.groups, columns, _TEST_ROWS)
        else:
            rows = CsvRows(files, data, columns).read(columns)
        decoder = Decoder(data, self.schema.label)
        for each in rows:
            batch, is_good = decoder.decode(each)
            yield batch if is_good is None else batch.take(is_good)

    def validation_batches(self) -> Iterator[ColumnBatch]:
        """Yields nothing."""
        return iter(())

    def extra(self) -> Mapping[str, Any]:
        """Returns ``rows_skipped``, the number of rows and undecodable messages that this rank skipped,
        if they are skipped; and with recorded cuts ``events_erased``, the number of events that this rank
        did not train, because they contain erased keys."""
        skipped = (
            {"rows_skipped": self._parser.num_skipped} if self._data.bad_rows == "skip" else {}
        )
        erased = {} if self._erased is None else {"events_erased": self._num_erased}
        return skipped | erased


def _newest_of(batch: ColumnBatch | None) -> float | None:
    """Returns the time of the newest event; None if it is unknown."""
    times = None if batch is None else batch.event_times
    return None if times is None or not len(times) else float(times.max())
