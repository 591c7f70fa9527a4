"""Damages files like a disk that returns wrong bytes."""

from __future__ import annotations

from pathlib import Path

__all__ = ["flip_byte"]


def flip_byte(path: Path, at: int | None = None) -> None:
    """Changes one bit of a file, also of a read-only one. A second call restores it.

    Args:
        path: the file.
        at: position of the byte; a negative one counts from the end, and None is the middle.
    """
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    path.write_bytes(content)
