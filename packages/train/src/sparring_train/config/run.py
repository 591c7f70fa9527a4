"""The complete configuration of a run."""

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
from sparring_train.config.publish_checks import check_gate, check_publish, check_quantize
from sparring_train.config.section import BackendOptions, PositiveFloat, Section
from sparring_train.config.sections.change_notes import ChangeNotesConfig
from sparring_train.config.sections.columns import Name
from sparring_train.config.sections.kinds import METRICS, DataSection, ModelSection
from sparring_train.config.sections.logging import LoggingConfig
from sparring_train.config.sections.metrics import MetricsConfig, check_port, check_slices
from sparring_train.config.sections.optimizer import OptimizerConfig
from sparring_train.config.sections.publish import PublishConfig
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
    """Storage of the rows."""

    backend: str = Field(
        "hkv", description="Name of a storage backend; `sparring plugins` lists them."
    )
    options: BackendOptions = Field(
        default_factory=dict,
        description="Options of that backend. `{rank}`, `{world_size}` and `{table}` in text are "
        "replaced by their values, which gives each rank a separate location.",
    )


class CollectiveConfig(Section):
    """Communication between ranks: exchange of keys, rows and gradients."""

    backend: str = Field(
        "auto",
        description="Name of a collective; `sparring plugins` lists them. `auto` is `local` for one "
        "process, `mpi` for ranks that mpiexec started, and the framework's collective for ranks that "
        "torchrun started. If sparring-shm is installed, ranks of one host also use shared memory.",
    )
    options: BackendOptions = Field(default_factory=dict, description="Options of that backend.")


class RendezvousConfig(Section):
    """Discovery of ranks."""

    backend: str = Field(
        "auto",
        description="Name of a rendezvous backend; `sparring plugins` lists them. `auto` is "
        "`environment` for processes that torchrun or mpiexec started, otherwise `single`.",
    )
    options: BackendOptions = Field(default_factory=dict, description="Options of that backend.")


class ReportConfig(Section):
    """Report about a finished run."""

    path: LocalPath | None = Field(
        None,
        min_length=1,
        description="HTML file to write; null writes none. Relative paths start at the folder of the "
        "configuration file.",
    )
    trace_path: LocalPath | None = Field(
        None,
        min_length=1,
        description="File for a trace of all ranks, which https://ui.perfetto.dev opens; null writes "
        "none. `sparring train --trace FILE` sets it.",
    )
    columns: dict[Name, str] = Field(
        default_factory=dict,
        description="What `sparring init` understood of each column, for readers of the configuration "
        "and the report. It has no effect.",
    )


class RunConfig(Section):
    """Configuration of `sparring train`."""

    framework: str = Field(
        "torch", description="Framework that trains: `torch`, or one that a plugin registers."
    )
    seed: int = Field(
        0,
        ge=0,
        le=2**63 - 1,
        description="Seed of the split into training and test rows, of the order of samples, and of "
        "all initial values.",
    )
    threads: int = Field(
        0,
        ge=0,
        le=1024,
        description="Threads of the execution pool and of the framework. 0: one per core that this "
        "process may use, at most OMP_NUM_THREADS; PyTorch then uses one thread if a forward pass on a "
        "rank has fewer than 256 examples.",
    )
    data: SerializeAsAny[DataSection] = Field(description="Source of the samples.")
    model: SerializeAsAny[ModelSection] = Field(description="Model to train.")
    tables: TablesConfig = Field(TablesConfig(), description="Settings of the tables.")
    storage: StorageConfig = Field(StorageConfig(), description="Storage of the rows.")
    optimizer: OptimizerConfig = Field(
        OptimizerConfig(), description="Optimizers of rows and of ordinary parameters."
    )
    training: TrainingConfig = Field(
        TrainingConfig(), description="Length of the training, and its evaluation."
    )
    snapshots: SnapshotsConfig = Field(
        SnapshotsConfig(), description="Location and frequency of snapshots."
    )
    change_notes: ChangeNotesConfig = Field(
        ChangeNotesConfig(),
        description="Publication of changed rows to servers that cache the storage.",
    )
    publish: PublishConfig = Field(
        PublishConfig(), description="Versions of the model for servers, while it is trained."
    )
    plan: LocalPath | None = Field(
        None,
        min_length=1,
        description="Sharding of tables over ranks: a plan file that `sparring plan make` wrote, or "
        "`auto`, which computes a plan from the tables and ranks when the run starts. Both require "
        "sparring-plan; without it `auto` is `row_wise`. Null: sharding as set in `tables`.",
    )
    collective: CollectiveConfig = Field(
        CollectiveConfig(), description="Exchange of keys, rows and gradients between ranks."
    )
    rendezvous: RendezvousConfig = Field(RendezvousConfig(), description="Discovery of ranks.")
    exchange: ExchangeOptions = Field(
        ExchangeOptions(), description="Encoding of rows and gradients that ranks exchange."
    )
    deadline_seconds: PositiveFloat = Field(
        60.0, description="Maximum duration of one exchange with other ranks."
    )
    logging: LoggingConfig = Field(LoggingConfig(), description="Messages on standard error.")
    metrics: MetricsConfig = Field(
        MetricsConfig(), description="Location and frequency of counters."
    )
    report: ReportConfig = Field(ReportConfig(), description="Report about a finished run.")

    def list_tables(self) -> tuple[TableConfig, ...]:
        """Returns the model's tables, in its order, with the settings of the section `tables`."""
        wanted = self.model.tables(self.data.columns)
        return tuple(self.tables.table_config(replace(each, seed=self.seed)) for each in wanted)

    def shared(self) -> dict[str, Any]:
        """Returns the settings that must be equal on all ranks, as JSON values."""
        return self.model_dump(
            mode="json", exclude={"collective", "rendezvous", "report", "threads", "logging"}
        )

    @model_validator(mode="after")
    def _sections_fit_together(self) -> RunConfig:
        check_together(dict(self))
        return self


def check_together(sections: Mapping[str, Any]) -> None:
    """Raises if sections contradict each other. Sections that are missing are not checked.

    Args:
        sections: name → section of a `RunConfig`.

    Raises:
        ValidationError: sections contradict each other; contains all problems.
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
                "found": f"{data.kind} with {_label_words(schema.label)}",
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
    if ranking is not None and data.has_test and not data.has_epochs:
        yield PydanticCustomError(
            "test_of_stream",
            "is not supported by models that rank items, because the test requires all earlier events",
            {"path": ("data", "test_path"), "found": "files", "expected": "null"},
        )
    if ranking is not None and is_either and ranking.positive is None:
        yield PydanticCustomError(
            "model_data",
            "must be set, because the data has labels",
            {
                "path": ("model", "positive"),
                "found": "null",
                "expected": "the smallest label of a positive example, such as 1 for clicks; or data "
                "without data.label, whose rows are all positive",
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


def _check_epochs(training: TrainingConfig, data: DataSection) -> Iterator[PydanticCustomError]:
    if training.epochs > 1 and not data.has_epochs:
        yield PydanticCustomError(
            "epochs_of_stream",
            "must be 1, because a stream is read once",
            {"path": ("training", "epochs"), "found": str(training.epochs), "expected": "1"},
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
                    "requires validation rows",
                    {
                        "path": ("training", name),
                        "found": f"data.kind: {data.kind}"
                        + ("" if keys else ", which does not support validation"),
                        "expected": places or "another kind of data",
                    },
                )
        return
    known = METRICS[model.loss]
    # Metrics of user classes are known only when the classes are created.
    if training.watch is not None and training.watch not in known and not training.metrics:
        yield PydanticCustomError(
            "watched_metric",
            "the model does not compute this metric",
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
                "is only supported by models that predict labels",
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
    if chosen.history is not None and chosen.history.versions is chosen.history.days is None:
        yield PydanticCustomError(
            "history_limit",
            "has no limit",
            {
                "path": ("snapshots", "history"),
                "found": "neither versions nor days",
                "expected": "one of them, for example {versions: 1000}",
            },
        )
    if chosen.url is not None:
        return
    for name in ("every_steps", "every_minutes", "resume", "history"):
        if getattr(chosen, name):
            yield PydanticCustomError(
                "snapshots_url",
                "snapshots.{name} requires a folder for snapshots",
                {
                    "path": ("snapshots", name),
                    "name": name,
                    "found": "snapshots.url: null",
                    "expected": "a folder in snapshots.url",
                },
            )


def _check_change_notes(chosen: ChangeNotesConfig) -> Iterator[PydanticCustomError]:
    if chosen.is_on:
        return
    for name in ("url", "keep"):
        if getattr(chosen, name) != ChangeNotesConfig.model_fields[name].default:
            yield PydanticCustomError(
                "change_notes_due",
                "change_notes.{name} has no effect, because no notes are published",
                {
                    "path": ("change_notes", name),
                    "name": name,
                    "found": "neither change_notes.every_steps nor change_notes.every_seconds",
                    "expected": "one of them to be set",
                },
            )


_CHECKS: tuple[tuple[tuple[str, ...], Callable[..., Iterator[PydanticCustomError]]], ...] = (
    (("model", "data"), _check_data),
    (("training", "data"), _check_micro_batches),
    (("training", "data"), _check_epochs),
    (("metrics",), check_port),
    (("metrics", "data", "model"), check_slices),
    (("training", "model", "data"), _check_validation),
    (("training", "model"), _check_loss),
    (("model", "data", "tables"), _check_table_names),
    (("snapshots",), _check_snapshots),
    (("change_notes",), _check_change_notes),
    (("publish", "snapshots"), check_publish),
    (("publish", "model", "data"), check_quantize),
    (("publish", "model", "data", "metrics", "change_notes"), check_gate),
)
"""Names of sections → function that yields contradictions between them."""
