"""Messages of a run on standard error: the `logging` section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sparring_train.config.section import Section

__all__ = ["LoggingConfig"]


class LoggingConfig(Section):
    """Messages on standard error, each line with the rank and the step."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "warning",
        description="The least important messages that are told. Progress is told at any level.",
    )
    format: Literal["text", "json"] = Field(
        "text",
        description="`json` writes an object a line: `time`, `level`, `rank`, `step`, `table` where "
        "it is about one, `logger`, `message`; progress too.",
    )
