"""Vectors of all items of a run's model, for serving snapshots."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import numpy as np

from sparring import Snapshot
from sparring.contracts import Columns
from sparring.errors import ConfigError
from sparring_train.columns import Column, ColumnBatch
from sparring_train.config.run import RunConfig
from sparring_train.hookspecs import SavedModel
from sparring_train.loop.item_catalog import with_features
from sparring_train.registered_kinds import find_trainer, trainer_names
from sparring_train.run.history import SAVED
from sparring_train.run.same_run import ORIGINS, RUN
from sparring_train.run.saved_run import read_model_config, read_run_config

if TYPE_CHECKING:
    from sparring import PluginManager
    from sparring_packed import ComputedTable

__all__ = ["item_vectors"]

_BLOCK = 8192
"""Number of items whose vectors are computed at a time."""

_log = logging.getLogger(__name__)
_configs: dict[str, RunConfig | None] = {}
"""Description of a run → its configuration, for the run that was published last; None if its model has
no vectors to compute."""


def item_vectors(snapshot: Snapshot, manager: PluginManager) -> dict[str, ComputedTable]:
    """Computes the vectors of all items with the rows and the parameters of one snapshot.

    Args:
        snapshot: snapshot of a run.
        manager: finds trainers and kinds.

    Returns:
        The table ``<table of items>.vectors``; nothing if the model has no vectors of items, or if the
        rows are the vectors.

    Raises:
        ConfigError: the configuration in the snapshot is invalid.
        PluginError: the framework of the model is not installed.
        SnapshotError: the snapshot is damaged.
    """
    from sparring_packed import ComputedTable  # an optional dependency

    config = _find_config(snapshot, manager)
    if config is None:
        return {}
    schema, ranking = config.data.columns, config.model.ranking(config.data.columns)
    open_model = find_trainer(config.framework, manager).open
    assert ranking is not None
    assert open_model is not None
    features = [schema.feature(name) for name in ranking.item]
    tables = dict.fromkeys(each.table_name for each in features if each is not None)
    item = next(iter(tables))
    # The storage of this configuration is empty, and only rows of items are loaded.
    with open_model(config, manager, SavedModel(snapshot.url, "storage")) as model:
        container = model.source.container
        container.load(snapshot.url, tables=tables)
        chunks = container.storage(item).scan(columns=Columns(0, 1))
        keys = np.sort(np.concatenate([np.empty(0, np.int64), *(each.keys for each in chunks)]))
        vectors = [np.empty((0, config.model.tables(schema)[0].dim), np.float32)]
        for begin in range(0, len(keys), _BLOCK):
            ids = keys[begin : begin + _BLOCK]
            items = ColumnBatch({ranking.item[0]: Column(ids)}, np.empty((len(ids), 0), np.float32))
            numbers = np.zeros((len(ids), len(schema.numbers)), np.float32)
            vectors.append(model.predict(ColumnBatch(with_features(items, schema), numbers))[1])
    return {f"{item}.vectors": ComputedTable(item, keys, np.concatenate(vectors, dtype=np.float32))}


def _find_config(snapshot: Snapshot, manager: PluginManager) -> RunConfig | None:
    names = snapshot.state_names(0)
    framework = next((each for each in trainer_names(manager) if each in names), None)
    if framework is None or RUN not in names:
        return None
    origins = snapshot.state(ORIGINS).values if ORIGINS in names else None
    sections = {name: each for name, each in snapshot.state(RUN).values.items() if name != SAVED}
    key = json.dumps([framework, sections, origins])
    if key not in _configs:
        # Parsing the configuration takes longer than converting a delta.
        found = _read_config(snapshot, manager)
        _configs.clear()
        _configs[key] = found
    return _configs[key]


def _read_config(snapshot: Snapshot, manager: PluginManager) -> RunConfig | None:
    config = read_run_config(snapshot, (), manager)
    ranking = config.model.ranking(config.data.columns)
    if ranking is None or ranking.rows_are_vectors:
        return None
    reason = ""
    if len(ranking.item) > 1:
        reason = f"the features {', '.join(ranking.item[1:])} of each item are not in the snapshot"
    elif find_trainer(config.framework, manager).open is None:
        reason = f"the trainer of framework {config.framework!r} does not open saved models"
    else:
        try:
            return read_model_config(snapshot, (), manager)
        except ConfigError as error:
            reason = str(error)
    _log.warning(
        "versions contain no vectors of items, because %s; compute them in your program, or set "
        "publish.item_vectors: false to remove this warning",
        reason,
    )
    return None
