"""The hooks of sparring-train: which frameworks can train what a configuration describes.

A plugin implements them with ``@hookimpl(optionalhook=True)``, so that it also loads where
sparring-train is not installed.
"""

# A hook specification is a signature and its description; it has no body to return from.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparring.contracts import Descriptor, hookspec

if TYPE_CHECKING:
    from sparring import PluginManager
    from sparring_train.config.run import RunConfig
    from sparring_train.result import Progress, TrainResult

__all__ = ["ProgramRequest", "TrainerDescriptor", "sparring_register_trainers"]


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


@dataclass(frozen=True, kw_only=True)
class TrainerDescriptor(Descriptor):
    """How one framework trains. `name` is the framework's.

    `train(config, plugin_manager, progress)` runs one training from reading the data to the last
    evaluation, and writes the report that the configuration asks for. Backends come from the
    plugin manager; it tells `progress` of its progress and prints nothing itself.

    `evaluate(config, plugin_manager, snapshot_url)` returns the metrics on the test samples of the
    model with ordinary parameters of the snapshot, and rows that the configuration's storage has. It
    changes nothing. None: this trainer evaluates only what it trains.

    `export(config, plugin_manager, request)` writes a saved model as a program that runs without
    Python over serving snapshots. None: this trainer exports none.
    """

    train: Callable[[RunConfig, PluginManager, Progress], TrainResult]
    evaluate: Callable[[RunConfig, PluginManager, str], Mapping[str, float]] | None = None
    export: Callable[[RunConfig, PluginManager, ProgramRequest], None] | None = None


@hookspec
def sparring_register_trainers() -> Sequence[TrainerDescriptor]:
    """Trainers that this plugin offers, one for each framework."""
