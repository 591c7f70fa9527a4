"""Fuzzes payloads of streams: each must be decoded, or rejected with `DataError`.

The first byte selects the options. The remaining bytes are one or two messages, separated by a line of
``--``, of JSON or of Arrow. If bad rows are skipped, no payload may raise an error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fuzz import harness

_INSTRUMENTED = ("sparring_train.data.stream", "sparring_train.data.table.decode", "json")
_FIXED: dict[str, Any] = {"kind": "stream", "url": "clicks", "categorical": ("item", "user")}
_OPTIONS: tuple[dict[str, Any], ...] = (
    {"label": "clicked"},
    {"numeric": ("price",), "types": {"user": "hexadecimal", "item": "unsigned"}},
    {"label": "clicked", "label_values": {"yes": 1, "no": 0}, "weight": "price"},
    {"event_time": "at", "types": {"user": "string"}},
)
_SEPARATOR = b"\n--\n"


@contextmanager
def open_target() -> Iterator[harness.Target]:
    """Returns a target that decodes messages."""
    from sparring.errors import DataError
    from sparring_train.config.sections.stream import StreamData
    from sparring_train.data.stream.events import MessageDecoder
    from sparring_train.streams import StreamMessage

    sections = [
        StreamData(**{**_FIXED, **each, "format": form, "bad_rows": bad})
        for each in _OPTIONS
        for form in ("json", "arrow")
        for bad in ("refuse", "skip")
    ]

    def target(data: bytes) -> None:
        section = sections[data[0] % len(sections)] if data else sections[0]
        decoder = MessageDecoder(section, "binary" if section.label else None, 0)
        try:
            events = []
            for offset, payload in enumerate(data[1:].split(_SEPARATOR, 1)):
                parsed = decoder.parse("0", StreamMessage(offset, payload, 1.5))
                if parsed is not None:
                    events.append(parsed)
            batch = decoder.decode(events, {"0": 1.0})
        except DataError:
            if section.bad_rows == "skip":
                raise
            return
        if batch is not None and any(len(each) != len(batch) for each in batch.ids.values()):
            raise AssertionError("columns of a batch have different lengths")

    yield target


def seeds() -> Iterator[bytes]:
    """Yields messages of each format for each choice of options."""
    import pyarrow

    rows = [
        {"item": 7, "user": "ab", "clicked": 1, "price": 0.5, "at": 1790000000},
        {"item": None, "user": None, "clicked": True, "price": 2, "at": 1.5, "more": [1]},
        {"item": "7", "user": "ff", "clicked": "yes", "price": -1, "at": "2026-01-01T00:00:00Z"},
        {"item": 2**64, "user": {}, "clicked": 2, "price": "x", "at": None},
    ]
    sink = pyarrow.BufferOutputStream()
    batch = pyarrow.RecordBatch.from_pylist(
        [{"item": "7", "user": "ab", "clicked": 1, "price": 0.5, "at": 1790000000.0}]
    )
    with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    arrow = sink.getvalue().to_pybytes()
    for choice in range(16):
        if choice // 2 % 2:
            yield bytes([choice]) + arrow
            yield bytes([choice]) + arrow + _SEPARATOR + arrow
            continue
        for row in rows:
            yield bytes([choice]) + json.dumps(row).encode()
        yield bytes([choice]) + json.dumps(rows[:2]).encode() + _SEPARATOR + b"{}"


if __name__ == "__main__":
    sys.exit(harness.run(sys.argv[1:], _INSTRUMENTED, open_target))
