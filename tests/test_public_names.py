"""Tests that the public names of core are few, documented, and used by the intended packages."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

moved_names: Any = import_module("moved_names")

FACES = ("sparring", "sparring.adapter", "sparring.contracts")
MAX_NAMES = 60
PAGES = [
    path
    for folder in ("tutorial", "how-to", "reference")
    for path in (ROOT / "docs" / folder).glob("*.md")
]
PLUGINS = ("backend-", "collective-", "storage-", "packed", "_template")

OPTIONAL = (
    "SupportsBackground SupportsCapsule SupportsFirstTier SupportsNotes SupportsPurge SupportsPush "
    "SupportsReplaceAll SupportsRestore SupportsTiers"
)
UNUSED_CONTRACTS = {
    OPTIONAL: "optional methods of a storage; a backend has them without naming the protocol",
    "Layout LayoutRequest ShardingKindDescriptor": "no package but core has a sharding kind",
    "PlannerDescriptor": "one planner is shipped",
    "UpdateMethodDescriptor UpdateRows": "no package but core has update methods",
    "Indices": "the type of arguments of kernels",
    "write_state": "inverse of read_state, which packages import",
}
"""Names of `sparring.contracts` that no plugin of this repository imports, and why they exist."""


def users() -> dict[tuple[str, str], set[str]]:
    """Returns the packages whose source imports a name of core, by module and name."""
    found = defaultdict(set)
    for path in ROOT.glob("packages/*/src/**/*.py"):
        package = path.relative_to(ROOT / "packages").parts[0]
        if package != "core":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module in FACES:
                    for alias in node.names:
                        found[node.module, alias.name].add(package)
    return found


def test_every_name_of_sparring_is_on_a_user_page() -> None:
    names = import_module("sparring").__all__
    assert 0 < len(names) <= MAX_NAMES
    code = {
        word
        for page in PAGES
        for span in re.findall(r"```.*?```|`[^`\n]+`", page.read_text(), re.S)
        for word in re.findall(r"\w+", span)
    }
    assert sorted(set(names) - code) == []


@pytest.mark.parametrize("face", FACES)
def test_every_public_name_is_found(face: str) -> None:
    module = import_module(face)
    missing = [name for name in module.__all__ if getattr(module, name, None) is None]
    assert missing == []
    with pytest.raises(AttributeError, match=f"module '{face}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018 - reading it raises


def test_names_for_packages_are_in_one_module() -> None:
    adapter = set(import_module("sparring.adapter").__all__)
    others = {*import_module("sparring").__all__, *import_module("sparring.contracts").__all__}
    assert sorted(adapter & others) == []


def test_a_package_uses_each_name_of_the_adapter_module() -> None:
    used = users()
    names = import_module("sparring.adapter").__all__
    assert [name for name in names if not used["sparring.adapter", name]] == []


def test_a_plugin_or_two_packages_use_each_contract() -> None:
    used = users()
    unused = [
        name
        for name in import_module("sparring.contracts").__all__
        if len(found := used["sparring.contracts", name]) < 2
        and not any(package.startswith(PLUGINS) for package in found)
    ]
    assert unused == sorted(name for names in UNUSED_CONTRACTS for name in names.split())


OLD_PLUGIN = """\
from sparring import (
    NativeStorage,
    TableConfig,
    partition as split,
)
import sparring


def open_stack(table: TableConfig) -> object:
    from sparring import TieredStorage, Codec, merged_chunks

    return sparring.capsule_of(TieredStorage(table))
"""
NEW_PLUGIN = """\
from sparring.contracts import NativeStorage, partition as split
from sparring import TableConfig
import sparring


def open_stack(table: TableConfig) -> object:
    from sparring_tiered import TieredStorage
    from sparring import Codec, scan_rows as merged_chunks

    return sparring.capsule_of(TieredStorage(table))
"""


def test_imports_of_an_old_plugin_are_rewritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "package/backend.py"
    path.parent.mkdir()
    path.write_text(OLD_PLUGIN)
    assert moved_names.main([str(tmp_path)]) == 1
    assert path.read_text() == NEW_PLUGIN
    assert capsys.readouterr().out.splitlines() == [
        f"{path}: rewritten",
        f"{path}:8: sparring.Codec was removed: `sparring.adapter.MessageSizes` computes the sizes "
        "of messages",
        f"{path}:10: sparring.capsule_of is now sparring.contracts.get_capsule",
    ]
    path.write_text("from sparring import TableConfig\n")
    assert moved_names.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""


def test_the_new_names_exist() -> None:
    for (old, new), names in moved_names.MOVES.items():
        for name in names.split():
            now = moved_names.new_name(new, name)
            assert hasattr(import_module(new), now), f"{old}.{name} is not in {new}"
            assert name not in import_module(old).__all__
