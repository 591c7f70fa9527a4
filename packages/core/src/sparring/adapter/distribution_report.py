"""`DistributionReport`: the outcome of `distribute` for each module of a model, and its reason."""

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
    """Outcome for one module."""

    REPLACED = "replaced"
    KEPT = "kept"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True)
class ModuleReport:
    """Outcome for one module, or for the optimizer.

    Args:
        path: path in the model, or all paths of a shared module; `optimizer` for the optimizer.
        kind: name of the class.
        outcome: whether the module is replaced, kept or unsupported.
        reason: reason for the outcome; for an unsupported module, also the fix.
    """

    path: str
    kind: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class DistributionReport:
    """Outcomes for all modules with parameters. `str` formats them as a table."""

    modules: tuple[ModuleReport, ...]

    @property
    def replaced(self) -> tuple[ModuleReport, ...]:
        """Modules that were replaced by lookups in tables."""
        return self._of(Outcome.REPLACED)

    @property
    def kept(self) -> tuple[ModuleReport, ...]:
        """Modules that remain unchanged."""
        return self._of(Outcome.KEPT)

    @property
    def unsupported(self) -> tuple[ModuleReport, ...]:
        """Modules, or the optimizer, for which `distribute` raises."""
        return self._of(Outcome.UNSUPPORTED)

    def check(self) -> None:
        """Checks that all modules and the optimizer are supported.

        Raises:
            UnsupportedError: some are unsupported. The message lists them; the attribute `report` is
                this report.
        """
        if self.unsupported:
            raise UnsupportedError(
                f"distribute: {len(self.unsupported)} of {len(self.modules)} parts are unsupported, and "
                f"nothing was changed\n{DistributionReport(self.unsupported)}",
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
    """Checks the arguments of `distribute`.

    Args:
        semantics: ``exact`` or ``lazy``.
        keep: paths of modules that are not changed.

    Raises:
        InvalidArgumentError: `semantics` is neither ``exact`` nor ``lazy``, or `keep` is a string.
    """
    if semantics not in ("exact", "lazy"):
        raise InvalidArgumentError(
            f"distribute: semantics must be 'exact' or 'lazy', found {semantics!r}"
        )
    if isinstance(keep, str):
        raise InvalidArgumentError(
            f"distribute: keep must be a list of paths, found the string {keep!r}; pass [{keep!r}]"
        )


def describe_added_methods(kind: type, base: type, known: Collection[str]) -> str:
    """Describes the methods that a class adds to its base, as the reason why it is unsupported.

    Args:
        kind: the class of a module.
        base: the supported class that `kind` inherits from.
        known: names of added methods that are supported.

    Returns:
        The reason; empty if there are no such methods.
    """
    found = {
        name
        for each in kind.__mro__[: kind.__mro__.index(base)]
        for name, value in vars(each).items()
        if callable(value) and name not in known
    }
    return f"its class {kind.__name__} defines {', '.join(sorted(found))}" if found else ""


def explain_missing_weight(path: str, table: str) -> str:
    """Returns the error message for an access to a weight that `distribute` moved into a table.

    Args:
        path: path of the module in the model.
        table: name of the table.
    """
    return (
        f"{path}: distribute moved its weight into table {table}, so there is no weight matrix. Call the "
        "module with ids to get trainable rows, or exclude it from distribute with "
        f"keep=[{path!r}]"
    )
