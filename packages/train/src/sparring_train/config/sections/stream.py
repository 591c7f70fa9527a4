"""Data of kind `stream`: events of a message broker, or of files that are added to a folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from sparring.contracts import LocalPath, Options
from sparring_train.config.section import BackendOptions, PositiveInt
from sparring_train.config.sections.columns import ColumnSettings, IdType, Name, Problem
from sparring_train.config.sections.table import TableData

__all__ = ["EventTimeUnit", "KafkaStreamOptions", "RedisStreamOptions", "StreamData"]

EventTimeUnit = Literal["seconds", "milliseconds", "microseconds"]


class RedisStreamOptions(Options):
    """Options of `redis://` in `data.options`. The password is in the variable REDISCLI_AUTH."""

    field: str = Field("value", description="Field of an entry that contains the payload.")


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
        "`redis://host:6379/0/stream`, or `kafka://host:9092/topic`. Plugins add more.",
    )
    options: BackendOptions = Field(
        default_factory=dict, description="Options of the client for the stream."
    )
    format: Literal["arrow", "json"] = Field(
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

    changeable: ClassVar[frozenset[str]] = frozenset(
        {
            "url", "options", "format", "start", "stop_at_end", "batch_size", "max_milliseconds",
            "bad_rows", "dead_letters", "test_path", "cuts_from", "event_time", "event_time_unit",
            "max_future_seconds",
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
        for name in self.types:
            if name not in self.categorical:
                expected = ", ".join(self.categorical)
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

    def as_table(self, path: str) -> TableData:
        """Returns the section for files with the same columns.

        Args:
            path: the files.
        """
        shared = {name: getattr(self, name) for name in ColumnSettings.model_fields}
        return TableData(**{**shared, "kind": "table", "path": path, "types": self.id_types})
