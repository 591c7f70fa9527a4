"""One choice of storage gives each rank and each table a separate location."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from sparring.collective.local import LocalGroup
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import InvalidArgumentError
from sparring.plugins.registry import make_plugin_manager
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

CHOICE = StorageChoice("tiered", {"path": "rows/{rank}-of-{world_size}/{table}"})


def test_placeholders_in_options_are_replaced_by_rank_world_size_and_table() -> None:
    filled = CHOICE.on(rank=2, world_size=8, table="item")
    assert filled == StorageChoice("tiered", {"path": "rows/2-of-8/item"})


def test_placeholders_are_replaced_within_lists_mappings_and_paths_only() -> None:
    options = {
        "path": Path("/data/{rank}"),
        "tiers": [{"backend": "rocksdb", "options": {"path": "{table}{rank}{rank}"}}, ("{rank}",)],
        "capacity": 5,
        "secret": "{user} {} {{rank}}",
    }
    assert StorageChoice("tiered", options).on(3, 4, "{rank}").options == {
        "path": Path("/data/3"),
        "tiers": [{"backend": "rocksdb", "options": {"path": "{rank}33"}}, ["3"]],
        "capacity": 5,
        "secret": "{user} {} {3}",
    }


def test_a_container_fills_in_its_rank_and_recognizes_the_choice_again() -> None:
    table = TableConfig("item", 4)
    group = LocalGroup(2)
    made = [
        StepContainer(collective=group.join(rank), rendezvous=ThreadRendezvous(2))
        for rank in range(2)
    ]
    for rank, container in enumerate(made):
        container.declare(table, CHOICE)
        choice = container.entry("item").choice
        assert choice is not None
        assert choice.options == {"path": f"rows/{rank}-of-2/item"}
        container.declare(table, CHOICE)
        with pytest.raises(InvalidArgumentError, match="already declared"):
            container.declare(table, StorageChoice("tiered", {"path": "elsewhere"}))


def test_a_container_searches_installed_plugins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Mock(wraps=make_plugin_manager)
    monkeypatch.setattr("sparring.engine.tables.tables.make_plugin_manager", looks)
    with StepContainer() as container:
        for name in ("user", "item", "city"):
            container.declare(TableConfig(name, 4), StorageChoice("memory"))
            container.lookup(name, np.array([1, 2]))
            container.storage(name)
    assert looks.call_count == 1
