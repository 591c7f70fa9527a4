"""Parameters and preprocessing of a run's model, for serving snapshots."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparring import Snapshot, State
from sparring_train.config.run import RunConfig
from sparring_train.config.section import Section
from sparring_train.config.sections.columns import ColumnSettings
from sparring_train.config.sections.kinds import DataSection
from sparring_train.registered_kinds import find_trainer, trainer_names
from sparring_train.run.same_run import ORIGINS, RUN
from sparring_train.run.saved_run import read_run_config

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = [
    "describe_preprocessing",
    "keras_parameters",
    "model_files",
    "torch_parameters",
]

_LEAST_BYTES = 256
"""Minimum size of a file of the model; see ``docs/format/packed.md``."""
_described: dict[str, bytes] = {}
"""Description of a run → its preprocessing, for the run that was published last."""


def model_files(snapshot: Snapshot, manager: PluginManager) -> dict[str, bytes]:
    """Returns the files of a model for a serving snapshot, by kind.

    Args:
        snapshot: snapshot of a run.
        manager: finds trainers and kinds of data.

    Returns:
        ``parameters`` and ``preprocessing``; nothing if the snapshot was not saved by `sparring train`,
        or the trainer of its framework does not support this.

    Raises:
        ConfigError: the configuration in the snapshot is invalid.
        SnapshotError: the snapshot is damaged.
    """
    from sparring_packed import encode_parameters  # an optional dependency

    names = snapshot.state_names(0)
    framework = next((each for each in trainer_names(manager) if each in names), None)
    if framework is None or RUN not in names:
        return {}
    parameters = find_trainer(framework, manager).parameters
    if parameters is None:
        return {}
    saved = snapshot.state(framework)
    arrays = parameters(State(saved.values, saved.arrays))
    # The names are listed, because readers of safetensors do not keep the order of arrays.
    metadata = {"framework": framework, "names": json.dumps(list(arrays))}
    return {
        "parameters": encode_parameters(arrays, metadata),
        "preprocessing": _preprocessing(snapshot, manager),
    }


def _preprocessing(snapshot: Snapshot, manager: PluginManager) -> bytes:
    saved = snapshot.state(RUN).values
    origins = snapshot.state(ORIGINS).values if ORIGINS in snapshot.state_names(0) else None
    key = json.dumps([saved.get("data"), saved.get("model"), origins])
    found = _described.get(key)
    if found is None:
        # Parsing the configuration takes longer than converting a delta.
        config = read_run_config(snapshot, (), manager)
        described = {**describe_preprocessing(config.data), "vectors": _compared_tables(config)}
        text = json.dumps(described, indent=1)
        found = f"{text}\n".rjust(_LEAST_BYTES).encode()
        _described.clear()  # Another thread may do the same.
        _described[key] = found
    return found


def _compared_tables(config: RunConfig) -> list[str]:
    """Returns the tables whose rows are the vectors of users and items."""
    schema = config.data.columns
    ranking = config.model.ranking(schema)
    if ranking is None or not ranking.user_is_row:
        return []
    features = [
        schema.feature(name) for name in (ranking.user, ranking.item[0]) if name is not None
    ]
    return sorted({each.table_name for each in features if each is not None})


def torch_parameters(state: State) -> dict[str, npt.NDArray[Any]]:
    """Returns the parameters and buffers of a model by their names in PyTorch, from the state of a run.

    Args:
        state: result of `sparring_torch.gather_state`, whose part ``model`` is a module.
    """
    found = {}
    for name, value in state.values["model"]["map"]:
        if not isinstance(value, dict) or "tensor" not in value:
            continue
        array = np.asarray(state.arrays[value["tensor"]])
        if value["dtype"] == "bfloat16":
            import ml_dtypes

            array = array.view(ml_dtypes.bfloat16)
        found[name] = array
    return found


def keras_parameters(state: State) -> dict[str, npt.NDArray[Any]]:
    """Returns the variables of a model by their paths in Keras, from the state of a run.

    Args:
        state: result of `sparring_tf.gather_state`, whose part ``model`` is a model.
    """
    found: dict[str, npt.NDArray[Any]] = {}
    for number, path in enumerate(state.values["model"]):
        name = path if path not in found else f"{path}#{number}"
        found[name] = np.asarray(state.arrays[f"model.{number}"])
    return found


def describe_preprocessing(data: DataSection) -> dict[str, Any]:
    """Returns how raw columns become ids and numbers, as JSON values.

    Args:
        data: the section `data` of the run.
    """
    columns = data.columns
    settings: Mapping[str, Any] = data.model_dump(mode="json") if isinstance(data, Section) else {}
    types = data.id_types if isinstance(data, ColumnSettings) else {}
    minimum, log1p = settings.get("minimum", {}), settings.get("log1p", ())
    missing_ids = settings.get("missing_ids", {})
    return {
        "format": 1,
        "strings": "xxh3-64",
        "categorical": [
            {
                "name": each.name,
                "table": each.table_name,
                "type": types.get(each.name),
                "is_list": each.is_list,
                "may_be_missing": each.may_be_missing,
                "missing_id": missing_ids.get(each.name),
            }
            for each in columns.features
        ],
        "numeric": [
            {"name": name, "minimum": minimum.get(name), "log1p": name in log1p}
            for name in columns.numbers
        ],
    }
