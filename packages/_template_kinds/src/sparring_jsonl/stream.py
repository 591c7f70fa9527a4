"""A stream: a file of JSON lines to which a program adds lines, ``jsonl:///folder/clicks.jsonl``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparring.errors import DataError
from sparring_train import StreamMessage, StreamRead

__all__ = ["LinesSource"]

_PARTITION = "lines"
_POLL_SECONDS = 0.02


class LinesSource:
    """Reads complete lines. The offset of a line is the position of its first byte.

    Args:
        url: `jsonl://` and the path of the file.
    """

    def __init__(self, url: str) -> None:
        path = Path(url.partition("://")[2])
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise DataError(f"opening the stream {url} failed: {error}; create the file") from error

    def partitions(self) -> Sequence[str]:
        return [_PARTITION]

    def earliest_offsets(self) -> Mapping[str, int]:
        return {_PARTITION: 0}

    def end_offsets(self) -> Mapping[str, int]:
        # The last line may be incomplete.
        self._file.seek(0)
        return {_PARTITION: sum(len(line) for line in self._file if line.endswith(b"\n"))}

    def read(self, partition: str, offset: int, max_events: int, deadline: float) -> StreamRead:
        messages: list[StreamMessage] = []
        while True:
            self._file.seek(offset)
            while len(messages) < max_events and (line := self._file.readline()).endswith(b"\n"):
                messages.append(StreamMessage(offset, line))
                offset += len(line)
            seconds = deadline - time.monotonic()
            if messages or seconds <= 0:
                return StreamRead(offset, messages)
            time.sleep(min(_POLL_SECONDS, seconds))

    def close(self) -> None:
        self._file.close()
