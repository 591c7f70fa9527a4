"""`RunConfig` with the installed kinds of data and models."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pydantic import Field, create_model

from sparring_train.config.names import OWN, one_of
from sparring_train.config.run import RunConfig
from sparring_train.config.section import Section
from sparring_train.config.sections.own_model import OwnModel
from sparring_train.registered_kinds import data_kinds, model_kinds

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["run_type"]


def run_type(manager: PluginManager | None = None) -> type[RunConfig]:
    """Returns the Pydantic model that validates a configuration with all available kinds.

    Args:
        manager: finds kinds of plugins; None: built-in kinds only.
    """
    data = {name: each.section for name, each in data_kinds(manager).items()}
    models: dict[str, type[Section]] = {
        name: each.section for name, each in model_kinds(manager).items()
    }
    return _run_type(tuple(data.items()), (*models.items(), (OWN, OwnModel)))


@functools.lru_cache(maxsize=16)
def _run_type(
    data: tuple[tuple[str, type[Section]], ...], models: tuple[tuple[str, type[Section]], ...]
) -> type[RunConfig]:
    fields = RunConfig.model_fields
    return create_model(
        RunConfig.__name__,
        __base__=RunConfig,
        __module__=RunConfig.__module__,
        __doc__=RunConfig.__doc__,
        data=(one_of(data), Field(description=fields["data"].description)),
        model=(one_of(models), Field(description=fields["model"].description)),
    )
