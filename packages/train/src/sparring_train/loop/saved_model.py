"""Models of saved runs: ordinary parameters of a snapshot, and rows of the snapshot or a storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from sparring import PluginManager, State, StepContainer, open_snapshot
from sparring.adapter import configure_pool
from sparring_train.config.run import RunConfig, StorageConfig
from sparring_train.hookspecs import OpenedModel
from sparring_train.run.ranks import Ranks

__all__ = ["evaluate_model", "saved_model"]

_Task = TypeVar("_Task")


@contextmanager
def saved_model(
    config: RunConfig,
    plugin_manager: PluginManager,
    snapshot_url: str,
    rows: Literal["snapshot", "storage"] | None,
    make: Callable[[RunConfig, StepContainer], _Task],
    restore: Callable[[_Task, State], Any],
) -> Iterator[_Task]:
    """Opens the model of a run in one process, for the block.

    Args:
        config: configuration of the run.
        plugin_manager: finds backends.
        snapshot_url: contains the parameters.
        rows: location of the rows, see `SavedModel`; None: do not load rows.
        make: creates the untrained model, with its tables in a container.
        restore: loads the framework's state.

    Raises:
        ConfigError, DataError, PluginError: see `run_training`.
        InvalidArgumentError: the parameters belong to a different model.
        SnapshotError: the snapshot was not written by this framework, or is damaged.
    """
    state = open_snapshot(snapshot_url).state(config.framework)
    if rows != "storage":
        config = config.model_copy(update={"storage": StorageConfig(backend="memory")})
    with StepContainer(plugin_manager=plugin_manager) as container:
        configure_pool(config.threads)
        task = make(config, container)
        restore(task, State(state.values, state.arrays))
        if rows == "snapshot":
            container.load(snapshot_url)
        yield task


def evaluate_model(model: OpenedModel) -> dict[str, float]:
    """Computes metrics on the test examples of the run, in one process.

    Args:
        model: an opened model, for example from `open_run`.

    Returns:
        Name → value of each metric, as in `TrainResult.metrics`.

    Raises:
        DataError: a file cannot be read, or contains an invalid value.
    """
    container = model.source.container
    ranks = Ranks(container.collective, container.quiesce)
    metrics: dict[str, float] = model.source.evaluate(model.predict, ranks)
    return metrics
