"""Sharding kinds that break one guarantee, and the test of the kit that detects it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import PluginManager, make_plugin_manager
from sparring.contracts import (
    API_VERSION,
    Layout,
    LayoutRequest,
    ShardingKindDescriptor,
    hookimpl,
)
from sparring.errors import InvalidArgumentError
from sparring.plugins.distributions import PluginSource
from sparring_testing import ShardingKindTests
from sparring_testing.guard import find_violations

KIT = ShardingKindTests()
_made: list[str] = []


def layout(request: LayoutRequest, owners: Any, kind: str = "broken") -> Layout:
    size = request.shard_map.world_size
    return Layout(np.broadcast_to(np.asarray(owners), (4096,)) % size, size, kind)


def chosen(request: LayoutRequest, first: int) -> Layout:
    """All rows on one rank: the rank of the plan, or the given one."""
    if len(request.ranks) > 1:
        raise InvalidArgumentError(f"table {request.table.name!r}: one rank", table="user")
    return layout(request, request.ranks[0] if request.ranks else first)


def whole(request: LayoutRequest) -> Layout:
    """Breaks nothing."""
    return chosen(request, len(request.table.name))


def hashes_text(request: LayoutRequest) -> Layout:
    return chosen(request, hash(request.table.name))


def takes_turns(request: LayoutRequest) -> Layout:
    _made.append(request.table.name)
    return chosen(request, len(_made))


def asks_its_environment(request: LayoutRequest) -> Layout:
    return chosen(request, int(os.environ.get("RANK", "0")))


def takes_chances(request: LayoutRequest) -> Layout:
    return chosen(request, int(np.random.default_rng().integers(1 << 20)))


def drops_the_ranks_of_a_plan(request: LayoutRequest) -> Layout:
    return layout(request, 0)


def refuses_without_a_name(request: LayoutRequest) -> Layout:
    if request.ranks:
        raise InvalidArgumentError("no ranks, please")
    return layout(request, 0)


def says_another_kind(request: LayoutRequest) -> Layout:
    return layout(request, 0, "row_wise")


class TwoOwners(Layout):
    """Rank 0 stores the rows of other owners, too."""

    def partitions_of(self, rank: int) -> Any:
        return np.arange(4096) if rank == 0 else super().partitions_of(rank)


def gives_a_partition_to_two(request: LayoutRequest) -> Layout:
    size = request.shard_map.world_size
    return TwoOwners(np.arange(4096) % size, size, "broken")


class Elsewhere(Layout):
    """Claims to be replicated, but each rank only stores its own rows."""

    @property
    def digest(self) -> str:  # type: ignore[override]
        return "all alike"


def differs_behind_one_digest(request: LayoutRequest) -> Layout:
    _made.append(request.table.name)
    size = request.shard_map.world_size
    return Elsewhere(np.full(4096, len(_made) % size), size, "broken")


BREAKS: list[tuple[Callable[[LayoutRequest], Layout], str]] = [
    (hashes_text, "test_all_ranks_create_the_same_layout"),
    (asks_its_environment, "test_all_ranks_create_the_same_layout"),
    (takes_turns, "test_the_same_request_gives_the_same_layout"),
    (takes_chances, "test_the_same_request_gives_the_same_layout"),
    (drops_the_ranks_of_a_plan, "test_ranks_of_a_plan_own_the_rows_or_are_rejected_by_name"),
    (refuses_without_a_name, "test_ranks_of_a_plan_own_the_rows_or_are_rejected_by_name"),
    (says_another_kind, "test_a_layout_names_its_kind_and_its_ranks"),
    (gives_a_partition_to_two, "test_every_partition_of_every_block_has_one_owner"),
    (differs_behind_one_digest, "test_steps_equal_row_wise_bit_for_bit"),
]


def manager_of(kind: Callable[[LayoutRequest], Layout]) -> PluginManager:
    class Plugin:
        @hookimpl
        def sparring_register_sharding_kinds(self) -> list[ShardingKindDescriptor]:
            return [ShardingKindDescriptor(name="broken", api_version=API_VERSION, factory=kind)]

    manager = make_plugin_manager(entry_points=False)
    manager.load(PluginSource("broken", "broken-kind", "1.0", Plugin))
    return manager


def run(kind: Callable[[LayoutRequest], Layout], test: str, folder: Path) -> None:
    manager = manager_of(kind)
    given: dict[str, Any] = {
        "described": manager.sharding_kind("broken"),
        "kind": "broken",
        "plugin_manager": manager,
        "world_size": 2,
        "per_node": 1,
        "tmp_path": folder,
    }
    called = getattr(ShardingKindTests, test)
    names = called.__code__.co_varnames[1 : called.__code__.co_argcount]
    called(KIT, **{name: given[name] for name in names})


@pytest.mark.parametrize(("kind", "test"), BREAKS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_broken_kind_is_noticed(
    kind: Callable[[LayoutRequest], Layout], test: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError):
        run(kind, test, tmp_path)


def test_a_factory_that_other_processes_cannot_call_is_reported(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="must be a module-level function"):
        run(lambda request: layout(request, 0), "test_all_ranks_create_the_same_layout", tmp_path)


@pytest.mark.parametrize(
    "test", [name for name in dir(ShardingKindTests) if name.startswith("test_")]
)
def test_a_whole_kind_passes(test: str, tmp_path: Path) -> None:
    run(whole, test, tmp_path)


def test_no_test_may_be_removed() -> None:
    removed = type("Removed", (ShardingKindTests,), {"test_all_ranks_create_the_same_layout": None})
    (found,) = find_violations(removed, ShardingKindTests)
    assert "removes test_all_ranks_create_the_same_layout without a reason" in found
