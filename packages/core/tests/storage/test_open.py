"""`open_storage`: backends by name, validated options, and storages that follow the contract."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError, PluginError
from sparring.plugins.registry import make_plugin_manager
from sparring.storage.open import open_storage
from sparring_testing.processes.plugin_site import Site, storage_plugin

TABLE = TableConfig("users", dim=4)


def test_a_storage_opens_by_name_and_keeps_rows() -> None:
    with open_storage("memory", TABLE) as storage:
        storage.upsert([7], np.ones((1, 4), np.float32))
        assert storage.find([7]).found.all()


def test_options_reach_the_backend() -> None:
    with open_storage("memory", TABLE, capacity=3, policy="lru") as storage:
        assert storage.capacity == 3


@pytest.mark.parametrize("capacity", [True, "10", 10.0])
def test_values_that_only_look_like_integers_are_rejected(capacity: object) -> None:
    with pytest.raises(InvalidArgumentError, match=f"capacity.*found {capacity!r}"):
        open_storage("memory", TABLE, capacity=capacity)
    with open_storage("memory", TABLE, capacity=np.int64(3)) as storage:
        assert storage.capacity == 3


@pytest.mark.parametrize("backend", [None, 5, TABLE])
def test_an_invalid_backend_name_is_rejected(backend: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"must be a name.*found.*`sparring plugins`"):
        open_storage(backend, TABLE)


@pytest.mark.parametrize("validate", [True, False])
def test_validate_reaches_the_storage(validate: bool) -> None:
    with open_storage("memory", TABLE, validate=validate) as storage:
        if validate:
            with pytest.raises(InvalidArgumentError):
                storage.find([7, 7])
        else:
            storage.find([7, 7])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"capasity": 3}, ("unknown option 'capasity'", "did you mean 'capacity'", "policy")),
        ({"capacity": 0}, ("'capacity'", "found 0")),
        ({"policy": "fifo"}, ("'policy'", "'lru'", "found 'fifo'")),
        ({"capacity": "x", "nonsense": 1}, ("'capacity'", "unknown option 'nonsense'")),
    ],
)
def test_a_wrong_option_is_rejected_with_the_existing_ones(
    options: dict[str, Any], expected: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        open_storage("memory", TABLE, **options)
    for part in ("storage 'memory'", *expected):
        assert part in str(caught.value)


def test_an_unknown_backend_is_rejected() -> None:
    with pytest.raises(PluginError, match="storage 'memmory' is unknown; did you mean 'memory'"):
        open_storage("memmory", TABLE)


def test_a_table_must_be_a_table_config() -> None:
    with pytest.raises(InvalidArgumentError, match=r"sparring\.TableConfig, found str"):
        open_storage("memory", "users")  # type: ignore[arg-type]


def test_a_given_plugin_manager_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Site(tmp_path / "site", monkeypatch).install("acme-store", storage_plugin("acme"))
    open_storage("acme", TABLE).close()
    with pytest.raises(PluginError):
        open_storage("acme", TABLE, plugin_manager=make_plugin_manager(entry_points=False))


def test_a_backend_that_cannot_run_here_reports_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = storage_plugin("acme").replace(
        "options=MemoryOptions,", "options=MemoryOptions, unavailable=lambda: 'no driver found',"
    )
    Site(tmp_path / "site", monkeypatch).install("acme-store", source)
    with pytest.raises(PluginError, match="'acme' cannot run here: no driver found"):
        open_storage("acme", TABLE)


def test_a_factory_that_does_not_return_a_storage_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = storage_plugin("acme").replace("MemoryStorage(table, options)", "{}")
    Site(tmp_path / "site", monkeypatch).install("acme-store", source)
    with pytest.raises(PluginError, match=r"factory must return a sparring\.Storage, found dict"):
        open_storage("acme", TABLE)


WITHOUT_STACKS = """
import sys
from importlib import metadata

installed = metadata.distributions
metadata.distributions = lambda **context: [
    each for each in installed(**context) if each.metadata["Name"] != "sparring-tiered"
]
sys.modules["sparring_tiered"] = None  # importing it fails

import numpy as np
from sparring import StepContainer, StorageChoice, TableConfig, open_storage
from sparring.errors import PluginError

with StepContainer() as container:
    container.declare(TableConfig("item", 2), StorageChoice("hkv"))
    found = container.lookup("item", np.array([7, 8]))
    container.resources.accumulate(found.shadow_id, np.ones((2, 2), np.float32))
    container.apply(lambda updates: None)
    assert container.storage("item").size == 2
try:
    open_storage("tiered", TableConfig("item", 2), tiers=["hkv", "hkv"])
except PluginError as error:
    print(error)
"""


def test_a_backend_works_without_the_tiered_package_and_a_stack_names_it() -> None:
    pytest.importorskip("sparring_hkv", reason="sparring-hkv is not installed")
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_STACKS],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert 'install it with: pip install "sparring[tiered]"' in ran.stdout
