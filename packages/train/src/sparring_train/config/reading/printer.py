"""Writes a `RunConfig` as YAML."""

from __future__ import annotations

from sparring_cli import as_yaml
from sparring_train.config.run import RunConfig

__all__ = ["config_as_yaml"]


def config_as_yaml(config: RunConfig) -> str:
    """Returns the whole configuration, including defaults, in a form that `parse_config` reads.

    Args:
        config: the configuration.

    Examples:
        >>> from sparring_train import config_as_yaml, parse_config
        >>> config = parse_config("{data: {kind: synthetic_criteo}, model: {kind: dlrm}}")
        >>> parse_config(config_as_yaml(config)) == config
        True
    """
    return as_yaml(config.model_dump(mode="json"))
