"""The `metrics` section: location and frequency of counters, and windows of streams."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field
from pydantic_core import PydanticCustomError

from sparring.contracts import LocalPath
from sparring_train.config.section import PositiveFloat, Section
from sparring_train.config.sections.columns import Name, Text
from sparring_train.config.sections.kinds import DataSection, ModelSection
from sparring_train.config.sections.stream import StreamData

__all__ = ["MetricsConfig", "RowAgeConfig", "check_port", "check_slices"]


class RowAgeConfig(Section):
    """Divides the events of a window by the age of the row of one feature: events whose id had no row,
    and events whose row was created at most a number of seconds of event time before. A resumed run
    does not know the age of earlier rows, and counts them as older.
    """

    feature: Name = Field(description="A column of `data.categorical` with one id per event.")
    seconds: Annotated[tuple[PositiveFloat, ...], Field(strict=False, min_length=1)] = Field(
        (3600.0,), description="Upper bounds of the ages, in increasing order: `[600, 3600]`."
    )


class MetricsConfig(Section):
    """Writes all counters periodically in the background, and once more when training ends."""

    path: LocalPath | None = Field(
        None,
        min_length=1,
        description="File to write; null writes none. `{rank}` and `{world_size}` are replaced by their "
        "values, which gives each rank a separate file. Without `{rank}`, only rank 0 writes, and only "
        "its own counters. Relative paths start at the folder of the configuration file.",
    )
    port: Annotated[int, Field(ge=0, lt=1 << 16)] | None = Field(
        None,
        description="Port on which Prometheus can scrape the latest counters. Rank r listens on "
        "`port` + r. Null: no port. Requires `pip install 'sparring[metrics]'`.",
    )
    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Address to listen on. The default is reachable from this machine only.",
    )
    token_file: LocalPath | None = Field(
        None,
        min_length=1,
        description="File whose first line is the token that Prometheus must send to `port`. Null: "
        "everyone who reaches the port can read it.",
    )
    certificate_file: LocalPath | None = Field(
        None,
        min_length=1,
        description="Certificate of `port` in PEM format, for TLS. Null: plain text.",
    )
    key_file: LocalPath | None = Field(
        None, min_length=1, description="Key of the certificate, without a password."
    )
    every_seconds: PositiveFloat = Field(
        10.0, description="Minimum time between two writes, except the last one."
    )
    format: Literal["jsonl", "prometheus"] = Field(
        "jsonl",
        description="`jsonl` appends one JSON object per line. `prometheus` replaces the file by the "
        "latest counters in Prometheus' text format, for node_exporter's textfile collector, which reads "
        "files ending in `.prom`; it requires `pip install 'sparring[metrics]'`.",
    )
    window_seconds: PositiveFloat | None = Field(
        60.0,
        description="Length of the windows of event time over which a run on a stream measures "
        "predictions before they are trained. Null: no windows.",
    )
    slices: dict[Name, Annotated[tuple[Text, ...], Field(strict=False, min_length=1)]] = Field(
        default_factory=dict,
        description="Values of columns of `data.categorical` for which windows are also measured: "
        "`{device: [ios, android]}`.",
    )
    row_age: RowAgeConfig | None = Field(
        None,
        description="Also measures windows by the age of rows, as slices of `age of <feature>`. Each "
        "step then reads the rows of this feature once more. Null: not by age.",
    )


def check_port(metrics: MetricsConfig) -> Iterator[PydanticCustomError]:
    """Yields keys of the port that contradict each other.

    Args:
        metrics: the section `metrics`.
    """
    access = {
        name: getattr(metrics, name) for name in ("token_file", "certificate_file", "key_file")
    }
    for name in [each for each, value in access.items() if value and metrics.port is None]:
        context = {
            "path": ("metrics", name),
            "found": "metrics.port: null",
            "expected": "a port in metrics.port",
        }
        yield PydanticCustomError("metrics_port", "has no effect without a port", context)
    for name, other in (("certificate_file", "key_file"), ("key_file", "certificate_file")):
        if access[name] and not access[other]:
            context = {
                "path": ("metrics", name),
                "found": f"metrics.{other}: null",
                "expected": "both files, or none",
            }
            yield PydanticCustomError("metrics_port", "requires both files of TLS", context)


def check_slices(
    metrics: MetricsConfig, data: DataSection, model: ModelSection
) -> Iterator[PydanticCustomError]:
    """Yields the columns of `metrics` that do not divide events, and values that they cannot have, or
    the keys that have no effect because windows are not measured.

    Args:
        metrics: the section `metrics`.
        data: the section `data`.
        model: the section `model`.
    """
    unmeasured = None
    if metrics.window_seconds is None:
        unmeasured = "metrics.window_seconds: null"
    elif model.label is None:
        unmeasured = f"model.kind: {model.kind}, which does not predict labels"
    if unmeasured is not None:
        for key in ("slices", "row_age"):
            if getattr(metrics, key):
                expected = (
                    "metrics.window_seconds, and a model that predicts labels; or no metrics." + key
                )
                context = {"path": ("metrics", key), "found": unmeasured, "expected": expected}
                problem = "has no effect, because windows are not measured"
                yield PydanticCustomError("slices", problem, context)
        return
    types = data.id_types if isinstance(data, StreamData) else {}
    known = [
        each.name
        for each in data.columns.features
        if types.get(each.name) in ("integer", "string") and not each.is_list
    ]
    no_column = "contains a column that does not divide events into slices"
    columns = ", ".join(known) or "data.kind: stream"
    for name, values in metrics.slices.items():
        if name not in known:
            found, expected, problem = name, columns, no_column
        elif types[name] == "integer" and not all(map(_is_integer, values)):
            found, expected = ", ".join(values), "whole numbers, because of data.types"
            problem = "contains a value that does not occur in the column"
        else:
            continue
        context = {"path": ("metrics", "slices", name), "found": found, "expected": expected}
        yield PydanticCustomError("slices", problem, context)
    if (age := metrics.row_age) is None:
        return
    path: tuple[str, ...] = ("metrics", "row_age", "feature")
    if age.feature not in known:
        context = {"path": path, "found": age.feature, "expected": columns}
        yield PydanticCustomError("slices", no_column, context)
    if any(before >= after for before, after in pairwise(age.seconds)):
        found = ", ".join(f"{each:g}" for each in age.seconds)
        expected = ", ".join(f"{each:g}" for each in sorted(set(age.seconds)))
        context = {"path": (*path[:-1], "seconds"), "found": found, "expected": expected}
        yield PydanticCustomError("slices", "must be in increasing order", context)


def _is_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and -(2**63) <= int(text) < 2**63
