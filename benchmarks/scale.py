"""How large a run is: whole, or a small one that only shows that everything works."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Scale"]


@dataclass(frozen=True)
class Scale:
    """Divides sizes and rounds.

    Args:
        is_quick: a run of seconds, whose figures mean nothing.
        is_full: the widest sweeps too.
    """

    is_quick: bool = False
    is_full: bool = False

    def rows(self, count: int) -> int:
        """Rows, ids or bags."""
        return max(64, count // 512) if self.is_quick else count

    def rounds(self, count: int) -> int:
        """Rounds of a measurement."""
        return 1 if self.is_quick else count
