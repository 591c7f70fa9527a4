"""Hooks of sparring-train: trainers of frameworks, kinds of data, kinds of models.

A plugin implements them with ``@hookimpl(optionalhook=True)``, so that it can be loaded without
sparring-train.
"""

# A hook specification consists of a signature and a description.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sparring.contracts import Descriptor, hookspec

if TYPE_CHECKING:
    import numpy.typing as npt

    from sparring import PluginManager, State, StepContainer, StorageChoice
    from sparring.contracts import TableConfig
    from sparring_train.columns import ColumnBatch, Schema
    from sparring_train.config.run import RunConfig
    from sparring_train.config.sections.kinds import DataSection, ModelSection
    from sparring_train.data.dataset import Dataset, LabelRange, OpenRequest
    from sparring_train.join_stores import JoinStore
    from sparring_train.run.result import Progress, TrainResult
    from sparring_train.streams import StreamSource
    from sparring_train.trackers.contract import Tracker, TrackerRequest

__all__ = [
    "DataDescriptor",
    "JoinStoreDescriptor",
    "ModelDescriptor",
    "ModelRequest",
    "OpenedModel",
    "ProgramRequest",
    "SavedModel",
    "StreamDescriptor",
    "TrackerDescriptor",
    "TrainerDescriptor",
    "sparring_register_data",
    "sparring_register_join_stores",
    "sparring_register_models",
    "sparring_register_streams",
    "sparring_register_trackers",
    "sparring_register_trainers",
]


@dataclass(frozen=True, slots=True)
class ProgramRequest:
    """Request to export a model as a program."""

    snapshot_url: str
    """Snapshot that contains the ordinary parameters of the program."""
    served: str
    """Serving snapshot that contains its tables, or a folder of them; the newest one is used."""
    bundle: str
    """Folder to create."""
    follow: bool = False
    """Whether the program may read later versions of its tables."""


@dataclass(frozen=True, slots=True)
class SavedModel:
    """Location of a saved model."""

    snapshot_url: str
    """Snapshot that contains the ordinary parameters."""
    rows: Literal["snapshot", "storage"] = "snapshot"
    """Location of the rows: the same snapshot, or the storage of the configuration."""


class OpenedModel(Protocol):
    """A model that is open for predictions. Predictions change nothing."""

    @property
    def source(self) -> Any:
        """The `ColumnSource` of the run, which opens its data on first access."""

    def predict(self, batch: ColumnBatch) -> Any:
        """See `sparring_train.loop.model.Predict`."""


@dataclass(frozen=True, kw_only=True)
class TrainerDescriptor(Descriptor):
    """Trainer for one framework, whose name is `name`.

    `train(config, plugin_manager, progress)` trains one model: it reads the data, trains, evaluates and
    writes the configured report. It finds backends through the plugin manager. It reports progress to
    `progress`, and prints nothing.

    `open(config, plugin_manager, saved)` is a context manager that opens the model of a saved run for
    predictions. None: not supported.

    `export(config, plugin_manager, request)` exports a saved model as a program that runs without
    Python on serving snapshots. None: not supported.

    `parameters(state)` returns the ordinary parameters of the model by the framework's names, from the
    state that the trainer saved under its name. It must not import the framework. None: serving
    snapshots contain only rows.
    """

    train: Callable[[RunConfig, PluginManager, Progress], TrainResult]
    open: (
        Callable[[RunConfig, PluginManager, SavedModel], AbstractContextManager[OpenedModel]] | None
    ) = None
    export: Callable[[RunConfig, PluginManager, ProgramRequest], None] | None = None
    parameters: Callable[[State], Mapping[str, npt.NDArray[Any]]] | None = None


@dataclass(frozen=True, kw_only=True)
class DataDescriptor(Descriptor):
    """A kind of data, selected by `data.kind: <name>`.

    `section` is the Pydantic model of the `data` section of this kind; its field `kind` is
    ``Literal[name]``. `open(section, request)` opens the data.

    `read(section, path)` yields all examples of another file with the same columns, in the order of the
    file, for predictions. Labels and weights may be missing. None: not supported.

    `pin(section, saved)` returns the section with the version of the data that a run reads, so that the
    snapshots contain it. The first rank calls it, and all ranks use the result. `saved` is the `data`
    section of the snapshot from which the run resumes, if any. None: the data have no versions.
    """

    section: type[DataSection]
    open: Callable[[Any, OpenRequest], Dataset]
    read: Callable[[Any, str], Iterator[ColumnBatch]] | None = None
    pin: Callable[[Any, Mapping[str, Any] | None], DataSection] | None = None


@dataclass(frozen=True, kw_only=True)
class StreamDescriptor(Descriptor):
    """A kind of stream, selected by the scheme of `data.url`: ``<name>://...``. Other URLs and paths are
    opened by the stream ``folder``.

    `open(url, options)` opens the stream on one rank. `options` is an instance of the descriptor's class
    of options.
    """

    open: Callable[[str, Any], StreamSource]


@dataclass(frozen=True, kw_only=True)
class JoinStoreDescriptor(Descriptor):
    """A kind of store of open impressions, selected by `data.join.storage: <name>`.

    `open(folder, options)` opens the store of one rank in a folder that is empty or contains the files of
    `JoinStore.checkpoint`. `options` is an instance of the descriptor's class of options.
    """

    open: Callable[[str, Any], JoinStore]


@dataclass(frozen=True, kw_only=True)
class TrackerDescriptor(Descriptor):
    """A kind of tracker, selected by `training.trackers: [<name>]`.

    `open(request)` creates the run in the tracker, for a `sparring_train.TrackerRequest`.

    `package` is the Python package that it imports, which the extra `name` of sparring-train installs.
    None: there is no such extra.
    """

    open: Callable[[TrackerRequest], Tracker]
    package: str | None = None


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Inputs for building a model."""

    section: Any
    """The `model` section of the configuration."""
    schema: Schema
    """Columns of the training data."""
    tables: Mapping[str, TableConfig]
    """Name → table of the model, with the settings of the section `tables`."""
    storage: StorageChoice
    container: StepContainer
    """Container of the tables."""
    label_range: LabelRange | None
    """Range of the training labels, if known."""
    seed: int
    """Seed of initial values. A trainer may already have seeded the framework with it."""


@dataclass(frozen=True, kw_only=True)
class ModelDescriptor(Descriptor):
    """A kind of model, selected by `model.kind: <name>`.

    `section` is the Pydantic model of the `model` section of this kind; its field `kind` is
    ``Literal[name]``. `build` contains, for each supported framework, a function that creates the
    model for a `ModelRequest`. The trainer determines the required methods of models, see
    ``docs/how-to/bring-data-or-a-model.md``.
    """

    section: type[ModelSection]
    build: Mapping[str, Callable[[ModelRequest], Any]]


@hookspec
def sparring_register_trainers() -> Sequence[TrainerDescriptor]:
    """Returns the trainers of this plugin, one per framework."""


@hookspec
def sparring_register_data() -> Sequence[DataDescriptor]:
    """Returns the kinds of data that this plugin can read."""


@hookspec
def sparring_register_models() -> Sequence[ModelDescriptor]:
    """Returns the kinds of models that this plugin can build."""


@hookspec
def sparring_register_streams() -> Sequence[StreamDescriptor]:
    """Returns the kinds of streams that this plugin can read."""


@hookspec
def sparring_register_join_stores() -> Sequence[JoinStoreDescriptor]:
    """Returns the kinds of stores of this plugin for open impressions of a join."""


@hookspec
def sparring_register_trackers() -> Sequence[TrackerDescriptor]:
    """Returns the kinds of trackers to which this plugin can send metrics."""
