"""Compares the run that wrote a snapshot with the run of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sparring import Snapshot
from sparring.adapter import AUTO
from sparring.errors import ConfigError
from sparring_cli import format_path, resolve_path, with_paths
from sparring_train.config.names import short_name
from sparring_train.config.reading.former_kinds import upgrade_sections
from sparring_train.config.run import RunConfig
from sparring_train.config.section import Section
from sparring_train.config.sections.columns import ColumnSettings
from sparring_train.config.sections.kinds import DataSection
from sparring_train.config.sections.stream import StreamData
from sparring_train.data.file_identities import DATA_FILES, describe_changes

__all__ = [
    "ORIGINS",
    "PINNED",
    "RUN",
    "absolute_paths",
    "check_same_data",
    "check_same_origins",
    "check_same_run",
    "describe_run",
]

RUN = "run"
"""Name of the state that describes the run of a snapshot."""

ORIGINS = "origins"
"""Name of the state that contains the source of each feature's ids; see `Feature.origin`."""

PINNED = "pinned_data"
"""Name of the state that identifies the data; see `PinnedDataset.pinned`."""

_EXACT = ("seed", "data", "model", "tables")
"""Sections of the configuration that must not change when a run is resumed."""

_OPTIMIZER = "optimizer"
"""Section in which hyperparameters may change, but not optimizers."""


def describe_run(config: RunConfig) -> dict[str, Any]:
    """Returns the part of a configuration that identifies a run, with absolute paths, so that it can be
    read from any folder."""
    whole = absolute_paths(config)
    return whole.model_dump(mode="json", include={*_EXACT, _OPTIMIZER})


def absolute_paths(config: RunConfig) -> RunConfig:
    """Returns the configuration with absolute paths."""
    here = Path.cwd()
    return with_paths(config, lambda _, path: path if path == AUTO else resolve_path(path, here))


def check_same_run(snapshot: Snapshot, config: RunConfig) -> list[str]:
    """Raises if a run cannot be resumed from a snapshot, according to the snapshot's metadata.

    Returns:
        Messages for the user: hyperparameters and data paths that have changed.

    Raises:
        ConfigError: the snapshot is not one of `sparring train`, or data, model, tables, seed or
            optimizers have changed.
        SnapshotError: the snapshot cannot be read.
    """
    names = snapshot.state_names(0)
    if RUN not in names:
        raise ConfigError(
            f"resuming from {snapshot.url} failed, because it was not saved by `sparring train`; "
            "load it in a program (container.load), or choose another folder: snapshots.url",
            setting="snapshots.url",
        )
    saved = upgrade_sections(snapshot.state(RUN).values)
    now = describe_run(config)
    for name in _EXACT:
        if name not in saved:
            continue
        if name == "data" and _has_other_kind(saved[name], config):
            before, wanted = (_shared_columns(values[name]) for values in (saved, now))
        else:
            before, wanted = (_upgrade_values(each[name], config, name) for each in (saved, now))
        if before != wanted:
            keys = _first_difference(before, wanted)
            old, new = (_value_at(keys, values) for values in (before, wanted))
            key = format_path((name, *keys))
            raise ConfigError(
                f"resuming from {snapshot.url} failed: its run has {key}: {old}, this one has {new}; use "
                "the original configuration, or choose another folder: snapshots.url",
                setting=key,
            )
    moved = _describe_moved_data(snapshot, saved.get("data"), config)
    if _OPTIMIZER not in saved:
        return moved
    return moved + _changes(snapshot, config.framework in names, saved[_OPTIMIZER], now[_OPTIMIZER])


def _describe_moved_data(snapshot: Snapshot, saved: Any, config: RunConfig) -> list[str]:
    """Returns messages about data that have moved to another folder since the run was saved."""

    def paths_of(section: Section) -> dict[str, str]:
        found: dict[str, str] = {}
        with_paths(
            section,
            lambda at, path: found.setdefault(format_path(at), resolve_path(path, Path.cwd())),
            ("data",),
        )
        return found

    if not isinstance(config.data, Section) or saved is None:
        return []
    if _has_other_kind(saved, config):
        return []
    before = paths_of(type(config.data).model_validate(saved))
    return [
        f"{name} is now {path}; {snapshot.url} was saved with {before.get(name)}"
        for name, path in paths_of(config.data).items()
        if before.get(name) != path
    ]


def check_same_origins(snapshot: Snapshot, origins: Mapping[str, str]) -> None:
    """Raises if ids are computed from other values than in the saved run.

    Args:
        snapshot: snapshot of the run.
        origins: feature → `Feature.origin` in the current data.

    Raises:
        ConfigError: ids that were whole numbers are now hashed strings, or the other way around.
    """
    saved = snapshot.state(ORIGINS).values if ORIGINS in snapshot.state_names(0) else {}
    for name, before in saved.items():
        now = origins.get(name, before)
        if now != before:
            raise ConfigError(
                f"resuming from {snapshot.url} failed: its run has ids of {name!r} made from {before}s, "
                f"the data now contain {now}s, which would give other ids; set data.types: "
                f"{{{name}: {before}}} if the column still contains these, or use the original data",
                setting="data.types",
            )


def check_same_data(snapshot: Snapshot, pinned: Mapping[str, Any]) -> None:
    """Raises if the data differ from the data of the saved run: other files, or another table with the
    same version. Positions would then mean other rows, and test rows could become training rows.

    Args:
        snapshot: snapshot of the run.
        pinned: `PinnedDataset.pinned` of the current data.

    Raises:
        ConfigError: the data differ.
    """
    saved = snapshot.state(PINNED).values if PINNED in snapshot.state_names(0) else {}
    for name, before in saved.items():
        if name == DATA_FILES:
            # A run on files may continue on a stream.
            changes = describe_changes(before, pinned.get(name, before))
            if changes:
                raise ConfigError(
                    f"resuming from {snapshot.url} failed: the files of data.path are not those of its "
                    f"run: {changes}; restore the files and resume, or train with these files in "
                    "another folder: snapshots.url",
                    setting="data.path",
                )
            continue
        if pinned.get(name) != before:
            raise ConfigError(
                f"resuming from {snapshot.url} failed: its run has {name} {before}, the data now have "
                f"{pinned.get(name)}; restore the table, or train again with another folder: "
                "snapshots.url",
                setting="data.path",
            )


def _upgrade_values(values: Any, config: RunConfig, name: str) -> Any:
    """Returns the values of a section, without limits that may change between runs. Keys that the
    saving release did not have get their defaults."""
    section = type(getattr(config, name))
    if not issubclass(section, Section):
        return values
    try:
        # Folders of files may change, names may not.
        checked = with_paths(section.model_validate(values), lambda _, path: Path(path).name)
        today = checked.model_dump(mode="json")
    except ValidationError:
        return values  # The section is of another kind.
    if issubclass(section, DataSection):
        today = {key: value for key, value in today.items() if key not in section.changeable}
    if name == "tables":
        for each in (today, *today["overrides"].values()):
            del each["expire"]
    return today


def _has_other_kind(saved: Mapping[str, Any], config: RunConfig) -> bool:
    """Returns whether the run of a snapshot had files with columns, and this one has a stream."""
    return saved.get("kind") == "table" and isinstance(config.data, StreamData)


def _shared_columns(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of the examples and their meaning, without the source of the examples."""
    keys = ColumnSettings.model_fields.keys() - {"kind", "batch_size", "bad_rows"}
    return {key: values[key] for key in sorted(keys) if key in values}


def _first_difference(before: Any, now: Any) -> tuple[str, ...]:
    """Returns the path of the first value that differs between two sections."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in (*before, *(each for each in now if each not in before)):
            if before.get(key) != now.get(key):
                return (key, *_first_difference(before.get(key), now.get(key)))
    return ()


def _value_at(keys: tuple[str, ...], values: Any) -> Any:
    """Returns the value at a path; null if it is missing."""
    for key in keys:
        values = values.get(key)
    return "null" if values is None else values


def _changes(
    snapshot: Snapshot,
    is_same_framework: bool,
    saved: Mapping[str, Any],
    now: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    told = []
    for part, chosen in now.items():
        before = saved.get(part, {})
        setting = f"{_OPTIMIZER}.{part}"
        # The table determines the method of rows. In another framework, ordinary parameters start
        # from initial values.
        is_restored = part == "dense" and is_same_framework
        if is_restored and _class_name(before) != _class_name(chosen):
            raise ConfigError(
                f"resuming from {snapshot.url} failed: its run has {setting}.name: {before.get('name')}, "
                f"this one has {chosen['name']}; use the original optimizer, or choose another folder: "
                "snapshots.url",
                setting=f"{setting}.name",
            )
        told += [
            f"{setting}.{name} is now {chosen.get(name)}; {snapshot.url} was saved with "
            f"{before.get(name)}"
            for name in sorted({*before, *chosen} - {"name"})
            if before.get(name) != chosen.get(name)
        ]
    return told


def _class_name(optimizer: Mapping[str, Any]) -> str:
    """Returns a comparable name: `torch.optim:Adam` and `adam` are equal."""
    return short_name(str(optimizer.get("name")))
