"""`RunConfig` → YAML."""

from __future__ import annotations

import io

from ruamel.yaml import YAML

from sparring.config.run import RunConfig

__all__ = ["config_as_yaml"]


def config_as_yaml(config: RunConfig) -> str:
    """The whole configuration, defaults included; `parse_config` reads the same back."""
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False
    writer.allow_unicode = True
    writer.width = 100
    stream = io.StringIO()
    writer.dump(config.model_dump(mode="json"), stream)
    return stream.getvalue()
