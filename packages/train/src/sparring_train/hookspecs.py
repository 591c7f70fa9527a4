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

__all__ = ["TrainerDescriptor", "sparring_register_trainers"]


@dataclass(frozen=True, kw_only=True)
class TrainerDescriptor(Descriptor):
    """How one framework trains. `name` is the framework's.

    `train(config, plugin_manager, progress)` runs one training from reading the data to the last
    evaluation, and writes the report that the configuration asks for. Backends come from the
    plugin manager; it tells `progress` of its progress and prints nothing itself.

    `evaluate(config, plugin_manager, snapshot_url)` returns the metrics on the test samples of the
    model with ordinary parameters of the snapshot, and rows that the configuration's storage has. It
    changes nothing. None: this trainer evaluates only what it trains.
    """

    train: Callable[[RunConfig, PluginManager, Progress], TrainResult]
    evaluate: Callable[[RunConfig, PluginManager, str], Mapping[str, float]] | None = None


@hookspec
def sparring_register_trainers() -> Sequence[TrainerDescriptor]:
    """Trainers that this plugin offers, one for each framework."""
