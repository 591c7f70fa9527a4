"""Where and how often counters are written while a run goes on: the `metrics` section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sparring_train.config.section import PositiveFloat, Section

__all__ = ["MetricsConfig"]


class MetricsConfig(Section):
    """Writes all counters in the background now and then, and once more when training ends."""

    path: str | None = Field(
        None,
        min_length=1,
        description="The file to write; null writes none. `{rank}` and `{world_size}` in it stand "
        "for what they say, so that each rank has a file of its own; without `{rank}`, rank 0 "
        "alone writes, its own numbers. Relative paths start at the current directory.",
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
