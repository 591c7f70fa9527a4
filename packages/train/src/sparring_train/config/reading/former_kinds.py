"""Upgrades the sections of runs that earlier releases stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparring.errors import ConfigError

__all__ = ["upgrade_sections"]

_INTEGERS = [f"int_{number}" for number in range(1, 14)]
_CATEGORIES = [f"cat_{number}" for number in range(1, 27)]
_CRITEO: dict[str, Any] = {
    "delimiter": "\t",
    "column_names": ["label", *_INTEGERS, *_CATEGORIES],
    "label": "label",
    "numeric": _INTEGERS,
    "minimum": dict.fromkeys(_INTEGERS, 0.0),
    "log1p": _INTEGERS,
    "categorical": _CATEGORIES,
    "types": dict.fromkeys(_CATEGORIES, "hexadecimal"),
    "missing_ids": {name: -number for number, name in enumerate(_CATEGORIES, 1)},
    "shuffle": False,
}
_COLUMNS_OF_RATINGS = {"user": "userId", "item": "movieId"}
_MOVIELENS: dict[str, Any] = {
    "label": "rating",
    "categorical": list(_COLUMNS_OF_RATINGS.values()),
    "required": list(_COLUMNS_OF_RATINGS.values()),
    "share_tables": {column: name for name, column in _COLUMNS_OF_RATINGS.items()},
}
_PRESETS: dict[str, tuple[dict[str, Any], str, str]] = {
    "criteo": (_CRITEO, "fraction", "configs/criteo.yaml"),
    "movielens": (_MOVIELENS, "exact_fraction", "configs/movielens.yaml"),
}


def upgrade_sections(saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the sections of a stored run. Data of kind `criteo` or `movielens` get the kind `table`.
    Runs that drew test rows by their position continue to do so.

    The new section has the same ids, tables, test rows and validation rows.

    Raises:
        ConfigError: the run had separate files for the test or for validation.
    """
    data = saved.get("data", {})
    if data.get("kind") == "table" and "draw" not in data:
        return {**saved, "data": {**data, "draw": "position"}}
    if data.get("kind") not in _PRESETS:
        return saved
    preset, way, example = _PRESETS[data["kind"]]
    for key in ("test_path", "validation_path"):
        if data.get(key) is not None:
            raise ConfigError(
                f"loading the run: it was saved with data.kind: {data['kind']} and data.{key}: "
                f"{data[key]}, which are no longer supported; put these files next to those of data.path "
                f"and start a new run with the section of {example} and data.split: {{files: NAME}} or "
                "data.validation: {files: NAME}",
                setting=f"data.{key}",
            )
    section = {
        "kind": "table",
        "path": data["path"],
        **preset,
        "split": {way: data["test_fraction"]},
        "batch_size": data["batch_size"],
        "draw": "position",
    }
    if data.get("validation_fraction") is not None:
        section["validation"] = {way: data["validation_fraction"]}
    model = dict(saved["model"])
    if data["kind"] == "movielens":
        for key in ("user", "item"):
            model[key] = _rename_kind(model.get(key, key))
    return {**saved, "data": section, "model": model}


def _rename_kind(named: Any) -> Any:
    if isinstance(named, str):
        return _COLUMNS_OF_RATINGS.get(named, named)
    return None if named is None else [_rename_kind(each) for each in named]
