"""`DistributionReport`: outcome and reason for each module of a model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["DistributionReport", "ModuleReport", "Outcome"]


class Outcome(Enum):
    """Fate of a module."""

    REPLACED = "replaced"
    KEPT = "kept"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class ModuleReport:
    """One module, or the optimizer.

    Args:
        path: in the model, all of them where it is shared; `optimizer` for the optimizer.
        kind: its class.
        outcome: what becomes of it.
        reason: why, and what to do where it is refused.
    """

    path: str
    kind: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class DistributionReport:
    """All modules with parameters; printed, it is a table."""

    modules: tuple[ModuleReport, ...]

    @property
    def replaced(self) -> tuple[ModuleReport, ...]:
        """The modules that look up in tables from now on."""
        return self._of(Outcome.REPLACED)

    @property
    def kept(self) -> tuple[ModuleReport, ...]:
        """The modules that stay as they are."""
        return self._of(Outcome.KEPT)

    @property
    def refused(self) -> tuple[ModuleReport, ...]:
        """The modules, or the optimizer, for which `distribute` raises."""
        return self._of(Outcome.REFUSED)

    def _of(self, outcome: Outcome) -> tuple[ModuleReport, ...]:
        return tuple(each for each in self.modules if each.outcome is outcome)

    def __str__(self) -> str:
        lines = [("module", "class", "outcome", "reason")]
        lines += [(each.path, each.kind, each.outcome.value, each.reason) for each in self.modules]
        widths = [max(len(line[column]) for line in lines) for column in range(3)]
        return "\n".join(
            "  ".join(
                [*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[3]]
            )
            for line in lines
        )
