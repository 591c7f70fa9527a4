"""`ShardingKindTests`: tests every promise of a sharding kind.

    class TestMyKind(ShardingKindTests):
        @pytest.fixture
        def kind(self):
            return "my_kind"

The plugin that registers the kind must be installed, or be provided by the fixture `plugin_manager`.
The shape of `Layout.owners` may be ``(4096,)`` or, if columns are divided, ``(blocks, 4096)``.
"""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sparring import PluginManager, StepContainer, StorageChoice, Uniform, make_plugin_manager
from sparring.adapter import parse_hyper, resolve_method
from sparring.contracts import (
    NUM_PARTITIONS,
    Collective,
    Layout,
    LayoutRequest,
    MethodChoice,
    Reduction,
    ShardingKindDescriptor,
    ShardMap,
    TableConfig,
    TableSharding,
)
from sparring.errors import InvalidArgumentError
from sparring_testing.guard import find_violations
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

__all__ = ["ShardingKindTests"]

_DIM = 12  # has many divisors, so many numbers of column blocks are possible
_STEPS = 4
_KEYS = np.arange(-20, 20)
_WORLDS = [(1, 1), (2, 1), (2, 2), (3, 3), (4, 2), (8, 4)]
"""Pairs of a world size and a number of ranks per node."""


def _request(
    table: str, world_size: int, per_node: int = 1, ranks: tuple[int, ...] = ()
) -> LayoutRequest:
    shard_map = ShardMap.balanced(world_size)
    return LayoutRequest(TableConfig(table, _DIM), ranks, shard_map, per_node)


class ShardingKindTests:
    """Tests every promise of a sharding kind. A subclass must define the fixture `kind`."""

    @pytest.fixture
    def kind(self) -> str:
        """Required: name under which the kind is registered."""
        raise NotImplementedError(
            f"{type(self).__name__} must define the fixture kind: the name that the plugin registers"
        )

    @pytest.fixture
    def plugin_manager(self) -> PluginManager:
        """Plugin manager that finds the kind. The default contains the installed plugins."""
        return make_plugin_manager()

    @pytest.fixture
    def described(self, kind: str, plugin_manager: PluginManager) -> ShardingKindDescriptor:
        return plugin_manager.sharding_kind(kind)

    def test_no_standard_test_is_removed_or_overridden_without_a_reason(self) -> None:
        violations = find_violations(type(self), ShardingKindTests)
        assert not violations, "\n".join(violations)

    @pytest.mark.parametrize(("world_size", "per_node"), _WORLDS)
    def test_every_partition_of_every_block_has_one_owner(
        self, described: ShardingKindDescriptor, world_size: int, per_node: int
    ) -> None:
        layout = described.factory(_request("user", world_size, per_node))
        assert isinstance(layout, Layout)
        blocks = np.atleast_2d(layout.owners)
        assert blocks.ndim == 2
        assert blocks.shape[1] == NUM_PARTITIONS, "every partition needs an owner"
        assert _DIM % len(blocks) == 0, "all blocks of columns must have the same width"
        assert np.issubdtype(blocks.dtype, np.integer)
        assert blocks.min() >= 0
        assert blocks.max() < world_size
        kept = [layout.partitions_of(rank) for rank in range(world_size)]
        expected = [np.flatnonzero((blocks == rank).any(axis=0)) for rank in range(world_size)]
        for found, own in zip(kept, expected, strict=True):
            assert np.array_equal(found, own), "partitions_of and owners disagree"
        if len(blocks) == 1:
            assert sum(map(len, kept)) == NUM_PARTITIONS, "a partition has two owners"

    @pytest.mark.parametrize(("world_size", "per_node"), _WORLDS)
    def test_a_layout_names_its_kind_and_its_ranks(
        self, described: ShardingKindDescriptor, world_size: int, per_node: int
    ) -> None:
        layout = described.factory(_request("user", world_size, per_node))
        assert (layout.kind, layout.world_size) == (described.name, world_size)

    def test_the_same_request_gives_the_same_layout(
        self, described: ShardingKindDescriptor
    ) -> None:
        requests = [_request(f"table-{each}", 8, 4) for each in range(12)]
        first = [described.factory(each) for each in requests]
        # The result must not depend on earlier calls or on their order.
        again = [described.factory(each) for each in reversed(requests)][::-1]
        assert [each.digest for each in again] == [each.digest for each in first]
        for one, other in zip(first, again, strict=True):
            assert np.array_equal(one.owners, other.owners)
            assert one.is_replicated == other.is_replicated

    def test_all_ranks_create_the_same_layout(self, described: ShardingKindDescriptor) -> None:
        """A process with a different environment and hash seed creates the same layouts."""
        requests = [_request(f"table-{each}", 8, 4) for each in range(12)]
        try:
            sent = pickle.dumps((described.factory, requests))
        except (AttributeError, pickle.PicklingError) as error:
            pytest.fail(
                f"the factory must be a module-level function, so it can be pickled: {error}"
            )
        done = subprocess.run(
            [sys.executable, "-m", "sparring_testing.collectives.sharding_kind_process"],
            input=sent,
            capture_output=True,
            check=False,  # the assertion below shows the output
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "PYTHONHASHSEED": "7",
                "RANK": "6",
                "LOCAL_RANK": "2",
            },
            timeout=60,
        )
        assert done.returncode == 0, done.stderr.decode()
        expected = str([described.factory(each).digest for each in requests])
        assert done.stdout.decode().strip() == expected, "ranks would disagree on the layout"

    def test_ranks_of_a_plan_own_the_rows_or_are_rejected_by_name(
        self, described: ShardingKindDescriptor
    ) -> None:
        for ranks in _subsets(range(4)):
            layout = _layout_or_error(described, _request("user", 4, 2, ranks))
            if isinstance(layout, InvalidArgumentError):
                assert layout.details.get("table") == "user", "the error needs the detail `table`"
                assert "'user'" in str(layout), "the message must name the table"
                continue
            keepers = set(np.unique(layout.owners).tolist())
            if layout.is_replicated:
                keepers = set(range(4))
            assert keepers <= set(ranks), f"with ranks {ranks}, rows are on {sorted(keepers)}"

    @pytest.mark.parametrize("world_size", [1, 2, 3])
    def test_steps_equal_row_wise_bit_for_bit(
        self, kind: str, plugin_manager: PluginManager, world_size: int
    ) -> None:
        expected = _train_on_ranks("row_wise", world_size, plugin_manager)
        assert np.array_equal(_train_on_ranks(kind, world_size, plugin_manager), expected)

    def test_its_saves_load_as_row_wise_and_vice_versa(
        self, kind: str, plugin_manager: PluginManager, tmp_path: Path
    ) -> None:
        expected = _train_on_ranks("row_wise", 2, plugin_manager, more=_STEPS)
        for first, second in ((kind, "row_wise"), ("row_wise", kind)):
            url = str(tmp_path / f"from-{first}-{len(list(tmp_path.iterdir()))}")
            _train_on_ranks(first, 2, plugin_manager, url=url)
            found = _train_on_ranks(second, 2, plugin_manager, load=url, more=_STEPS)
            assert np.array_equal(found, expected), f"{first}, then {second}"


def _layout_or_error(
    described: ShardingKindDescriptor, request: LayoutRequest
) -> Layout | InvalidArgumentError:
    try:
        return described.factory(request)
    except InvalidArgumentError as error:
        return error


def _subsets(ranks: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for size in range(1, len(ranks) + 1):
        yield from itertools.combinations(ranks, size)


def _train_on_ranks(
    kind: str,
    world_size: int,
    manager: PluginManager,
    *,
    url: str = "",
    load: str = "",
    more: int = 0,
) -> npt.NDArray[np.float32]:
    """Trains one table on all ranks and returns the embeddings ``(40, 12)``, equal on every rank.

    Args:
        kind: sharding kind of the table.
        world_size: number of ranks, which are threads.
        manager: plugin manager that finds the kind.
        url: where to save the table at the end; empty to skip saving.
        load: snapshot to resume from; if empty, training starts with `_STEPS` steps.
        more: number of additional steps.
    """
    table = TableConfig("user", _DIM, initializer=Uniform(-1, 1), seed=5)
    method = resolve_method("adagrad")
    choices = {"user": MethodChoice(method, parse_hyper(method, {"lr": 0.125}), 1)}

    def body(collective: Collective) -> Any:
        with StepContainer(
            collective=collective,
            rendezvous=ThreadRendezvous(world_size),
            reduction=Reduction.SUM,
            plugin_manager=manager,
            plan={"user": TableSharding(kind)},
        ) as container:
            container.declare(table, StorageChoice("memory"))
            container.set_state("user", np.zeros(_DIM, np.float32), "adagrad")
            if load:
                container.load(load)
            for step in range(_STEPS if load else 0, _STEPS + more):
                random = np.random.default_rng((step, collective.rank))
                ids = random.integers(-20, 20, 9 + collective.rank)
                found = container.lookup("user", ids)
                # The sums of these gradients are exact in any order.
                gradients = random.integers(-64, 65, (len(ids), _DIM)) / np.float32(64)
                sums = np.zeros(found.rows.shape, np.float32)
                np.add.at(sums, found.inverse, gradients)
                assert found.shadow_id is not None
                container.resources.accumulate(found.shadow_id, sums)
                container.apply_methods(choices)
            if url:
                container.save(url)
            (found,) = container.lookup_all([("user", _KEYS)], is_registered=False)
            return found.rows[found.inverse].copy()

    held = run_ranks(world_size, body)
    for each in held[1:]:
        assert np.array_equal(each, held[0]), "ranks read different rows"
    rows: npt.NDArray[np.float32] = held[0]
    return rows
