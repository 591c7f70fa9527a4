"""Sharding kinds assign an owner to each partition; invalid plans are rejected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparring.contracts.descriptors import API_VERSION, ShardingKindDescriptor
from sparring.contracts.hookspecs import hookimpl
from sparring.contracts.ranks.layout import Layout, LayoutRequest, ShardingPlan, TableSharding
from sparring.contracts.ranks.shard_map import ShardMap
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import InvalidArgumentError, PluginError
from sparring.plugins.distributions import PluginSource
from sparring.plugins.registry import make_plugin_manager


def layout(
    kind: str,
    ranks: tuple[int, ...] = (),
    *,
    world_size: int = 4,
    per_node: int = 2,
    columns: int | None = None,
) -> Layout:
    table, shards = TableConfig("user", 4), ShardMap.balanced(world_size)
    factory = make_plugin_manager().sharding_kind(kind).factory
    return factory(LayoutRequest(table, ranks, shards, per_node, columns))


def owners(found: Layout) -> list[int]:
    ranks: list[int] = np.unique(found.owners).tolist()
    return ranks


def test_each_kind_assigns_partitions_to_its_ranks() -> None:
    assert layout("row_wise") == Layout(ShardMap.balanced(4).owners, 4)
    assert owners(layout("table_wise", (2,))) == [2]
    assert owners(layout("table_row_wise", (0, 1, 3))) == [0, 1, 3]
    assert layout("data_parallel").is_replicated
    assert len(layout("data_parallel").shard_of(1).partitions) == 4096
    assert len(layout("table_wise", (2,)).shard_of(1).partitions) == 0
    counts = np.bincount(layout("table_row_wise", (0, 1, 3)).owners)
    assert sorted(counts[[0, 1, 3]].tolist()) == [1365, 1365, 1366]


def test_a_kind_without_ranks_chooses_them() -> None:
    assert len(owners(layout("table_wise"))) == 1
    assert owners(layout("table_row_wise")) in ([0, 1], [2, 3])
    assert owners(layout("table_row_wise", world_size=3)) in ([0, 1], [2])
    assert owners(layout("table_row_wise", (0, 1, 2, 3))) == [0, 1, 2, 3]


def blocks(found: Layout) -> list[list[int]]:
    """Returns the ranks of each block of columns."""
    return [np.unique(each).tolist() for each in found.owners]


def test_kinds_that_divide_columns_use_the_ranks_of_blocks_in_order() -> None:
    made = layout("column_wise", (3, 1), columns=2)
    assert (made.columns, made.num_blocks, blocks(made)) == ((0, 2, 4), 2, [[3], [1]])
    assert made.block(0).partitions_of(3).tolist() == list(range(4096))
    assert len(made.partitions_of(1)) == 4096
    assert len(made.partitions_of(0)) == 0
    assert blocks(layout("column_wise", (3, 1, 0, 1))) == [[3], [1], [0], [1]]
    assert blocks(layout("table_column_wise", (3, 2), columns=2)) == [[3], [2]]
    made = layout("grid", (3, 2, 0, 1), columns=2)
    assert blocks(made) == [[2, 3], [0, 1]]
    assert made.owners[0, 0] == 3
    assert made.owners[0, -1] == 2, "ranges of rows in the order of ranks"


def test_kinds_that_divide_columns_choose_ranks_and_blocks() -> None:
    made = layout("column_wise")
    assert sorted(blocks(made)) == [[0], [1], [2], [3]]
    assert len(blocks(layout("column_wise", world_size=3))) == 2, "3 divide no dim of 4"
    assert sorted(blocks(layout("table_column_wise"))) in ([[0], [1]], [[2], [3]])
    assert sorted(blocks(layout("grid"))) == [[0, 1], [2, 3]]
    assert len(blocks(layout("column_wise", columns=4, world_size=2))) == 4


def test_blocks_with_the_same_owners_are_merged() -> None:
    alone = layout("column_wise", columns=2, world_size=1, per_node=1)
    assert (alone.columns, alone.num_blocks) == ((), 1)
    assert alone == Layout(ShardMap.balanced(1).owners, 1)
    assert layout("column_wise", (2, 2), columns=2) == layout("table_wise", (2,))
    made = {layout("column_wise", ranks, columns=2) for ranks in ((0, 1), (1, 0))}
    made |= {layout("column_wise", (0, 1, 1, 1)), layout("table_wise", (0,))}
    assert len(made) == 4


@pytest.mark.parametrize(
    ("kind", "ranks", "columns", "words"),
    [
        ("column_wise", (), 3, "dim 4, which is not divisible by 3 blocks .* 1, 2, 4"),
        ("grid", (), 8, "dim 4, which is not divisible by 8 blocks"),
        ("column_wise", (0, 1, 2), None, "not divisible by 3 blocks"),
        ("column_wise", (0, 1, 2, 3), 2, "4 ranks .*specify 2 ranks, one per block"),
        ("grid", (0, 1, 2), 2, "3 ranks .*specify a multiple of 2 ranks"),
        ("grid", (0, 0, 1, 1), 2, "has a rank twice in one block"),
        ("table_column_wise", (1, 2), 2, "2 nodes of 2 ranks. .*choose column_wise"),
        ("row_wise", (), 2, "does not split rows; found columns=2. Leave columns out"),
        ("table_wise", (0,), 2, "does not split rows"),
        ("table_row_wise", (), 2, "does not split rows"),
        ("data_parallel", (), 2, "does not split rows"),
    ],
)
def test_columns_that_cannot_be_divided_are_rejected(
    kind: str, ranks: tuple[int, ...], columns: int | None, words: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        layout(kind, ranks, columns=columns)


@pytest.mark.parametrize(
    ("owners_of", "columns", "words"),
    [
        (2, (0, 1, 4), "blocks of equal width"),
        (2, (1, 2, 3), "ascend from 0"),
        (2, (0,), "ascend from 0"),
        (2, ("0", 2, 4), "ascend from 0"),
        (3, (0, 2, 4), "2 blocks of columns need owners of shape"),
    ],
)
def test_layouts_with_invalid_blocks_of_columns_are_rejected(
    owners_of: int, columns: Any, words: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        Layout(np.zeros((owners_of, 4096), np.int32), 1, columns=columns)


@pytest.mark.parametrize("columns", [0, -1, 1.5, "2"])
def test_a_plan_has_a_number_of_blocks(columns: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="a number of blocks of at least 1"):
        TableSharding("column_wise", columns=columns)


def test_digests_distinguish_layouts() -> None:
    made = [layout("row_wise"), layout("table_wise", (1,)), layout("table_wise", (2,))]
    made += [layout("data_parallel"), layout("row_wise", world_size=3)]
    assert len({each.digest for each in made}) == len(made)
    # Only where rows are counts.
    assert layout("table_row_wise", (1,)) == layout("table_wise", (1,))


@pytest.mark.parametrize(
    ("plan", "error", "words"),
    [
        ({"user": "tabel_wise"}, PluginError, "did you mean 'table_wise'"),
        ({"user": TableSharding("table_wise", (1,))}, InvalidArgumentError, "rank 1.*ranks 0 to 0"),
        ({"user": 3}, InvalidArgumentError, "table 'user' must be the name of a kind"),
        (["user"], InvalidArgumentError, r"found list; for a file .* read_plan\(path\).sharding"),
        ([], InvalidArgumentError, "found list"),
    ],
)
def test_a_plan_is_rejected_when_the_container_is_created(
    plan: Any, error: Any, words: str
) -> None:
    with pytest.raises(error, match=words):
        StepContainer(plan=plan)


@pytest.mark.parametrize("ranks", [(-1,), (1, 1), ("0",)])
def test_ranks_of_a_plan_are_distinct_integers(ranks: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="distinct ranks of at least 0"):
        TableSharding("table_wise", ranks)


@pytest.mark.parametrize(
    ("kind", "ranks", "words"),
    [
        ("table_wise", (0, 1), "on one rank"),
        ("row_wise", (1,), "all 4 ranks"),
        ("data_parallel", (1,), "all 4 ranks"),
    ],
)
def test_kinds_reject_ranks_that_they_cannot_use(
    kind: str, ranks: tuple[int, ...], words: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        layout(kind, ranks)


def test_a_plan_for_an_undeclared_table_is_rejected_before_a_row_is_written() -> None:
    with StepContainer(plan=ShardingPlan({"usr": "table_wise"})) as container:
        container.declare(TableConfig("user", 2), StorageChoice("memory"))
        with pytest.raises(InvalidArgumentError, match="did you mean 'user'"):
            container.check_plan()
        with pytest.raises(InvalidArgumentError, match="'usr', which was not declared"):
            container.assign("user", [1], np.ones((1, 2)))


def test_a_plan_may_not_contradict_a_declaration() -> None:
    with StepContainer(plan={"user": "table_wise", "item": "data_parallel"}) as container:
        with pytest.raises(InvalidArgumentError, match="remove one of them"):
            container.declare(TableConfig("user", 2, placement="replicated"))
        container.declare(TableConfig("item", 2))
        container.declare(TableConfig("item", 2))  # once more
        assert container.tables["item"].is_replicated
        assert container.layout("item").kind == "data_parallel"


class _Plugin:
    @hookimpl
    def sparring_register_sharding_kinds(self) -> list[ShardingKindDescriptor]:
        return [
            ShardingKindDescriptor(name="thirds", api_version=API_VERSION, factory=_thirds),
            ShardingKindDescriptor(name="wrong", api_version=API_VERSION, factory=lambda _: None),  # type: ignore[arg-type,return-value]
        ]


def _thirds(request: LayoutRequest) -> Layout:
    """Rank 0 owns one partition of three."""
    owners = (np.arange(4096) % 3 > 0) * (request.shard_map.world_size - 1)
    return Layout(owners, request.shard_map.world_size, "thirds")


def test_plugins_register_kinds() -> None:
    manager = make_plugin_manager()
    manager.load(PluginSource("thirds", "some-kinds", "1.0", _Plugin))
    with StepContainer(plan={"a": "thirds", "b": "wrong"}, plugin_manager=manager) as container:
        container.declare(TableConfig("a", 2))
        assert container.layout("a").kind == "thirds"
        with pytest.raises(InvalidArgumentError, match="'wrong' must return a Layout of 1 ranks"):
            container.declare(TableConfig("b", 2))
