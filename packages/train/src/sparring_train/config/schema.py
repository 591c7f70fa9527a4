"""JSON schema of configurations, with which editors complete and check YAML files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparring_train.config.run_type import run_type

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["config_schema"]


def config_schema(manager: PluginManager | None = None) -> dict[str, Any]:
    """Returns the JSON schema (draft 2020-12) of the files that `load_config` reads.

    Args:
        manager: finds kinds of data and models of plugins; None: built-in kinds only.
    """
    schema = run_type(manager).model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
