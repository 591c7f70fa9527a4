"""Metrics of a stream for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sparring_cli import MetricFamily, MetricSample

__all__ = ["stream_families"]

_GAUGES_OF_JOIN = ("open", "watermark_lag_seconds")
_LATE = ("corrected", "unchanged", "dropped")
_NAMES_OF_SLICES = ("dimension", "value")


def stream_families(stream: Mapping[str, Any], labels: dict[str, str]) -> Iterator[MetricFamily]:
    """Yields the metrics ``sparring_stream_...`` of one rank.

    Args:
        stream: see `LiveEvaluation.metrics`.
        labels: labels of all samples.
    """
    for name, value in stream.items():
        full, meaning = f"sparring_stream_{name}", f"{name} of the stream"
        if name == "windows":
            sample = MetricSample(labels, value)
            yield MetricFamily(f"{full}_total", "counter", meaning, [sample])
        elif name == "window":
            yield from _window_families(value, labels)
        elif name == "join":
            yield from _join_families(value, labels)
        elif isinstance(value, Mapping):
            counts = {float(bound): count for bound, count in value["counts"].items()}
            yield MetricFamily(
                full, "histogram", meaning, [MetricSample(labels, value["sum"], counts)]
            )
        elif value is not None:
            yield MetricFamily(full, "gauge", meaning, [MetricSample(labels, value)])


def _join_families(join: Mapping[str, Any], labels: dict[str, str]) -> Iterator[MetricFamily]:
    late = []
    for name, value in join.items():
        full, meaning = f"sparring_stream_join_{name}", f"{name} of the join"
        if name in _LATE:
            late.append(MetricSample({**labels, "result": name}, value))
        elif name in _GAUGES_OF_JOIN:
            yield MetricFamily(full, "gauge", meaning, [MetricSample(labels, value)])
        else:
            yield MetricFamily(f"{full}_total", "counter", meaning, [MetricSample(labels, value)])
    full, meaning = "sparring_stream_join_late_total", "actions after their window, by result"
    yield MetricFamily(full, "counter", meaning, late)


def _window_families(window: Mapping[str, Any], labels: dict[str, str]) -> Iterator[MetricFamily]:
    for name, value in window.items():
        if name == "slices" or value is None:
            continue
        meaning = f"{name} of the last closed window of event time"
        own = MetricSample(labels, value)
        yield MetricFamily(f"sparring_stream_window_{name}", "gauge", meaning, [own])
        of_slices = [
            MetricSample({**labels, **{key: each[key] for key in _NAMES_OF_SLICES}}, each[name])
            for each in window["slices"]
            if each.get(name) is not None
        ]
        if of_slices:
            meaning += ", by slice"
            yield MetricFamily(f"sparring_stream_slice_{name}", "gauge", meaning, of_slices)
