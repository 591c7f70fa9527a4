"""Metric of a run's model with serving rows, for `sparring publish --evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparring import open_snapshot
from sparring.errors import UnsupportedError
from sparring_serve import MetricValue
from sparring_train.config.reading.loader import load_config
from sparring_train.config.run import RunConfig, StorageConfig
from sparring_train.config.sections.kinds import METRICS
from sparring_train.hookspecs import SavedModel
from sparring_train.loop.saved_model import evaluate_model
from sparring_train.registered_kinds import data_kinds, find_trainer
from sparring_train.run.same_run import RUN
from sparring_train.run.saved_run import read_model_config

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["served_quality"]


def served_quality(
    config_path: str | None,
    snapshot_url: str,
    storage: Mapping[str, Any],
    manager: PluginManager,
    rows_of: str | None = None,
) -> MetricValue:
    """Computes the metrics of a model. The first one is of its loss: AUC, RMSE or recall; see
    `EvaluatorDescriptor`.

    Raises:
        ConfigError: the configuration is invalid.
        UnsupportedError: the trainer of the framework does not evaluate saved models.
        SparringError: data or snapshot cannot be read, or do not fit.
    """
    if config_path is None:
        config = read_model_config(open_snapshot(rows_of or snapshot_url), (), manager)
    else:
        config = load_config(config_path, plugin_manager=manager)
    open_model = find_trainer(config.framework, manager).open
    if open_model is None:
        raise UnsupportedError(
            f"{config_path or snapshot_url}: the trainer of framework {config.framework!r} does "
            "not evaluate saved models; publish without --evaluate, --min and --not-worse-than-served"
        )
    options = {name: value for name, value in storage.items() if name != "backend"}
    rows = StorageConfig(backend=storage["backend"], options=options)
    chosen = config.model_copy(
        update={"storage": rows, "data": _test_rows(config, rows_of or snapshot_url, manager)}
    )
    with open_model(chosen, manager, SavedModel(snapshot_url, "storage")) as model:
        metrics = evaluate_model(model)
        values = {
            name: MetricValue(name, value, is_higher_better=model.source.is_higher_better(name))
            for name, value in metrics.items()
        }
    metric = METRICS[config.model.loss][0]
    others = tuple(value for name, value in values.items() if name != metric)
    return replace(values[metric], others=others)


def _test_rows(config: RunConfig, snapshot_url: str, manager: PluginManager) -> Any:
    """Returns the section `data` with the test rows of the run that saved the snapshot."""
    pin = data_kinds(manager)[config.data.kind].pin
    snapshot = open_snapshot(snapshot_url)
    if pin is None or RUN not in snapshot.state_names(0):
        return config.data
    return pin(config.data, snapshot.state(RUN).values.get("data"))
