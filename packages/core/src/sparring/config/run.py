"""The whole configuration of a run."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from sparring.config.data import DataConfig
from sparring.config.exchange import ExchangeConfig
from sparring.config.metrics import MetricsConfig
from sparring.config.model import ModelConfig
from sparring.config.optimizer import OptimizerConfig
from sparring.config.section import BackendOptions, PositiveFloat, Section
from sparring.config.snapshots import SnapshotsConfig
from sparring.config.tables import TablesConfig
from sparring.config.training import TrainingConfig
from sparring.names import closest_name

__all__ = [
    "CollectiveConfig",
    "RendezvousConfig",
    "ReportConfig",
    "RunConfig",
    "StorageConfig",
]

_DATA_OF_MODEL = {
    "matrix_factorization": ("movielens",),
    "dlrm": ("criteo", "synthetic_criteo"),
}


class StorageConfig(Section):
    """What keeps the rows."""

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

    path: str | None = Field(
        None,
        min_length=1,
        description="The HTML file to write; null writes none. Relative paths start at the "
        "current directory.",
    )
    trace_path: str | None = Field(
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
        "that this process may use.",
    )
    data: DataConfig = Field(description="Where samples come from.")
    model: ModelConfig = Field(description="What is trained.")
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
    collective: CollectiveConfig = Field(
        CollectiveConfig(), description="How ranks exchange keys, rows and gradients."
    )
    rendezvous: RendezvousConfig = Field(
        RendezvousConfig(), description="How ranks find each other."
    )
    exchange: ExchangeConfig = Field(
        ExchangeConfig(), description="How rows and gradients travel between ranks."
    )
    deadline_seconds: PositiveFloat = Field(
        60.0, description="The longest that one exchange with other ranks may take."
    )
    metrics: MetricsConfig = Field(
        MetricsConfig(), description="Where and how often counters are written."
    )
    report: ReportConfig = Field(ReportConfig(), description="The report on a finished run.")

    def shared(self) -> dict[str, Any]:
        """What all ranks must have alike, as JSON values: all but what says where a rank runs."""
        return self.model_dump(
            mode="json", exclude={"collective", "rendezvous", "report", "threads"}
        )

    @model_validator(mode="after")
    def _sections_fit_together(self) -> RunConfig:
        self._check_data()
        self._check_micro_batches()
        self._check_table_names()
        self._check_snapshots()
        return self

    def _check_data(self) -> None:
        fitting = _DATA_OF_MODEL[self.model.kind]
        if self.data.kind not in fitting:
            raise PydanticCustomError(
                "model_data",
                "model {model} cannot be trained on this data",
                {
                    "path": ("data", "kind"),
                    "model": self.model.kind,
                    "found": self.data.kind,
                    "expected": " or ".join(fitting),
                },
            )

    def _check_micro_batches(self) -> None:
        if self.training.micro_batches > self.data.batch_size:
            raise PydanticCustomError(
                "micro_batches",
                "a batch cannot be split into more micro-batches than it has samples",
                {
                    "path": ("training", "micro_batches"),
                    "found": str(self.training.micro_batches),
                    "expected": f"at most data.batch_size, {self.data.batch_size}",
                },
            )

    def _check_snapshots(self) -> None:
        chosen = self.snapshots
        if chosen.url is not None:
            return
        for name in ("every_steps", "every_minutes", "resume"):
            if getattr(chosen, name):
                raise PydanticCustomError(
                    "snapshots_url",
                    "snapshots.{name} needs the folder that snapshots lie in",
                    {
                        "path": ("snapshots", name),
                        "name": name,
                        "found": "snapshots.url: null",
                        "expected": "snapshots.url to name a folder",
                    },
                )

    def _check_table_names(self) -> None:
        if not self.tables.overrides:
            return
        known = self.model.table_names
        for name in self.tables.overrides:
            if name not in known:
                raise PydanticCustomError(
                    "table_name",
                    "model {model} has no such table",
                    {
                        "path": ("tables", "overrides", name),
                        "is_key": True,
                        "model": self.model.kind,
                        "expected": ", ".join(known),
                        "suggestion": closest_name(name, known),
                    },
                )
