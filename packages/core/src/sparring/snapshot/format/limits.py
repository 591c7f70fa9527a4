"""Numbers of the format, and the bounds that nothing read may pass.

Bounds are checked before memory is allocated, so a hostile snapshot costs no more than a small
one. What the writer makes stays well within them.
"""

from __future__ import annotations

__all__ = [
    "BLOCK_BYTES",
    "HEADER_BYTES",
    "MANIFEST_BYTES",
    "MANIFEST_NAME",
    "MAX_CHAIN",
    "NUM_PARTITIONS",
    "SEGMENT_BYTES",
    "STATE_HEADER_BYTES",
    "VERSION",
]

VERSION = 1
"""Of the format. Readers refuse any other."""

NUM_PARTITIONS = 4096
"""Of a table's key space; `sparring.kernels.functions.partition` gives a key's."""

BLOCK_BYTES = 1 << 20
"""Each block of this size of a file has a hash of its own: where damage is looked for."""

MANIFEST_NAME = "manifest.json"

MANIFEST_BYTES = 256 << 20
"""The longest manifest that is read. A terabyte of rows needs about 20 MiB."""

HEADER_BYTES = 1 << 20
"""The longest header of a file of rows or erased keys that is read."""

STATE_HEADER_BYTES = 64 << 20
"""The longest header of a file of state that is read; it holds the state's values."""

SEGMENT_BYTES = 64 << 20
"""The longest segment of a file of rows that is read: so much memory reading needs."""

MAX_CHAIN = 1000
"""The most deltas over one full snapshot."""
