"""Contradictions between the section `publish` and other sections."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic_core import PydanticCustomError

from sparring.adapter import find_closest_name
from sparring_train.config.sections.change_notes import ChangeNotesConfig
from sparring_train.config.sections.kinds import DataSection, ModelSection
from sparring_train.config.sections.metrics import MetricsConfig
from sparring_train.config.sections.publish import PublishConfig
from sparring_train.config.sections.snapshots import SnapshotsConfig
from sparring_train.config.sections.stream import StreamData

__all__ = ["check_gate", "check_publish", "check_quantize"]


def check_publish(
    publish: PublishConfig, snapshots: SnapshotsConfig
) -> Iterator[PydanticCustomError]:
    if publish.url is None:
        for name in PublishConfig.model_fields:
            if getattr(publish, name) != getattr(PublishConfig(), name):
                yield PydanticCustomError(
                    "publish_url",
                    "publish.{name} has no effect, because nothing is published",
                    {
                        "path": ("publish", name),
                        "name": name,
                        "found": "publish.url: null",
                        "expected": "a folder in publish.url",
                    },
                )
        return
    if snapshots.url is None:
        yield PydanticCustomError(
            "publish_snapshots",
            "requires a folder for snapshots, from which versions are written",
            {
                "path": ("publish", "url"),
                "found": "snapshots.url: null",
                "expected": "a folder in snapshots.url",
            },
        )


def check_gate(
    publish: PublishConfig,
    model: ModelSection,
    data: DataSection,
    metrics: MetricsConfig,
    change_notes: ChangeNotesConfig,
) -> Iterator[PydanticCustomError]:
    if publish.gate is None:
        return
    default = type(publish.gate).model_fields["max_returns"].default
    if publish.gate.on_close != "return" and publish.gate.max_returns != default:
        yield PydanticCustomError(
            "publish_gate_return",
            "has no effect, because the run does not return",
            {
                "path": ("publish", "gate", "max_returns"),
                "found": f"publish.gate.on_close: {publish.gate.on_close}",
                "expected": "publish.gate.on_close: return; or no publish.gate.max_returns",
            },
        )
    found = None
    if data.has_epochs:
        found = f"data.kind: {data.kind}"
    elif metrics.window_seconds is None:
        found = "metrics.window_seconds: null"
    elif model.label is None or model.ranking(data.columns) is not None:
        found = f"model.kind: {model.kind}, which does not predict labels"
    if found is None and publish.gate.on_close == "return":
        yield from _check_return(data, change_notes)
    if found is not None:
        yield PydanticCustomError(
            "publish_gate",
            "needs metrics of windows",
            {
                "path": ("publish", "gate"),
                "found": found,
                "expected": "a stream, metrics.window_seconds, and a model that predicts labels; or "
                "publish.gate: null",
            },
        )


def _check_return(
    data: DataSection, change_notes: ChangeNotesConfig
) -> Iterator[PydanticCustomError]:
    found = None
    if not isinstance(data, StreamData):
        found = f"data.kind: {data.kind}"
    elif data.join is not None:
        found = "data.join"
    elif change_notes.is_on:
        found = "change_notes"
    if found is not None:
        yield PydanticCustomError(
            "publish_gate_return",
            "cannot return to an earlier step",
            {
                "path": ("publish", "gate", "on_close"),
                "found": found,
                "expected": "data.kind: stream without data.join and change_notes; or withhold",
            },
        )


def check_quantize(
    publish: PublishConfig, model: ModelSection, data: DataSection
) -> Iterator[PydanticCustomError]:
    if not publish.quantize or model.problem(data.columns) is not None:
        return
    known = [table.name for table in model.tables(data.columns)]
    ranking = model.ranking(data.columns)
    if ranking is not None and not ranking.rows_are_vectors:
        item = data.columns.feature(ranking.item[0])
        assert item is not None
        known.append(f"{item.table_name}.vectors")
    for name in publish.quantize:
        if name not in (*known, "*"):
            yield PydanticCustomError(
                "table_name",
                "model {model} has no such table",
                {
                    "path": ("publish", "quantize", name),
                    "is_key": True,
                    "model": model.kind,
                    "expected": ", ".join(["*", *known]),
                    "suggestion": find_closest_name(name, known),
                },
            )
