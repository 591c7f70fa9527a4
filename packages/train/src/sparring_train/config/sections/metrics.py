"""The `metrics` section: location and frequency of counters, and windows of streams."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sparring.contracts import LocalPath
from sparring_train.config.section import PositiveFloat, Section
from sparring_train.config.sections.columns import Name, Text

__all__ = ["MetricsConfig"]


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
