"""Size of a run: complete, or reduced to test that everything works."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Scale"]


@dataclass(frozen=True)
class Scale:
    """Divides sizes and numbers of rounds.

    Args:
        is_quick: whether the run should take seconds; its figures are meaningless.
        is_full: whether to include the largest sweeps.
    """

    is_quick: bool = False
    is_full: bool = False

    def rows(self, count: int) -> int:
        """Returns a number of rows, ids or bags."""
        return max(64, count // 512) if self.is_quick else count

    def rounds(self, count: int) -> int:
        """Returns the number of rounds of a measurement."""
        return 1 if self.is_quick else count
