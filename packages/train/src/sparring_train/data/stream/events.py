"""Converts messages to batches. Bad messages and rows raise an error, or become dead letters."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow

from sparring.errors import DataError
from sparring_train.columns import ColumnBatch, Label
from sparring_train.config.sections.stream import StreamData
from sparring_train.data.stream.event_times import EventTimes
from sparring_train.data.table.decode import SKIP_ADVICE, Decoder, RawRows, StringReceiver
from sparring_train.data.table.row_groups import find_type_family
from sparring_train.data.whole_numbers import check_whole_numbers, parse_number
from sparring_train.streams import StreamMessage

__all__ = ["Events", "MessageDecoder", "Parser"]

_log = logging.getLogger(__name__)

_ID_TYPES: dict[str, Any] = {
    "integer": pyarrow.int64(),
    "unsigned": pyarrow.uint64(),
    "hexadecimal": pyarrow.string(),
    "string": pyarrow.string(),
}
"""Type of the array of JSON values for each type of ids."""

_ERRORS = (
    ArithmeticError,
    DataError,
    pyarrow.ArrowException,
    KeyError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors that a payload can cause."""


@dataclass(frozen=True, slots=True)
class Events:
    """Events of one message."""

    partition: str
    message: StreamMessage
    rows: Any
    """A `pyarrow.RecordBatch`, or a list of parsed JSON objects."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def schema(self) -> Any:
        """Arrow schema; None for JSON."""
        return getattr(self.rows, "schema", None)


class Parser(Protocol):
    """Parses messages; see `MessageDecoder`."""

    @property
    def num_skipped(self) -> int:
        """See `MessageDecoder.num_skipped`."""

    def parse(self, partition: str, message: StreamMessage) -> Events | None:
        """See `MessageDecoder.parse`."""


class MessageDecoder:
    """Decodes the messages of one rank.

    Args:
        data: the section of the configuration.
        label: see `OpenRequest`.
        rank: this rank, for the name of the file of dead letters.
        strings: receives hashed strings, if given.
    """

    def __init__(
        self,
        data: StreamData,
        label: Label | None,
        rank: int,
        strings: StringReceiver | None = None,
    ) -> None:
        self._data = data
        self._label = data.label if label is not None else None
        names = (*data.categorical, *data.numeric, self._label, data.weight, data.event_time)
        self._columns = list(dict.fromkeys(name for name in names if name is not None))
        self._known: set[str] | None = None
        # Bad rows are found and skipped here, so that each is reported with its message.
        self._decoder = Decoder(data.model_copy(update={"bad_rows": "refuse"}), label, strings)
        self._times = EventTimes(data)
        self._skips = data.bad_rows == "skip"
        self._letters: Path | None = None
        if data.dead_letters is not None:
            self._letters = Path(data.dead_letters, f"rank-{rank}.jsonl")
        self._json_types = self._find_json_types()
        self.num_skipped = 0
        """Number of rows and of undecodable messages that were skipped."""

    def _find_json_types(self) -> dict[str, Any]:
        data = self._data
        types = dict.fromkeys(self._columns, pyarrow.float64())
        for name, kind in data.id_types.items():
            types[name] = _ID_TYPES[kind]
            if name in data.lists:
                types[name] = pyarrow.list_(types[name])
        if self._label is not None and data.label_values:
            types[self._label] = pyarrow.string()
        return types

    # -- messages to rows -------------------------------------------------------------------

    def parse(self, partition: str, message: StreamMessage) -> Events | None:
        """Returns the events of a message, so that they can be counted; None if it is skipped.

        Raises:
            DataError: the message cannot be decoded or lacks a column, and is not skipped.
        """
        value = message.value
        try:
            if isinstance(value, pyarrow.RecordBatch):
                rows: Any = value
            else:
                rows = _from_arrow(value) if self._data.format == "arrow" else _from_json(value)
            self._check_columns(rows)
        except _ERRORS as error:
            self._skip_or_raise(partition, message, None, error)
            return None
        return Events(partition, message, rows)

    def _check_columns(self, rows: Any) -> None:
        """Raises if a column is missing or has the wrong type, and warns about new ones."""
        is_arrow = isinstance(rows, pyarrow.RecordBatch)
        for names in [rows.schema.names] if is_arrow else rows:
            for name in self._columns:
                if name not in names:
                    shown = ", ".join(map(str, list(names)[:12]))
                    raise DataError(
                        f"column {name!r} is missing, found {shown or 'none'}; add it to the events"
                    )
            if self._known is None:
                self._known = set(names)
            elif not self._known.issuperset(names):
                new = sorted(set(names) - self._known)
                self._known.update(new)
                _log.warning("%s: new columns are ignored: %s", self._data.url, ", ".join(new))
        if is_arrow:
            self._check_types(rows.schema)

    def _check_types(self, schema: Any) -> None:
        """Raises if strings would be read as other ids than the configured type gives."""
        for name, kind in self._data.id_types.items():
            found = find_type_family(schema.field(name).type)
            is_text = kind in ("string", "hexadecimal")
            if "nulls" not in found and found.endswith("strings") != is_text:
                expected = "strings" if is_text else "whole numbers"
                raise DataError(
                    f"column {name!r}: found {found}, expected {expected}; set the type of the column in "
                    "data.types, or convert the column"
                )

    # -- rows to batches --------------------------------------------------------------------

    def decode(
        self, events: Sequence[Events], read_times: Mapping[str, float | None]
    ) -> ColumnBatch | None:
        """Returns one batch with the good events, in order; None if there are none.

        Args:
            events: messages in the order of their partitions and offsets.
            read_times: partition → time at which its messages were read; None if it was not recorded.

        Raises:
            DataError: a row is bad, and bad rows are not skipped.
        """
        batches: list[ColumnBatch] = []
        for _, group in groupby(filter(len, events), lambda each: each.schema):
            batches += self._decode_group(list(group), read_times)
        return ColumnBatch.joined(batches) if batches else None

    def _decode_group(
        self, events: list[Events], read_times: Mapping[str, float | None]
    ) -> Iterator[ColumnBatch]:
        """Yields the events of messages with one schema."""
        try:
            yield self._decode_rows(events, read_times)
        except _ERRORS as error:
            if len(events) == 1:
                yield from self._decode_rows_one_by_one(events[0], read_times, error)
                return
            # The error may name the wrong message.
            for each in events:
                yield from self._decode_group([each], read_times)

    def _decode_rows_one_by_one(
        self, events: Events, read_times: Mapping[str, float | None], error: Exception
    ) -> Iterator[ColumnBatch]:
        """Yields the good rows of a message that has bad ones."""
        if not self._skips:
            self._skip_or_raise(events.partition, events.message, None, error)
        for row in range(len(events)):
            chosen = events.rows.slice(row, 1) if events.schema else events.rows[row : row + 1]
            try:
                yield self._decode_rows([replace(events, rows=chosen)], read_times, row)
            except _ERRORS as bad:
                self._skip_or_raise(events.partition, events.message, row, bad)

    def _decode_rows(
        self, events: list[Events], read_times: Mapping[str, float | None], first_row: int = 0
    ) -> ColumnBatch:
        parts = [each.rows for each in events]
        if isinstance(parts[0], pyarrow.RecordBatch):
            selected = [each.select(self._columns) for each in parts]
            table = pyarrow.Table.from_batches(selected).unify_dictionaries().combine_chunks()
            [batch] = table.to_batches()
            columns = dict(zip(self._columns, batch.columns, strict=True))
            count = batch.num_rows
        else:
            objects = [row for part in parts for row in part]
            columns, count = self._json_columns(objects), len(objects)
        rows = RawRows(self._label_of(events[0]), first_row + 1, 0, count, columns)
        batch, _ = self._decoder.decode(rows)
        lengths = [len(each) for each in parts]
        stamps = np.array([each.message.timestamp for each in events], np.float64)
        read = np.array([read_times[each.partition] for each in events], np.float64)
        times = self._times.read(rows, np.repeat(stamps, lengths), np.repeat(read, lengths))
        return replace(batch, event_times=times)

    def _json_columns(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        columns = {}
        for name, kind in self._json_types.items():
            values = [row[name] for row in rows]
            if name == self._label:
                values = [int(each) if isinstance(each, bool) else each for each in values]
            # Arrow cuts the fraction of a number without an error.
            id_kind = self._data.id_types.get(name)
            if id_kind in ("integer", "unsigned"):
                check_whole_numbers(values, name, is_unsigned=id_kind == "unsigned")
            try:
                if kind == pyarrow.float64():
                    values = [float(each) if type(each) is int else each for each in values]
                columns[name] = pyarrow.array(values, kind)
            except (pyarrow.ArrowException, OverflowError, TypeError, ValueError) as error:
                raise DataError(
                    f"column {name!r}: {error}; expected {kind}; set the type of the column in "
                    "data.types, or correct the events"
                ) from error
        return columns

    # -- bad messages and rows --------------------------------------------------------------

    def _label_of(self, events: Events) -> str:
        return self._place(events.partition, events.message)

    def _place(self, partition: str, message: StreamMessage) -> str:
        return f"{self._data.url}, partition {partition}, offset {message.offset}"

    def _skip_or_raise(
        self, partition: str, message: StreamMessage, row: int | None, error: Exception
    ) -> None:
        """Raises an error that names the message, or skips the message or one of its rows."""
        place, text = self._place(partition, message), str(error)
        if not self._skips:
            if text.startswith(place):
                raise error
            raise DataError(
                f"{place}: {text.rstrip('.')}{SKIP_ADVICE}",
                partition=partition,
                offset=message.offset,
            ) from error
        self.num_skipped += 1
        if self._letters is None:
            return
        entry = {
            "partition": partition,
            "offset": message.offset,
            "row": row,
            "reason": text.replace(SKIP_ADVICE, ""),
            "payload": _printable(message.value, row),
        }
        try:
            self._letters.parent.mkdir(parents=True, exist_ok=True)
            with self._letters.open("a") as file:
                file.write(json.dumps(entry, default=str) + "\n")
        except OSError as failure:
            raise DataError(
                f"data.dead_letters: writing {self._letters} failed: {failure}; check free space and "
                "access rights of the folder, then run again with --resume",
                path=str(self._letters),
            ) from failure


def _from_arrow(value: bytes) -> Any:
    with pyarrow.ipc.open_stream(value) as reader:
        table = reader.read_all()
    batches = table.unify_dictionaries().combine_chunks().to_batches()
    return batches[0] if batches else pyarrow.RecordBatch.from_pylist([], table.schema)


def _from_json(value: bytes) -> list[dict[str, Any]]:
    found = json.loads(value, parse_float=parse_number)
    rows = found if isinstance(found, list) else [found]
    for row in rows:
        if not isinstance(row, dict):
            kind = type(row).__name__
            raise DataError(f"found {kind} in JSON, expected an object per event; send objects")
    return rows


def _printable(value: Any, row: int | None) -> Any:
    """Returns a payload for a dead letter: rows as objects, other payloads as text or base64."""
    if isinstance(value, pyarrow.RecordBatch):
        return (value if row is None else value.slice(row, 1)).to_pylist()
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
