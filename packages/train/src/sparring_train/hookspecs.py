"""The hooks of sparring-train: frameworks that train, kinds of data, kinds of models.

A plugin implements them with ``@hookimpl(optionalhook=True)``, so that it also loads where
sparring-train is not installed.
"""

# A hook specification is a signature and its description; it has no body to return from.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sparring.contracts import Descriptor, hookspec

if TYPE_CHECKING:
    from sparring import PluginManager, StepContainer, StorageChoice
    from sparring.contracts import TableConfig
    from sparring_train.columns import ColumnBatch, Schema
    from sparring_train.config.run import RunConfig
    from sparring_train.config.sections.kinds import DataSection, ModelSection
    from sparring_train.data.dataset import Dataset, LabelRange, OpenRequest
    from sparring_train.run.result import Progress, TrainResult

__all__ = [
    "DataDescriptor",
    "ModelDescriptor",
    "ModelRequest",
    "OpenedModel",
    "ProgramRequest",
    "SavedModel",
    "TrainerDescriptor",
    "sparring_register_data",
    "sparring_register_models",
    "sparring_register_trainers",
]


@dataclass(frozen=True, slots=True)
class ProgramRequest:
    """A program to export."""

    snapshot_url: str
    """The snapshot with the ordinary parameters of the program."""
    served: str
    """The serving snapshot that its tables are in, or a folder of them, whose newest is taken."""
    bundle: str
    """The folder to make."""
    follow: bool = False
    """It may read later versions of its tables, too."""


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A model to open."""

    snapshot_url: str
    """The snapshot with its ordinary parameters."""
    rows: Literal["snapshot", "storage"] = "snapshot"
    """Place of its rows: the same snapshot, or the storage of the configuration."""


class OpenedModel(Protocol):
    """A model that is asked. It changes nothing."""

    @property
    def source(self) -> Any:
        """The `ColumnSource` of the run: its data are opened when they are asked for."""

    def predict(self, batch: ColumnBatch) -> Any:
        """See `sparring_train.loop.model.Predict`."""


@dataclass(frozen=True, kw_only=True)
class TrainerDescriptor(Descriptor):
    """How one framework trains. `name` is the framework's.

    `train(config, plugin_manager, progress)` runs one training from reading the data to the last
    evaluation, and writes the report that the configuration asks for. Backends come from the
    plugin manager; it tells `progress` of its progress and prints nothing itself.

    `open(config, plugin_manager, saved)` makes the model of a saved run, to be asked: a context
    manager. None: this trainer asks only what it trains.

    `export(config, plugin_manager, request)` writes a saved model as a program that runs without
    Python over serving snapshots. None: this trainer exports none.
    """

    train: Callable[[RunConfig, PluginManager, Progress], TrainResult]
    open: (
        Callable[[RunConfig, PluginManager, SavedModel], AbstractContextManager[OpenedModel]] | None
    ) = None
    export: Callable[[RunConfig, PluginManager, ProgramRequest], None] | None = None


@dataclass(frozen=True, kw_only=True)
class DataDescriptor(Descriptor):
    """A kind of data: `name` is what `data.kind` says.

    `section` is the pydantic model of the `data` section of this kind; its field `kind` is
    ``Literal[name]``. `open(section, request)` opens the files.

    `read(section, path)` gives all examples of another file of the same columns, in its order, for
    predictions: labels and weights may be missing. None: examples of this kind are those of the
    section alone.
    """

    section: type[DataSection]
    open: Callable[[Any, OpenRequest], Dataset]
    read: Callable[[Any, str], Iterator[ColumnBatch]] | None = None


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A model to build."""

    section: Any
    """The `model` section of the configuration."""
    schema: Schema
    """Columns of the data that it is trained on."""
    tables: Mapping[str, TableConfig]
    """Name → table that the section wants, with the settings of `tables` in the configuration."""
    storage: StorageChoice
    container: StepContainer
    """Where the tables live."""
    label_range: LabelRange | None
    """Of the labels to train on, where it is known."""
    seed: int
    """Of initial values; a framework may have set its own by it already."""


@dataclass(frozen=True, kw_only=True)
class ModelDescriptor(Descriptor):
    """A kind of model: `name` is what `model.kind` says.

    `section` is the pydantic model of the `model` section of this kind; its field `kind` is
    ``Literal[name]``. `build` has, for each framework that it can be trained with, what makes the
    model of a `ModelRequest`; what that has to offer is up to the framework's trainer, see
    ``docs/how-to/bring-data-or-a-model.md``.
    """

    section: type[ModelSection]
    build: Mapping[str, Callable[[ModelRequest], Any]]


@hookspec
def sparring_register_trainers() -> Sequence[TrainerDescriptor]:
    """Trainers that this plugin offers, one for each framework."""


@hookspec
def sparring_register_data() -> Sequence[DataDescriptor]:
    """Kinds of data that this plugin can read."""


@hookspec
def sparring_register_models() -> Sequence[ModelDescriptor]:
    """Kinds of models that this plugin can build."""
