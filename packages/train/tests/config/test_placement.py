"""Sharded and replicated tables, as set by configurations."""

from __future__ import annotations

from sparring.contracts import TableConfig
from sparring_train.config.sections.tables import TablesConfig


def test_a_configuration_places_all_tables_and_single_ones() -> None:
    config = TablesConfig.model_validate(
        {"placement": "replicated", "overrides": {"large": {"placement": "sharded"}}}
    )
    assert config.table_config(TableConfig("small", 4)).is_replicated
    assert not config.table_config(TableConfig("large", 4)).is_replicated
