"""Models of saved runs: ordinary parameters of a snapshot, over rows of the same or of a storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sparring import PluginManager, State, StepContainer, configure_pool, open_snapshot
from sparring_train.config.run import RunConfig, StorageConfig
from sparring_train.hookspecs import OpenedModel, SavedModel
from sparring_train.ranks import Ranks

__all__ = ["evaluated", "saved_model"]

_Task = TypeVar("_Task")


@contextmanager
def saved_model(
    config: RunConfig,
    plugin_manager: PluginManager,
    saved: SavedModel,
    make: Callable[[RunConfig, StepContainer], _Task],
    restore: Callable[[_Task, State], Any],
) -> Iterator[_Task]:
    """The model of a run in one process, for the block.

    Args:
        config: of the run.
        plugin_manager: where backends are looked up.
        saved: where its parameters and rows are.
        make: the model, untrained, with its tables in a container.
        restore: gives it the framework's state.

    Raises:
        ConfigError, DataError, PluginError: as a training.
        InvalidArgumentError: the parameters are of another model.
        SnapshotError: the snapshot was not written by this framework, or is damaged.
    """
    state = open_snapshot(saved.snapshot_url).state(config.framework)
    if saved.rows == "snapshot":
        config = config.model_copy(update={"storage": StorageConfig(backend="memory")})
    with StepContainer(plugin_manager=plugin_manager) as container:
        configure_pool(config.threads)
        task = make(config, container)
        restore(task, State(state.values, state.arrays))
        if saved.rows == "snapshot":
            container.load(saved.snapshot_url)
        yield task


def evaluated(model: OpenedModel) -> dict[str, float]:
    """Metrics on the test examples of the run; in one process."""
    container = model.source.container
    ranks = Ranks(container.collective, container.quiesce)
    metrics: dict[str, float] = model.source.evaluate(model.predict, ranks)
    return metrics
