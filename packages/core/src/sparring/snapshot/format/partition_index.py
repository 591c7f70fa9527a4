"""Partition index: the partitions of each segment, where these are not those of the whole file.

A file of rows that were written before their turn is of all partitions, its segments are not: a
reader of some partitions leaves the others out. It is a text in the header, so that readers that do
not know of it read all segments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sparring.snapshot.format.tensors import Header

__all__ = ["SEGMENT_PARTITIONS", "decode_partitions", "encode_partitions"]

SEGMENT_PARTITIONS = "partitions"
"""The name of the text."""

_TEXT = re.compile(r"\d{1,4}-\d{1,4}( \d{1,4}-\d{1,4})*\Z", re.ASCII)


def encode_partitions(ranges: Sequence[tuple[int, int]]) -> str:
    """``begin-end`` of each segment, half-open, with a space between."""
    return " ".join(f"{begin}-{end}" for begin, end in ranges)


def decode_partitions(
    header: Header, num_segments: int, whole: tuple[int, int]
) -> list[tuple[int, int]]:
    """The range of each segment.

    Args:
        header: of the file.
        num_segments: in it.
        whole: the range of the file, which contains each of them.

    Raises:
        ValueError: the text is not as it should be.
    """
    text = header.metadata.get(SEGMENT_PARTITIONS)
    if text is None:
        return [whole] * num_segments
    if not _TEXT.match(text):
        raise ValueError("the partitions of its segments cannot be read")
    ranges = [
        (int(begin), int(end)) for begin, end in (each.split("-") for each in text.split(" "))
    ]
    if len(ranges) != num_segments:
        raise ValueError(
            f"it has partitions of {len(ranges)} segments, and {num_segments} segments"
        )
    for begin, end in ranges:
        if not whole[0] <= begin < end <= whole[1]:
            raise ValueError(
                f"a segment of partitions {begin} to {end} in a file of {whole[0]} to {whole[1]}"
            )
    return ranges
