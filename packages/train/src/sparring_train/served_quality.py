"""Metric of a run's model with serving rows, for `sparring publish --evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
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

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["served_quality"]


def served_quality(
    config_path: str, snapshot_url: str, storage: Mapping[str, Any], manager: PluginManager
) -> MetricValue:
    """Computes the first metric of the model's loss: AUC, RMSE or recall; see `EvaluatorDescriptor`.

    Raises:
        ConfigError: the configuration is invalid.
        UnsupportedError: the trainer of the framework does not evaluate saved models.
        SparringError: data or snapshot cannot be read, or do not fit.
    """
    config = load_config(config_path, plugin_manager=manager)
    open_model = find_trainer(config.framework, manager).open
    if open_model is None:
        raise UnsupportedError(
            f"{config_path}: the trainer of framework {config.framework!r} does not evaluate saved "
            "models; publish without --evaluate"
        )
    options = {name: value for name, value in storage.items() if name != "backend"}
    rows = StorageConfig(backend=storage["backend"], options=options)
    chosen = config.model_copy(
        update={"storage": rows, "data": _test_rows(config, snapshot_url, manager)}
    )
    with open_model(chosen, manager, SavedModel(snapshot_url, "storage")) as model:
        metrics = evaluate_model(model)
    metric = METRICS[config.model.loss][0]
    return MetricValue(metric, metrics[metric], is_higher_better=metric != "rmse")


def _test_rows(config: RunConfig, snapshot_url: str, manager: PluginManager) -> Any:
    """Returns the section `data` with the test rows of the run that saved the snapshot."""
    pin = data_kinds(manager)[config.data.kind].pin
    snapshot = open_snapshot(snapshot_url)
    if pin is None or RUN not in snapshot.state_names(0):
        return config.data
    return pin(config.data, snapshot.state(RUN).values.get("data"))
