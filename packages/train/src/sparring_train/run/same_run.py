"""Whether a snapshot is of the run that a configuration describes, and what of it has changed."""

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

__all__ = [
    "ORIGINS",
    "RUN",
    "absolute_paths",
    "check_same_origins",
    "check_same_run",
    "describe_run",
]

RUN = "run"
"""The name of the state that says what run a snapshot is of."""

ORIGINS = "origins"
"""The name of the state that says what the ids of each feature were made of; see `Feature.origin`."""

_EXACT = ("seed", "data", "model", "tables")
"""Sections of the configuration without which a run cannot be gone on with."""

_OPTIMIZER = "optimizer"
"""The section whose hyper-parameters may change, and its optimizers may not."""


def describe_run(config: RunConfig) -> dict[str, Any]:
    """The part of a configuration that is saved, to tell runs apart by; its paths are absolute, so that
    it can be read from any folder."""
    whole = absolute_paths(config)
    return whole.model_dump(mode="json", include={*_EXACT, _OPTIMIZER})


def absolute_paths(config: RunConfig) -> RunConfig:
    """The same configuration, for any current directory."""
    here = Path.cwd()
    return with_paths(config, lambda _, path: path if path == AUTO else resolve_path(path, here))


def check_same_run(snapshot: Snapshot, config: RunConfig) -> list[str]:
    """Refuses what cannot be gone on with, from what the snapshot says of its run alone.

    Returns:
        What a person should be told: hyper-parameters that are others than those of the run so far.

    Raises:
        ConfigError: it is of another run: other data, model, tables, seed or optimizers, or of none.
        SnapshotError: it cannot be read.
    """
    names = snapshot.state_names(0)
    if RUN not in names:
        raise ConfigError(
            f"snapshot {snapshot.url} was not saved by `sparring train`, so no run can be gone on "
            "with from it; load it in a program (container.load), or choose another folder: "
            "snapshots.url",
            setting="snapshots.url",
        )
    saved = upgrade_sections(snapshot.state(RUN).values)
    now = describe_run(config)
    for name in _EXACT:
        if name not in saved:
            continue
        before, wanted = (_upgrade_values(values[name], config, name) for values in (saved, now))
        if before != wanted:
            keys = _first_difference(before, wanted)
            old, new = (_value_at(keys, values) for values in (before, wanted))
            key = format_path((name, *keys))
            raise ConfigError(
                f"snapshot {snapshot.url} is of a run with {key}: {old}, this one has {new}; resume "
                "with the configuration that the run began with, or choose another folder: snapshots.url",
                setting=key,
            )
    moved = _describe_moved_data(snapshot, saved.get("data"), config)
    if _OPTIMIZER not in saved:
        return moved
    return moved + _changes(snapshot, config.framework in names, saved[_OPTIMIZER], now[_OPTIMIZER])


def _describe_moved_data(snapshot: Snapshot, saved: Any, config: RunConfig) -> list[str]:
    """Data that are in another folder than when the run was saved."""

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
    before = paths_of(type(config.data).model_validate(saved))
    return [
        f"{name} is {path} from now on; {snapshot.url} was saved with {before.get(name)}"
        for name, path in paths_of(config.data).items()
        if before.get(name) != path
    ]


def check_same_origins(snapshot: Snapshot, origins: Mapping[str, str]) -> None:
    """Rejects data whose ids are made of other values than those of the run so far.

    Args:
        snapshot: of the run.
        origins: feature → `Feature.origin` in the data as they are now.

    Raises:
        ConfigError: if ids that were whole numbers are hashed now, or the other way around.
    """
    saved = snapshot.state(ORIGINS).values if ORIGINS in snapshot.state_names(0) else {}
    for name, before in saved.items():
        now = origins.get(name, before)
        if now != before:
            raise ConfigError(
                f"snapshot {snapshot.url} is of a run whose ids of {name!r} were made of {before}s, and "
                f"the data have {now}s now, so that they would be other ids; set data.types: "
                f"{{{name}: {before}}} if the column still has these, or restore the data",
                setting="data.types",
            )


def _upgrade_values(values: Any, config: RunConfig, name: str) -> Any:
    """Values of a section, with the defaults of keys that the release which saved them did not have, and
    without limits that may change from run to run."""
    section = type(getattr(config, name))
    if not issubclass(section, Section):
        return values
    try:
        # Files may be moved with their folder.
        checked = with_paths(section.model_validate(values), lambda _, path: Path(path).name)
        today = checked.model_dump(mode="json")
    except ValidationError:
        return values  # of another kind
    if name == "tables":
        for each in (today, *today["overrides"].values()):
            del each["expire"]
    return today


def _first_difference(before: Any, now: Any) -> tuple[str, ...]:
    """Keys that lead to the first value that differs."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in (*before, *(each for each in now if each not in before)):
            if before.get(key) != now.get(key):
                return (key, *_first_difference(before.get(key), now.get(key)))
    return ()


def _value_at(keys: tuple[str, ...], values: Any) -> Any:
    """The value to which keys lead; null if it is missing."""
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
        # Of rows, the table says whose state they have. In another framework the ordinary
        # parameters start from scratch.
        is_restored = part == "dense" and is_same_framework
        if is_restored and _class_name(before) != _class_name(chosen):
            raise ConfigError(
                f"snapshot {snapshot.url} has the state of {setting}.name: {before.get('name')}, "
                f"this run has {chosen['name']}; resume with the optimizer that the run began "
                "with, or choose another folder: snapshots.url",
                setting=f"{setting}.name",
            )
        told += [
            f"{setting}.{name} is {chosen.get(name)} from now on; {snapshot.url} was saved with "
            f"{before.get(name)}"
            for name in sorted({*before, *chosen} - {"name"})
            if before.get(name) != chosen.get(name)
        ]
    return told


def _class_name(optimizer: Mapping[str, Any]) -> str:
    """`torch.optim:Adam` and `adam` are one."""
    return short_name(str(optimizer.get("name")))
