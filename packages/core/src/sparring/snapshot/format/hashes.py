"""Hashes of files: one of the whole, which ``xxhsum -H2`` prints too, and one of each block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import xxhash

from sparring.snapshot.format.limits import BLOCK_BYTES

__all__ = ["BLOCK_DIGITS", "FileHashes", "block_hash", "hash_blocks", "no_pause", "text_hash"]

BLOCK_DIGITS = 16
"""Hexadecimal digits of the hash of a block."""

ReadInto = Callable[[int, memoryview], None]
"""Fills the view with the bytes of a file that begin at an offset."""


@dataclass(frozen=True, slots=True)
class FileHashes:
    """Expected hashes of a file's bytes.

    Args:
        size_bytes: of the file.
        whole: xxh3-128 of all bytes, 32 hexadecimal digits.
        blocks: xxh3-64 of each block of `BLOCK_BYTES`, 16 digits each, one after the other.
    """

    size_bytes: int
    whole: str
    blocks: str


def text_hash(data: bytes) -> str:
    """xxh3-128, 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def block_hash(data: memoryview) -> str:
    """xxh3-64, 16 hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(data)


def no_pause() -> None:
    """Does not pause."""


def hash_blocks(
    read_into: ReadInto, size_bytes: int, pause: Callable[[], None] = no_pause
) -> FileHashes:
    """The hashes of a file, in one pass over it.

    Args:
        read_into: reads the file.
        size_bytes: of the file.
        pause: called after each block.
    """
    whole = xxhash.xxh3_128()
    blocks = []
    buffer = memoryview(bytearray(min(BLOCK_BYTES, size_bytes)))
    for begin in range(0, size_bytes, BLOCK_BYTES):
        block = buffer[: min(BLOCK_BYTES, size_bytes - begin)]
        read_into(begin, block)
        whole.update(block)
        blocks.append(block_hash(block))
        pause()
    return FileHashes(size_bytes, whole.hexdigest(), "".join(blocks))
