"""The whole configuration of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field, SerializeAsAny, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from sparring import ExchangeOptions
from sparring.adapter import find_closest_name
from sparring.contracts import LocalPath, TableConfig
from sparring_train.columns import Label
from sparring_train.config.section import BackendOptions, PositiveFloat, Section
from sparring_train.config.sections.change_notes import ChangeNotesConfig
from sparring_train.config.sections.kinds import METRICS, DataSection, ModelSection
from sparring_train.config.sections.logging import LoggingConfig
from sparring_train.config.sections.metrics import MetricsConfig
from sparring_train.config.sections.optimizer import OptimizerConfig
from sparring_train.config.sections.snapshots import SnapshotsConfig
from sparring_train.config.sections.tables import TablesConfig
from sparring_train.config.sections.training import TrainingConfig

__all__ = [
    "CollectiveConfig",
    "RendezvousConfig",
    "ReportConfig",
    "RunConfig",
    "StorageConfig",
    "check_together",
]


class StorageConfig(Section):
    """The storage of the rows."""

    backend: str = Field(
        "hkv", description="A storage that core or a plugin offers; see `sparring plugins`."
    )
    options: BackendOptions = Field(
        default_factory=dict,
        description="The options of that backend. In text, `{rank}`, `{world_size}` and `{table}` "
        "stand for what they say, so that each rank has a place of its own.",
    )


class CollectiveConfig(Section):
    """How ranks exchange keys, rows and gradients."""

    backend: str = Field(
        "auto",
        description="A collective that core or a plugin offers; see `sparring plugins`. `auto` is "
        "`local` for one process, `mpi` for ranks of mpiexec, and that of the framework for ranks "
        "of torchrun.",
    )
    options: BackendOptions = Field(
        default_factory=dict, description="The options of that backend."
    )


class RendezvousConfig(Section):
    """How ranks find each other."""

    backend: str = Field(
        "auto",
        description="A rendezvous that core or a plugin offers; see `sparring plugins`. `auto` is "
        "`environment` for what torchrun or mpiexec started, and `single` for all else.",
    )
    options: BackendOptions = Field(
        default_factory=dict, description="The options of that backend."
    )


class ReportConfig(Section):
    """The report on a finished run."""

    path: LocalPath | None = Field(
        None,
        min_length=1,
        description="The HTML file to write; null writes none. Relative paths start at the "
        "file's folder.",
    )
    trace_path: LocalPath | None = Field(
        None,
        min_length=1,
        description="The file to write a trace of all ranks to, as https://ui.perfetto.dev opens "
        "it; null writes none. `sparring train --trace FILE` sets it.",
    )


class RunConfig(Section):
    """Everything that `sparring train` needs to know."""

    framework: str = Field(
        "torch", description="The framework that trains: `torch`, or what a plugin offers."
    )
    seed: int = Field(
        0,
        ge=0,
        le=2**63 - 1,
        description="Determines the split into training and test, the order of samples, and all "
        "initial values.",
    )
    threads: int = Field(
        0,
        ge=0,
        le=1024,
        description="Threads of the execution pool and of the framework; 0 is one for each core "
        "that this process may use, at most OMP_NUM_THREADS. With 0, torch "
        "uses one thread if a forward pass on a rank has less than 256 examples.",
    )
    data: SerializeAsAny[DataSection] = Field(description="Where samples come from.")
    model: SerializeAsAny[ModelSection] = Field(description="What is trained.")
    tables: TablesConfig = Field(TablesConfig(), description="How tables are kept.")
    storage: StorageConfig = Field(StorageConfig(), description="What keeps the rows.")
    optimizer: OptimizerConfig = Field(
        OptimizerConfig(), description="Which optimizers update what."
    )
    training: TrainingConfig = Field(
        TrainingConfig(), description="How long and how carefully to train."
    )
    snapshots: SnapshotsConfig = Field(
        SnapshotsConfig(), description="Where and how often the run is saved."
    )
    change_notes: ChangeNotesConfig = Field(
        ChangeNotesConfig(),
        description="When servers with caches before the storage learn of trained rows.",
    )
    plan: LocalPath | None = Field(
        None,
        min_length=1,
        description="How tables are sharded over ranks: the file of a plan, as `sparring plan make` "
        "writes it, or `auto`, which makes one from the tables and ranks when the run begins; both by "
        "sparring-plan, and without it `auto` is `row_wise`. Null: each table as `tables` says.",
    )
    collective: CollectiveConfig = Field(
        CollectiveConfig(), description="How ranks exchange keys, rows and gradients."
    )
    rendezvous: RendezvousConfig = Field(
        RendezvousConfig(), description="How ranks find each other."
    )
    exchange: ExchangeOptions = Field(
        ExchangeOptions(), description="How rows and gradients travel between ranks."
    )
    deadline_seconds: PositiveFloat = Field(
        60.0, description="The longest that one exchange with other ranks may take."
    )
    logging: LoggingConfig = Field(
        LoggingConfig(), description="What the run tells on standard error."
    )
    metrics: MetricsConfig = Field(
        MetricsConfig(), description="Where and how often counters are written."
    )
    report: ReportConfig = Field(ReportConfig(), description="The report on a finished run.")

    def list_tables(self) -> tuple[TableConfig, ...]:
        """Tables of the model, with what the section `tables` says, in the model's order."""
        wanted = self.model.tables(self.data.columns)
        return tuple(self.tables.table_config(replace(each, seed=self.seed)) for each in wanted)

    def shared(self) -> dict[str, Any]:
        """Settings that all ranks must have alike, as JSON values: all but where each rank runs."""
        return self.model_dump(
            mode="json", exclude={"collective", "rendezvous", "report", "threads", "logging"}
        )

    @model_validator(mode="after")
    def _sections_fit_together(self) -> RunConfig:
        check_together(dict(self))
        return self


def check_together(sections: Mapping[str, Any]) -> None:
    """Refuses sections that contradict each other; one that is left out is not looked at.

    Args:
        sections: name → section of a `RunConfig`.

    Raises:
        ValidationError: with all that was found.
    """
    errors = [
        error
        for names, check in _CHECKS
        if all(name in sections for name in names)
        for error in check(*(sections[name] for name in names))
    ]
    if errors:
        raise ValidationError.from_exception_data(
            RunConfig.__name__,
            [{"type": error, "input": None} for error in errors],
            hide_input=True,
        )


def _check_data(model: ModelSection, data: DataSection) -> Iterator[PydanticCustomError]:
    schema = data.columns
    if model.label is not None and model.label not in data.labels:
        yield PydanticCustomError(
            "model_data",
            "model {model} cannot be trained on this data",
            {
                "path": ("data", "kind"),
                "model": model.kind,
                "found": f"{data.kind}, with {_label_words(schema.label)}",
                "expected": _label_words(model.label),
            },
        )
        return
    problem = model.problem(schema)
    if problem is not None:
        yield PydanticCustomError(
            "model_data",
            "model {model} cannot be trained on this data: {problem}",
            {"path": ("model", "kind"), "model": model.kind, "problem": problem},
        )
        return
    ranking, is_either = model.ranking(schema), {"binary", "number"} <= set(data.labels)
    if ranking is not None and is_either and ranking.positive is None:
        yield PydanticCustomError(
            "model_data",
            "the data has labels, and none is given from which on an example counts",
            {
                "path": ("model", "positive"),
                "found": "null",
                "expected": "a number, as 1 for clicks, or data without data.label to take all rows",
            },
        )


def _label_words(label: Label | None) -> str:
    return {"binary": "labels of 0 and 1", "number": "labels that are numbers", None: "no label"}[
        label
    ]


def _check_micro_batches(
    training: TrainingConfig, data: DataSection
) -> Iterator[PydanticCustomError]:
    if training.micro_batches > data.batch_size:
        yield PydanticCustomError(
            "micro_batches",
            "a batch cannot be split into more micro-batches than it has samples",
            {
                "path": ("training", "micro_batches"),
                "found": str(training.micro_batches),
                "expected": f"at most data.batch_size, {data.batch_size}",
            },
        )


def _check_validation(
    training: TrainingConfig, model: ModelSection, data: DataSection
) -> Iterator[PydanticCustomError]:
    if not data.has_validation:
        for name in ("watch", "patience", "min_improvement"):
            if getattr(training, name) != TrainingConfig.model_fields[name].default:
                keys = [each for each in type(data).model_fields if each.startswith("validation")]
                places = " or ".join(f"data.{each}" for each in keys)
                yield PydanticCustomError(
                    "validation_rows",
                    "needs rows for validation, and the data keep none",
                    {
                        "path": ("training", name),
                        "found": f"data.kind: {data.kind}"
                        + ("" if keys else ", which has no validation"),
                        "expected": places or "another kind of data",
                    },
                )
        return
    known = METRICS[model.loss]
    # Names of further metrics are known to their classes.
    if training.watch is not None and training.watch not in known and not training.metrics:
        yield PydanticCustomError(
            "watched_metric",
            "the model has no such metric",
            {
                "path": ("training", "watch"),
                "found": repr(training.watch),
                "expected": ", ".join(known),
                "suggestion": find_closest_name(training.watch, known),
            },
        )


def _check_loss(training: TrainingConfig, model: ModelSection) -> Iterator[PydanticCustomError]:
    if model.loss != "ranking":
        return
    for name, given in (("loss", training.loss), ("metrics", training.metrics)):
        if given:
            yield PydanticCustomError(
                "loss_of_ranking",
                "is for models for labels",
                {
                    "path": ("training", name),
                    "found": f"model.kind: {model.kind}, which ranks all items",
                    "expected": "null" if name == "loss" else "an empty list",
                },
            )


def _check_table_names(
    model: ModelSection, data: DataSection, tables: TablesConfig
) -> Iterator[PydanticCustomError]:
    if not tables.overrides or model.problem(data.columns) is not None:
        return
    known = [table.name for table in model.tables(data.columns)]
    for name in tables.overrides:
        if name not in known:
            yield PydanticCustomError(
                "table_name",
                "model {model} has no such table",
                {
                    "path": ("tables", "overrides", name),
                    "is_key": True,
                    "model": model.kind,
                    "expected": ", ".join(known),
                    "suggestion": find_closest_name(name, known),
                },
            )


def _check_snapshots(chosen: SnapshotsConfig) -> Iterator[PydanticCustomError]:
    if chosen.url is not None:
        return
    for name in ("every_steps", "every_minutes", "resume"):
        if getattr(chosen, name):
            yield PydanticCustomError(
                "snapshots_url",
                "snapshots.{name} needs the folder that snapshots are saved in",
                {
                    "path": ("snapshots", name),
                    "name": name,
                    "found": "snapshots.url: null",
                    "expected": "snapshots.url to name a folder",
                },
            )


def _check_change_notes(chosen: ChangeNotesConfig) -> Iterator[PydanticCustomError]:
    if chosen.is_on:
        return
    for name in ("url", "keep"):
        if getattr(chosen, name) != ChangeNotesConfig.model_fields[name].default:
            yield PydanticCustomError(
                "change_notes_due",
                "change_notes.{name} is of no use where no notes are published",
                {
                    "path": ("change_notes", name),
                    "name": name,
                    "found": "neither change_notes.every_steps nor change_notes.every_seconds",
                    "expected": "one of them",
                },
            )


_CHECKS: tuple[tuple[tuple[str, ...], Callable[..., Iterator[PydanticCustomError]]], ...] = (
    (("model", "data"), _check_data),
    (("training", "data"), _check_micro_batches),
    (("training", "model", "data"), _check_validation),
    (("training", "model"), _check_loss),
    (("model", "data", "tables"), _check_table_names),
    (("snapshots",), _check_snapshots),
    (("change_notes",), _check_change_notes),
)
"""Names of sections → what finds contradictions between them."""
