"""Evaluation of a saved model: parameters of a snapshot, over rows that a storage has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparring import (
    PluginManager,
    State,
    StepContainer,
    configure_pool,
    open_snapshot,
)
from sparring_train.config.run import RunConfig
from sparring_train.loop.model import Predict, Source
from sparring_train.ranks import Ranks

__all__ = ["run_evaluation"]

MakePredict = Callable[[StepContainer, State], "tuple[Source[Any], Predict]"]


def run_evaluation(
    config: RunConfig, plugin_manager: PluginManager, snapshot_url: str, make: MakePredict
) -> dict[str, float]:
    """Metrics on the test samples, in one process. Rows are read from the configuration's storage.

    Args:
        config: of the run.
        plugin_manager: where backends are looked up.
        snapshot_url: whose ordinary parameters the model has.
        make: the samples and what predicts, of a container and the framework's state.

    Raises:
        ConfigError, DataError, PluginError: as a training.
        InvalidArgumentError: the parameters are of another model.
        SnapshotError: the snapshot was not written by this framework, or is damaged.
    """
    state = open_snapshot(snapshot_url).state(config.framework)
    with StepContainer(plugin_manager=plugin_manager) as container:
        configure_pool(config.threads)
        source, predict = make(container, State(state.values, state.arrays))
        return source.evaluate(predict, Ranks(container.collective, container.quiesce))
