"""Where and how often counters are written while a run goes on: the `metrics` section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sparring.contracts import LocalPath
from sparring_train.config.section import PositiveFloat, Section

__all__ = ["MetricsConfig"]


class MetricsConfig(Section):
    """Writes all counters in the background now and then, and once more when training ends."""

    path: LocalPath | None = Field(
        None,
        min_length=1,
        description="The file to write; null writes none. `{rank}` and `{world_size}` in it stand "
        "for what they say, so that each rank has a file of its own; without `{rank}`, rank 0 "
        "alone writes, its own numbers. Relative paths start at the file's folder.",
    )
    port: Annotated[int, Field(ge=0, lt=1 << 16)] | None = Field(
        None,
        description="Answers Prometheus on this port with the numbers that were written last; rank r "
        "listens on `port` + r; null: no port. It needs `pip install 'sparring[metrics]'`.",
    )
    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="The address of that port; by default only this machine reaches it.",
    )
    every_seconds: PositiveFloat = Field(
        10.0, description="The least time between two writings, but for the last."
    )
    format: Literal["jsonl", "prometheus"] = Field(
        "jsonl",
        description="`jsonl` appends a JSON object a line. `prometheus` replaces the file by the "
        "newest numbers in Prometheus's text format, as the textfile collector of node_exporter "
        "reads them from files that end in `.prom`; it needs `pip install 'sparring[metrics]'`.",
    )
