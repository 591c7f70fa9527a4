"""Data of kind `stream`: events of a message broker, or of files that are added to a folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from sparring.contracts import LocalPath, Options
from sparring_train.columns import Schema
from sparring_train.config.section import BackendOptions, PositiveInt
from sparring_train.config.sections.columns import ColumnSettings, IdType, Name, Problem
from sparring_train.config.sections.join import EventTimeUnit, JoinConfig, PayloadFormat
from sparring_train.config.sections.table import TableData

__all__ = [
    "EventTimeUnit",
    "KafkaStreamOptions",
    "NatsStreamOptions",
    "RedisStreamOptions",
    "StreamData",
]


class RedisStreamOptions(Options):
    """Options of `redis://` in `data.options`. The password is in the variable REDISCLI_AUTH."""

    field: str = Field("value", description="Field of an entry that contains the payload.")


class NatsStreamOptions(Options):
    """Options of `nats://` in `data.options`. The variable SPARRING_NATS_PASSWORD contains the
    password."""

    credentials: str | None = Field(
        None,
        description="Path of a file with credentials, which NATS writes with the ending .creds.",
    )


class KafkaStreamOptions(Options):
    """Options of `kafka://` in `data.options`. The variable SPARRING_KAFKA_PASSWORD contains the
    password."""

    settings: dict[str, str | int | bool] = Field(
        default_factory=dict,
        description="Settings of librdkafka, such as `security.protocol`. They must not contain secrets.",
    )


class StreamData(ColumnSettings):
    """Events of a stream. The columns have the same keys as in data of kind `table`."""

    kind: Literal["stream"]
    url: LocalPath = Field(
        min_length=1,
        description="The stream: a folder of Parquet files or a URL of fsspec, "
        "`redis://host:6379/0/stream`, `kafka://host:9092/topic`, or `nats://host:4222/STREAM`. Plugins "
        "add more.",
    )
    options: BackendOptions = Field(
        default_factory=dict, description="Options of the client for the stream."
    )
    format: PayloadFormat = Field(
        "arrow",
        description="Payload of a message: an Arrow IPC stream; or a JSON object, or a list of them.",
    )
    types: dict[Name, IdType] = Field(
        default_factory=dict,
        description="Type of a column of `categorical`, see kind `table`. Default: `integer`.",
    )
    event_time: Name | None = Field(
        None,
        description="The column of the time of an event: an Arrow timestamp, or a number since 1970. "
        "Default: the time of its message, or the time at which it was read.",
    )
    event_time_unit: EventTimeUnit = Field(
        "seconds", description="Unit of `event_time`, if it is a number."
    )
    max_future_seconds: Annotated[float, Field(ge=0, strict=False, allow_inf_nan=False)] = Field(
        60.0,
        description="An event whose `event_time` is later than the clock of the machine by more than "
        "this is a bad row.",
    )
    join: JoinConfig | None = Field(
        None, description="Joins the events, which are impressions, with actions."
    )
    start: Literal["earliest", "latest"] = Field(
        "earliest",
        description="First event of a run that does not resume: the first or the next one.",
    )
    stop_at_end: bool = Field(
        False,
        description="Whether training ends after the events that existed when it started.",
    )
    batch_size: PositiveInt = Field(
        4096,
        description="Maximum number of events per step, over all ranks and micro-batches. A message is "
        "not divided.",
    )
    max_milliseconds: Annotated[int, Field(ge=1, le=30_000)] = Field(
        200, description="Maximum time that a step waits for its events after the previous step."
    )
    dictionary: bool = Field(
        False,
        description="Store the string of each hashed id, see kind `table`.",
    )
    dead_letters: LocalPath | None = Field(
        None,
        min_length=1,
        description="Folder for skipped messages and rows, with partition, offset and reason, as "
        "lines of JSON per rank.",
    )
    test_path: LocalPath | None = Field(
        None,
        min_length=1,
        description="CSV or Parquet files with rows for the test. Null: no test.",
    )
    cuts_from: LocalPath | None = Field(
        None,
        min_length=1,
        description="Snapshots of a run whose recorded cuts are trained again, for `sparring replay`.",
    )
    quarantined: bool = Field(
        False,
        description="Train the quarantined cuts of `cuts_from`, and keep the position in the stream.",
    )

    changeable: ClassVar[frozenset[str]] = frozenset(
        {
            "url", "options", "format", "start", "stop_at_end", "batch_size", "max_milliseconds",
            "bad_rows", "dead_letters", "test_path", "cuts_from", "event_time", "event_time_unit",
            "max_future_seconds", "join", "dictionary", "quarantined",
        }
    )  # fmt: skip

    @property
    def id_types(self) -> dict[Name, IdType]:
        return {name: self.types.get(name, "integer") for name in self.categorical}

    @property
    def has_test(self) -> bool:
        return self.test_path is not None

    @property
    def has_epochs(self) -> bool:
        return False

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        keys = () if self.join is None else self.join.key
        for name in self.types:
            if name not in self.categorical and name not in keys:
                expected = ", ".join(dict.fromkeys((*self.categorical, *keys)))
                yield "types", "contains a column that is not in data.categorical", name, expected
        if self.event_time is not None and self.event_time in (*self.categorical, self.label):
            expected = "a column of times"
            yield "event_time", "is also a column of ids or the label", self.event_time, expected
        if self.dead_letters is not None and self.bad_rows != "skip":
            expected = "data.bad_rows: skip"
            yield (
                "dead_letters",
                "requires that bad rows are skipped",
                "data.bad_rows: refuse",
                expected,
            )

        yield from self._join_problems()

    def _join_problems(self) -> Iterator[Problem]:
        if self.join is None:
            return
        if self.label is None:
            expected = "the name of the label, which is the column in the files of data.test_path"
            yield "label", "is required by data.join", "null", expected
        others = (self.label, self.weight, self.event_time, *self.lists, *self.numeric)
        for name in self.join.key:
            if name in others:
                expected = "a column with one id per row"
                yield (
                    "join",
                    "has a key that is a label, a list, a number or a time",
                    name,
                    expected,
                )
        if len(set(self.join.key)) < len(self.join.key):
            yield (
                "join",
                "has a key with equal columns",
                ", ".join(self.join.key),
                "different columns",
            )
        for name, action in self.join.actions.items():
            found, expected = len(action.key), f"{len(self.join.key)}, as in data.join.key"
            if found not in (0, len(self.join.key)):
                yield "join", f"has another number of key columns in {name}", f"{found}", expected
            uses = (*(action.key or self.join.key), action.label, action.event_time)
            columns = [each for each in uses if each is not None]
            if len(set(columns)) < len(columns):
                expected = "different columns for the key, the label and the time"
                yield "join", f"uses a column twice in {name}", ", ".join(columns), expected

    @property
    def columns(self) -> Schema:
        found = super().columns
        is_weighted = self.join is not None and self.join.late_weight != 1
        return replace(found, has_weights=found.has_weights or is_weighted)

    def impressions(self) -> StreamData:
        """Returns the section that reads the impressions of a join, with the columns of its key."""
        assert self.join is not None
        keys = [name for name in self.join.key if name not in self.categorical]
        required = [*keys, *(name for name in self.join.key if name not in self.missing_ids)]
        changes: dict[str, Any] = {
            "join": None,
            "label": None,
            "label_values": {},
            "categorical": (*self.categorical, *keys),
            "required": tuple(dict.fromkeys((*self.required, *required))),
        }
        return self.model_copy(update=changes)

    def actions(self, name: str) -> StreamData:
        """Returns the section that reads a stream of actions. Its columns of ids are the key."""
        assert self.join is not None
        action = self.join.actions[name]
        keys = action.key or self.join.key
        kinds = zip(keys, self.join.key, strict=True)
        shared = ("bad_rows", "dead_letters", "max_future_seconds")
        return StreamData(
            kind="stream",
            url=action.url,
            options=action.options,
            format=action.format,
            categorical=keys,
            required=keys,
            types={key: self.types.get(name, "integer") for key, name in kinds},
            label=action.label,
            event_time=action.event_time,
            event_time_unit=action.event_time_unit,
            **{each: getattr(self, each) for each in shared},
        )

    def as_table(self, path: str) -> TableData:
        """Returns the section for files with the same columns.

        Args:
            path: the files.
        """
        shared = {name: getattr(self, name) for name in ColumnSettings.model_fields}
        return TableData(**{**shared, "kind": "table", "path": path, "types": self.id_types})
