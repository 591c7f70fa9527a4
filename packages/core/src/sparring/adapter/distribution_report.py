"""`DistributionReport`: outcome and reason for each module of a model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from sparring.errors import InvalidArgumentError, UnsupportedError

__all__ = [
    "DistributionReport",
    "ModuleReport",
    "Outcome",
    "check_choices",
    "describe_added_methods",
    "explain_missing_weight",
]


class Outcome(Enum):
    """Fate of a module."""

    REPLACED = "replaced"
    KEPT = "kept"
    UNSUPPORTED = "unsupported"


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
    def unsupported(self) -> tuple[ModuleReport, ...]:
        """The modules, or the optimizer, for which `distribute` raises."""
        return self._of(Outcome.UNSUPPORTED)

    def check(self) -> None:
        """Refuses a program of which something is refused.

        Raises:
            UnsupportedError: with all such lines; its attribute `report` is this.
        """
        if self.unsupported:
            raise UnsupportedError(
                f"distribute: {len(self.unsupported)} of {len(self.modules)} parts are refused, and "
                f"nothing "
                f"was changed\n{DistributionReport(self.unsupported)}",
                report=self,
            )

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


def check_choices(semantics: str, keep: Collection[str]) -> None:
    """Raises `InvalidArgumentError` for another value of `semantics`, or one text as `keep`."""
    if semantics not in ("exact", "lazy"):
        raise InvalidArgumentError(f"semantics: found {semantics!r}; give 'exact' or 'lazy'")
    if isinstance(keep, str):
        raise InvalidArgumentError(f"keep: found text {keep!r}; give a list of paths: [{keep!r}]")


def describe_added_methods(kind: type, base: type, known: Collection[str]) -> str:
    """Refusal of a class for methods that it adds to those of `base`, but for `known`; empty: none."""
    found = {
        name
        for each in kind.__mro__[: kind.__mro__.index(base)]
        for name, value in vars(each).items()
        if callable(value) and name not in known
    }
    return f"its class {kind.__name__} defines {', '.join(sorted(found))}" if found else ""


def explain_missing_weight(path: str, table: str) -> str:
    """Text for a use of the weight of a module or layer, which `distribute` put into a table."""
    return (
        f"{path}: distribute put its weight into table {table}, which is no matrix. Call it with ids, "
        "all of them if need be, for rows that are trained; or have distribute keep it as it is, "
        f"keep=[{path!r}]"
    )
