"""Counters, gauges and histograms with labels, in memory. All methods are thread-safe.

`sparring_cli.metrics.exporter` exposes them to Prometheus; this module does not depend on its client.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from sparring.errors import InvalidArgumentError

__all__ = [
    "SECONDS",
    "MetricCounter",
    "MetricFamily",
    "MetricGauge",
    "MetricHistogram",
    "MetricRegistry",
    "MetricSample",
]

SECONDS = tuple(base * 10.0**power for power in range(-5, 1) for base in (1, 2.5, 5))
"""Upper bounds of buckets for seconds: 10 µs to 5 s."""

Kind = Literal["counter", "gauge", "histogram"]

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class MetricSample:
    """A number or a histogram.

    Args:
        labels: Name → value.
        value: The number; for a histogram, the sum of the observed values.
        counts: For a histogram, maps the upper bound of each bucket to the number of observed
            values in the bucket; the last bound is infinity.
    """

    labels: Mapping[str, str]
    value: float
    counts: Mapping[float, int] | None = None


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """All samples of one metric, with the same label names."""

    name: str
    kind: Kind
    meaning: str
    samples: Sequence[MetricSample]


class _Metric:
    kind: Kind

    def __init__(self, name: str, meaning: str, labels: tuple[str, ...]) -> None:
        self.name, self.meaning, self.labels = name, meaning, labels
        self._lock = threading.Lock()
        self._values: dict[tuple[str, ...], float] = {}
        if not labels and self.kind != "gauge":
            self._values[()] = 0.0  # reported even if nothing was counted

    def _label_values(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        try:
            if len(labels) == len(self.labels):
                return tuple([labels[each] for each in self.labels])
        except KeyError:
            pass
        raise InvalidArgumentError(
            f"metric {self.name}: expected the labels {list(self.labels)}, found {list(labels)}; pass "
            "exactly these"
        )

    def samples(self) -> list[MetricSample]:
        with self._lock:
            values = sorted(self._values.items())
        return [
            MetricSample(dict(zip(self.labels, at, strict=True)), value) for at, value in values
        ]


class MetricCounter(_Metric):
    """A sum that only increases."""

    kind = "counter"

    def add(self, amount: float = 1, **labels: str) -> None:
        label_values = self._label_values(labels)
        with self._lock:
            self._values[label_values] = self._values.get(label_values, 0) + amount


class MetricGauge(_Metric):
    """The last value that was set."""

    kind = "gauge"

    def set(self, value: float, **labels: str) -> None:
        label_values = self._label_values(labels)
        with self._lock:
            self._values[label_values] = value


class MetricHistogram(_Metric):
    """Observed values, counted in buckets, and their sum."""

    kind = "histogram"

    def __init__(
        self, name: str, meaning: str, labels: tuple[str, ...], bounds: Sequence[float]
    ) -> None:
        self._bounds = (*bounds, float("inf"))
        self._counts: dict[tuple[str, ...], list[int]] = {}
        if not labels:
            self._counts[()] = [0] * len(self._bounds)
        super().__init__(name, meaning, labels)

    def observe(self, value: float, **labels: str) -> None:
        label_values = self._label_values(labels)
        bucket = bisect_left(self._bounds, value)
        with self._lock:
            self._values[label_values] = self._values.get(label_values, 0.0) + value
            if label_values not in self._counts:
                self._counts[label_values] = [0] * len(self._bounds)
            self._counts[label_values][bucket] += 1

    def samples(self) -> list[MetricSample]:
        with self._lock:
            found = [
                (label_values, value, list(self._counts[label_values]))
                for label_values, value in sorted(self._values.items())
            ]
        return [
            MetricSample(
                dict(zip(self.labels, label_values, strict=True)),
                value,
                dict(zip(self._bounds, counts, strict=True)),
            )
            for label_values, value, counts in found
        ]


_MetricType = TypeVar("_MetricType", bound=_Metric)


class MetricRegistry:
    """Metrics by name. Requesting a name again returns the same metric.

    Use::

        registry = MetricRegistry()
        pulls = registry.counter("sparring_serving_pulls_total", "Calls for rows", ("table",))
        pulls.add(table="item")
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._metrics: dict[str, _Metric] = {}
        self._sources: list[Callable[[], Iterable[MetricFamily]]] = []

    def counter(self, name: str, meaning: str, labels: tuple[str, ...] = ()) -> MetricCounter:
        """Returns a counter; its name must end in ``_total``.

        Raises:
            InvalidArgumentError: The name is invalid, or belongs to another metric.
        """
        if not name.endswith("_total"):
            raise InvalidArgumentError(f"metric {name}: the name of a counter must end in _total")
        return self._own(MetricCounter(name, meaning, labels))

    def gauge(self, name: str, meaning: str, labels: tuple[str, ...] = ()) -> MetricGauge:
        """Returns a gauge; raises the same errors as `counter`."""
        return self._own(MetricGauge(name, meaning, labels))

    def histogram(
        self,
        name: str,
        meaning: str,
        labels: tuple[str, ...] = (),
        bounds: Sequence[float] = SECONDS,
    ) -> MetricHistogram:
        """Returns a histogram with the upper `bounds` of its buckets; raises the same errors as
        `counter`."""
        return self._own(MetricHistogram(name, meaning, labels, bounds))

    def add_source(self, read: Callable[[], Iterable[MetricFamily]]) -> None:
        """Registers a function that returns further metrics; it is called whenever metrics are read."""
        with self._lock:
            self._sources.append(read)

    def families(self) -> list[MetricFamily]:
        """Returns all current metrics; the metrics of sources are last."""
        with self._lock:
            metrics, sources = list(self._metrics.values()), list(self._sources)
        own = [MetricFamily(each.name, each.kind, each.meaning, each.samples()) for each in metrics]
        return [*own, *(family for read in sources for family in read())]

    def value(self, name: str, **labels: str) -> float:
        """Returns the sum of all values with the given labels; 0 if nothing was counted."""
        return sum(
            sample.value
            for family in self.families()
            if family.name == name
            for sample in family.samples
            if labels.items() <= dict(sample.labels).items()
        )

    def _own(self, made: _MetricType) -> _MetricType:
        if not _NAME.fullmatch(made.name) or not all(map(_NAME.fullmatch, made.labels)):
            raise InvalidArgumentError(
                f"metric {made.name!r} with the labels {list(made.labels)}: names must consist of a to "
                "z, 0 to 9 and _, and start with a letter"
            )
        with self._lock:
            found = self._metrics.setdefault(made.name, made)
        if type(found) is not type(made) or found.labels != made.labels:
            raise InvalidArgumentError(
                f"metric {made.name} is a {found.kind} with the labels {list(found.labels)}, and was "
                f"requested as a {made.kind} with {list(made.labels)}; choose another name"
            )
        return found
