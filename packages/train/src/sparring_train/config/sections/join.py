"""Joins of a stream of impressions with streams of actions: the section `data.join`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sparring.contracts import LocalPath
from sparring_train.config.section import BackendOptions, PositiveFloat, Section
from sparring_train.config.sections.columns import Name, Names

__all__ = ["ActionStream", "EventTimeUnit", "JoinConfig", "PayloadFormat"]

EventTimeUnit = Literal["seconds", "milliseconds", "microseconds"]
PayloadFormat = Literal["arrow", "json"]

_Seconds = Annotated[float, Field(ge=0, strict=False, allow_inf_nan=False)]


class ActionStream(Section):
    """A stream of actions. It has as many partitions as the impressions, and the same key is in the
    partition of the same number."""

    url: LocalPath = Field(min_length=1, description="The stream, see `data.url`.")
    options: BackendOptions = Field(
        default_factory=dict, description="Options of the client for the stream."
    )
    format: PayloadFormat = Field("arrow", description="Payload of a message, see `data.format`.")
    key: Names = Field(
        (),
        description="Columns of the key, in the order of `data.join.key`. Default: the same names.",
    )
    label: Name | None = Field(
        None, description="Column of the label that an action gives. Null: the label is 1."
    )
    event_time: Name | None = Field(
        None,
        description="The column of the time of an action, see `data.event_time`.",
    )
    event_time_unit: EventTimeUnit = Field(
        "seconds", description="Unit of `event_time`, if it is a number."
    )


class JoinConfig(Section):
    """Joins impressions, which are the events of `data.url`, with actions. An impression becomes an
    example when its window ends. `data.label` is the name of its label: the largest label of its
    actions, or 0 without an action."""

    key: Names = Field(
        min_length=1,
        description="Columns that identify an impression. `data.types` can contain their types.",
    )
    actions: dict[Name, ActionStream] = Field(
        min_length=1, description="Name → stream of actions. Partitions are named after it."
    )
    window_seconds: PositiveFloat = Field(
        description="Time after an impression in which actions are its label.",
    )
    watermark_seconds: _Seconds = Field(
        5.0,
        description="Maximum time by which events arrive out of order. Windows end this much later than "
        "the newest event of the slowest partition. An action may precede its impression by this time.",
    )
    idle_seconds: PositiveFloat = Field(
        10.0,
        description="A partition in which reads find no event for this time does not delay the ends of "
        "windows.",
    )
    late: Literal["correct", "drop"] = Field(
        "drop",
        description="Handling of an action after the window: `correct` trains the impression again if "
        "its label changes, `drop` only counts the action.",
    )
    late_seconds: _Seconds = Field(
        3600.0,
        description="Time after the window in which an action corrects the label, if `late` is "
        "`correct`. Impressions are kept for it.",
    )
    late_weight: PositiveFloat = Field(
        1.0, description="Factor of the weight of a correcting example in the loss."
    )
    storage: Name = Field(
        "memory",
        description="Store of open impressions: `memory`, or `rocksdb` of sparring-rocksdb. Plugins add "
        "more.",
    )
    options: BackendOptions = Field(default_factory=dict, description="Options of the store.")
    path: LocalPath | None = Field(
        None,
        min_length=1,
        description="Folder on a local disk for the files of the store, which are used by one run at a "
        "time. Null: a temporary folder.",
    )
