"""Numbers of snapshots as text: sizes in bytes, and counts with their nouns."""

from __future__ import annotations

from sparring import Snapshot

__all__ = ["count_of", "count_own_bytes", "format_bytes"]


def count_own_bytes(snapshot: Snapshot) -> int:
    return sum(entry.size_bytes for entry in snapshot.files())


def count_of(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def format_bytes(count: int) -> str:
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{count:,} B" if unit == "B" else f"{size:.1f} {unit}"
