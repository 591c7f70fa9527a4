"""Compares two runs, in lines of tables."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sparring_train.report.run_data import RunData
from sparring_train.report.words import environment, format_bytes, format_metric_name

__all__ = ["Comparison", "Line", "compare"]

Kind = Literal["number", "metric", "bytes", "setting"]
"""Kind of a fact. Settings have no difference, and differences of metrics have no percentage."""

_ALWAYS = ("configuration", "environment")
"""Sections that are shown even without lines, which means that there is no difference."""

_NOT_COMPARED = ("report",)
"""Sections of the configuration that do not influence the training."""


@dataclass(frozen=True, slots=True)
class Line:
    """One fact about both runs."""

    name: str
    first: Any
    """JSON value; None if this run has none."""
    second: Any
    kind: Kind = "number"

    @property
    def difference(self) -> float | int | None:
        """Second minus first, if both are finite numbers."""
        if self.kind == "setting" or self.first is None or self.second is None:
            return None
        difference: float | int = self.second - self.first
        return difference if math.isfinite(difference) else None

    def cells(self) -> tuple[str, str, str]:
        """Returns first, second and difference as texts."""
        difference = self.difference
        if difference is None:
            return self._shown(self.first), self._shown(self.second), ""
        sign = "-" if difference < 0 else "+"
        size = self._shown(abs(difference))
        shown = f"{sign}{size}" if difference else size
        if self.kind != "metric" and self.first and difference:
            shown += f" ({difference / self.first:+.1%})"
        return self._shown(self.first), self._shown(self.second), shown

    def as_json(self) -> dict[str, Any]:
        both = {"first": self.first, "second": self.second}
        return both if self.difference is None else both | {"difference": self.difference}

    def _shown(self, value: Any) -> str:
        if value is None:
            return "–"
        if self.kind == "setting":
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if self.kind == "bytes":
            return format_bytes(value)
        if isinstance(value, int):
            return f"{value:,}"
        return f"{value:,.4f}" if abs(value) < 10 else f"{value:,.1f}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs."""

    names: tuple[str, str]
    """Names of the runs, as the user entered them."""
    runs: tuple[RunData, RunData]
    sections: Mapping[str, tuple[Line, ...]]
    """Title → lines: results, rows of each table, differences in configuration and environment."""

    def as_json(self) -> dict[str, Any]:
        """Returns JSON values with unformatted numbers."""
        sections = {
            title.replace(" ", "_"): {line.name: line.as_json() for line in lines}
            for title, lines in self.sections.items()
        }
        return {"first": self.names[0], "second": self.names[1], **sections}


def compare(names: tuple[str, str], runs: tuple[RunData, RunData]) -> Comparison:
    """Compares two runs, which tables call by their `names`."""
    first, second = runs
    sections = {
        "results": tuple(_results(first, second)),
        "slices": _slices(first, second),
        "rows": _lines(first.rows, second.rows),
        "configuration": _changed(_flat(first.config), _flat(second.config)),
        "environment": _changed(_around(first), _around(second)),
    }
    known = {title: lines for title, lines in sections.items() if lines or title in _ALWAYS}
    return Comparison(names, runs, known)


def _results(first: RunData, second: RunData) -> Iterator[Line]:
    for name in {**first.metrics, **second.metrics}:
        shown = f"test {format_metric_name(name)}"
        yield Line(shown, first.metrics.get(name), second.metrics.get(name), "metric")
        if name in first.best or name in second.best:
            best = first.best.get(name), second.best.get(name)
            yield Line(f"best possible {format_metric_name(name)}", *best, "metric")
    yield Line("steps", first.steps, second.steps)
    yield Line("seconds", first.seconds, second.seconds)
    yield Line("steps per second", first.steps_per_second, second.steps_per_second)
    if first.rows or second.rows:
        yield Line("rows of all tables", sum(first.rows.values()), sum(second.rows.values()))
    yield Line("peak memory", first.peak_memory_bytes, second.peak_memory_bytes, "bytes")
    for name in {**first.skipped, **second.skipped}:
        yield Line(name.replace("_", " "), first.skipped.get(name, 0), second.skipped.get(name, 0))
    dropped = sum(first.not_admitted.values()), sum(second.not_admitted.values())
    if any(dropped):
        yield Line("gradients not admitted", *dropped)


def _slices(first: RunData, second: RunData) -> tuple[Line, ...]:
    parts = [
        {
            f"{format_metric_name(metric)}, {each.feature}: {each.name}": value
            for each in run.slices
            for metric, value in each.metrics.items()
        }
        for run in (first, second)
    ]
    return _lines(parts[0], parts[1], "metric")


def _lines(
    first: Mapping[str, Any], second: Mapping[str, Any], kind: Kind = "number"
) -> tuple[Line, ...]:
    names = dict.fromkeys([*first, *second])
    return tuple(Line(name, first.get(name), second.get(name), kind) for name in names)


def _changed(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[Line, ...]:
    lines = _lines(first, second, "setting")
    return tuple(line for line in lines if line.first != line.second)


def _around(run: RunData) -> dict[str, Any]:
    """Returns facts about the environment that are not results."""
    facts = environment(run)
    return {name: fact for name, fact in facts.items() if not name.startswith("peak memory")}


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Returns dotted key → value, for values that are not mappings."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if not above and name in _NOT_COMPARED:
            continue
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{above}{name}.")
        else:
            found[f"{above}{name}"] = value
    return found
