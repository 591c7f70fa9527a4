"""Opens the run that wrote a snapshot, with the configuration in the snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sparring import Snapshot
from sparring.adapter import kind_of
from sparring.errors import ConfigError, UnsupportedError
from sparring_cli import ConfigPath, as_yaml, format_path
from sparring_train.config.names import OWN, find_tag
from sparring_train.config.reading.former_kinds import upgrade_sections
from sparring_train.config.reading.loader import parse_config
from sparring_train.config.run import RunConfig
from sparring_train.hookspecs import OpenedModel, SavedModel
from sparring_train.registered_kinds import find_trainer, trainer_names
from sparring_train.run.same_run import ORIGINS, RUN

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["open_run", "read_model_config", "read_run_config"]

_SECTIONS = ("seed", "data", "model", "tables", "optimizer")


def read_run_config(
    snapshot: Snapshot, overrides: Sequence[str], manager: PluginManager
) -> RunConfig:
    """Returns the configuration of the run that saved a snapshot, as far as the snapshot contains it.

    Args:
        snapshot: snapshot of `sparring train`.
        overrides: ``dotted.key=value``, for example ``data.path=new.csv`` if data were moved.
        manager: finds kinds and backends.

    Raises:
        ConfigError: the snapshot was not saved by `sparring train`, or an override is invalid.
    """
    text = as_yaml(_read_sections(snapshot, manager))
    return parse_config(text, overrides, source=snapshot.url, plugin_manager=manager)


def read_model_config(
    snapshot: Snapshot, overrides: Sequence[str], manager: PluginManager
) -> RunConfig:
    """Like `read_run_config`, for a model that will be opened.

    Raises:
        ConfigError: the snapshot names a class, and no override names it, because an import runs code.
    """
    sections = _read_sections(snapshot, manager)
    # Before the configuration is checked, because checks of a plan create initializers.
    _check_classes(snapshot, sections, overrides)
    return parse_config(as_yaml(sections), overrides, source=snapshot.url, plugin_manager=manager)


def _read_sections(snapshot: Snapshot, manager: PluginManager) -> dict[str, Any]:
    names = snapshot.state_names(0)
    frameworks = [name for name in trainer_names(manager) if name in names]
    if RUN not in names or not frameworks:
        raise ConfigError(
            f"reading the model of {snapshot.url} failed, because it was not saved by `sparring train`; "
            "load it in the program that saved it: container.load",
            setting="snapshots.url",
        )
    saved = upgrade_sections(snapshot.state(RUN).values)
    sections: dict[str, Any] = {name: saved[name] for name in _SECTIONS if name in saved}
    if ORIGINS in names and sections["data"]["kind"] == "table":
        # Types guessed from another file may differ, for example if its first ids are all digits.
        types = {**snapshot.state(ORIGINS).values, **sections["data"].get("types", {})}
        named = {name: types[name] for name in sections["data"]["categorical"] if name in types}
        sections["data"] = {**sections["data"], "types": named}
    # Rows are read from the snapshot, so the run's storage need not be installed.
    rowless = {"framework": frameworks[0], "storage": {"backend": "memory"}}
    return {**rowless, **sections}


def _check_classes(
    snapshot: Snapshot, sections: Mapping[str, Any], overrides: Sequence[str]
) -> None:
    """Raises `ConfigError` if the snapshot names a class that opening the model would import, and no
    override names it. An import runs code, and a snapshot is untrusted."""
    tables = sections.get("tables")
    settings: dict[ConfigPath, Any] = {("model",): sections.get("model")}
    if isinstance(tables, dict):
        settings["tables", "initializer"] = tables.get("initializer")
        by_table = tables.get("overrides")
        for name, each in by_table.items() if isinstance(by_table, dict) else ():
            if isinstance(each, dict):
                settings["tables", "overrides", name, "initializer"] = each.get("initializer")
    given = [tuple(each.partition("=")[0].strip().split(".")) for each in overrides]
    stored = {
        format_path((*path, "kind")): kind_of(value)
        for path, value in settings.items()
        if find_tag(value) == OWN and not any((*path, "kind")[: len(key)] == key for key in given)
    }
    if stored:
        named = " ".join(f"{setting}={name}" for setting, name in stored.items())
        raise ConfigError(
            f"opening the model of {snapshot.url} failed: it names classes to import, and an import runs "
            f"code; if you trust these classes, add them to the command: {named}",
            setting=next(iter(stored)),
        )


@contextmanager
def open_run(
    snapshot: Snapshot, overrides: Sequence[str], manager: PluginManager, *, in_order: bool = False
) -> Iterator[tuple[RunConfig, OpenedModel]]:
    """Opens configuration and model of the run that saved a snapshot, with the rows of the snapshot.

    Args:
        snapshot: snapshot of the run.
        overrides: see `read_run_config`. They must name each class of the user, for example
            ``model.kind=my_models:Wide``, because classes that only the snapshot names are not imported.
        manager: see `read_run_config`.
        in_order: read training rows in the order of the files, if their kind supports it.

    Raises:
        ConfigError: see `read_run_config`; or the snapshot names a class, and no override names it.
        UnsupportedError: the trainer of the framework does not open saved models.
    """
    config = read_model_config(snapshot, overrides, manager)
    if in_order and hasattr(config.data, "shuffle"):
        data = config.data.model_copy(update={"shuffle": False})
        config = config.model_copy(update={"data": data})
    open_model = find_trainer(config.framework, manager).open
    if open_model is None:
        raise UnsupportedError(
            f"{snapshot.url}: the trainer of framework {config.framework!r} does not open saved models; "
            "install a plugin whose trainer does"
        )
    with open_model(config, manager, SavedModel(snapshot.url)) as model:
        yield config, model
