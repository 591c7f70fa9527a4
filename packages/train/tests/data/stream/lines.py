"""A stream for tests: the lines of a text file, one message each, with the scheme `lines`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparring.contracts import Options, hookimpl
from sparring_train.hookspecs import StreamDescriptor
from sparring_train.streams import StreamMessage, StreamRead

__all__ = ["LinesPlugin"]


class LinesOptions(Options):
    """Options of `lines://`."""

    skip: int = 0
    """Number of lines at the beginning that are not messages."""


class LinesSource:
    def __init__(self, url: str, options: LinesOptions) -> None:
        lines = Path(url.removeprefix("lines://")).read_bytes().splitlines()
        self._lines = lines[options.skip :]

    def partitions(self) -> Sequence[str]:
        return ["lines"]

    def earliest_offsets(self) -> Mapping[str, int]:
        return {"lines": 0}

    def end_offsets(self) -> Mapping[str, int]:
        return {"lines": len(self._lines)}

    def read(self, partition: str, offset: int, max_events: int, deadline: float) -> StreamRead:
        lines = self._lines[offset : offset + max_events]
        messages = [StreamMessage(offset + at, each) for at, each in enumerate(lines)]
        return StreamRead(offset + len(lines), messages)

    def close(self) -> None: ...


class LinesPlugin:
    @hookimpl(optionalhook=True)
    def sparring_register_streams(self) -> list[StreamDescriptor]:
        return [
            StreamDescriptor(name="lines", api_version=(1, 0), options=LinesOptions, open=_open)
        ]


def _open(url: str, options: Any) -> LinesSource:
    return LinesSource(url, options)
