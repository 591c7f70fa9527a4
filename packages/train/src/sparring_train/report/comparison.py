"""Compares runs, in lines of tables."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparring_train.report.run_data import RunData
from sparring_train.report.step_times import final_seconds, short_name
from sparring_train.report.words import environment, format_bytes, format_metric_name

__all__ = ["Comparison", "Line", "compare", "label_run"]

Kind = Literal["number", "metric", "bytes", "setting"]
"""Kind of a fact. Settings have no difference, and differences of metrics have no percentage."""

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_ALWAYS = ("configuration", "environment")
"""Sections that are shown even without lines, which means that there is no difference."""

_NOT_COMPARED = ("report",)
"""Sections of the configuration that do not influence the training."""


@dataclass(frozen=True, slots=True)
class Line:
    """One fact about all runs."""

    name: str
    values: tuple[Any, ...]
    """JSON value of each run; None if the run has none."""
    kind: Kind = "number"

    @property
    def difference(self) -> float | int | None:
        """Second minus first, if there are two runs and both values are finite numbers."""
        if self.kind == "setting" or len(self.values) != 2 or None in self.values:
            return None
        first, second = self.values
        difference: float | int = second - first
        return difference if math.isfinite(difference) else None

    @property
    def differs(self) -> bool:
        """Whether runs have different values."""
        return any(each != self.values[0] for each in self.values[1:])

    def cells(self) -> tuple[str, ...]:
        """Returns the values as texts, and their difference if there are two runs."""
        shown = tuple(map(self._shown, self.values))
        return (*shown, self._shown_difference()) if len(self.values) == 2 else shown

    def as_json(self) -> dict[str, Any]:
        values = {"values": list(self.values)}
        return values if self.difference is None else values | {"difference": self.difference}

    def _shown_difference(self) -> str:
        difference = self.difference
        if difference is None:
            return ""
        sign = "-" if difference < 0 else "+"
        size = self._shown(abs(difference))
        shown = f"{sign}{size}" if difference else size
        if self.kind != "metric" and self.values[0] and difference:
            shown += f" ({difference / self.values[0]:+.1%})"
        return shown

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
    """One or more runs."""

    names: tuple[str, ...]
    """Names of the runs, as the user entered them."""
    runs: tuple[RunData, ...]
    sections: Mapping[str, tuple[Line, ...]]
    """Title → lines: results, rows of each table, differences in configuration and environment."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Short labels of the runs: ``A``, ``B``, …"""
        return tuple(label_run(number) for number in range(len(self.names)))

    @property
    def columns(self) -> tuple[str, ...]:
        """Titles of the cells of each line."""
        return (*self.labels, "difference") if len(self.names) == 2 else self.labels

    def as_json(self) -> dict[str, Any]:
        """Returns JSON values with unformatted numbers."""
        sections = {
            title.replace(" ", "_"): {line.name: line.as_json() for line in lines}
            for title, lines in self.sections.items()
        }
        return {"runs": list(self.names), **sections}


def label_run(number: int) -> str:
    """Returns the label of a run: A to Z, then A2, B2, …"""
    again, letter = divmod(number, len(_LETTERS))
    return _LETTERS[letter] + (str(again + 1) if again else "")


def compare(names: Sequence[str], runs: Sequence[RunData]) -> Comparison:
    """Compares runs, which tables call by their `names`."""
    sections = {
        "results": tuple(_results(runs)),
        "time": _times(runs),
        "slices": _slices(runs),
        "rows": _lines([run.rows for run in runs]),
        "configuration": _changed([_flat(run.config) for run in runs]),
        "environment": _changed([_around(run) for run in runs]),
    }
    known = {title: lines for title, lines in sections.items() if lines or title in _ALWAYS}
    return Comparison(tuple(names), tuple(runs), known)


def _results(runs: Sequence[RunData]) -> Iterator[Line]:
    for name in _names([run.metrics for run in runs]):
        shown = format_metric_name(name)
        yield Line(f"test {shown}", tuple(run.metrics.get(name) for run in runs), "metric")
        if any(name in run.best for run in runs):
            best = tuple(run.best.get(name) for run in runs)
            yield Line(f"best possible {shown}", best, "metric")
    yield Line("steps", tuple(run.steps for run in runs))
    yield Line("seconds", tuple(run.seconds for run in runs))
    yield Line("steps per second", tuple(run.steps_per_second for run in runs))
    if any(run.rows for run in runs):
        yield Line("rows of all tables", tuple(sum(run.rows.values()) for run in runs))
    yield Line("peak memory", tuple(run.peak_memory_bytes for run in runs), "bytes")
    for name in _names([run.skipped for run in runs]):
        yield Line(name.replace("_", " "), tuple(run.skipped.get(name, 0) for run in runs))
    dropped = tuple(sum(run.not_admitted.values()) for run in runs)
    if any(dropped):
        yield Line("gradients not admitted", dropped)


def _times(runs: Sequence[RunData]) -> tuple[Line, ...]:
    """Returns the milliseconds per step of each part."""
    parts = [
        {
            f"{short_name(part)}, ms per step": seconds / run.steps * 1e3
            for part, seconds in final_seconds(run.series).items()
        }
        if run.steps
        else {}
        for run in runs
    ]
    return _lines(parts)


def _slices(runs: Sequence[RunData]) -> tuple[Line, ...]:
    parts = [
        {
            f"{format_metric_name(metric)}, {each.feature}: {each.name}": value
            for each in run.slices
            for metric, value in each.metrics.items()
        }
        for run in runs
    ]
    return _lines(parts, "metric")


def _names(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in part))


def _lines(parts: Sequence[Mapping[str, Any]], kind: Kind = "number") -> tuple[Line, ...]:
    names = _names(parts)
    return tuple(Line(name, tuple(part.get(name) for part in parts), kind) for name in names)


def _changed(parts: Sequence[Mapping[str, Any]]) -> tuple[Line, ...]:
    return tuple(line for line in _lines(parts, "setting") if line.differs)


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
