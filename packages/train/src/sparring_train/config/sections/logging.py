"""The `logging` section: messages on standard error."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sparring_train.config.section import Section

__all__ = ["LoggingConfig"]


class LoggingConfig(Section):
    """Messages on standard error. Each line contains the rank and the step."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "warning",
        description="Minimum level of messages. Progress is printed at every level.",
    )
    format: Literal["text", "json"] = Field(
        "text",
        description="`json` prints one object per line: `time`, `level`, `rank`, `step`, `table` (if "
        "the message concerns one), `logger`, `message`. This includes progress.",
    )
