"""Nodes have the same number of consecutive ranks. Other nodes are rejected if a sharding kind needs
nodes."""

from __future__ import annotations

from contextlib import suppress

import pytest

from sparring.contracts.ranks.layout import ShardingPlan, TableSharding
from sparring.contracts.ranks.rendezvous import Membership
from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError
from sparring.plugins.registry import make_plugin_manager
from sparring.rendezvous.environment import EnvironmentOptions, read_membership
from sparring.sharding.layouts import Layouts
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

TABLE = TableConfig("user", 4)


class Place(ThreadRendezvous):
    """A rank that knows its node."""

    def __init__(self, member: Membership) -> None:
        super().__init__(member.world_size)
        self._member = member

    def membership(self) -> Membership:
        return self._member


def owners(member: Membership, sharding: TableSharding | str) -> set[int]:
    plan = ShardingPlan({"user": sharding})
    layouts = Layouts(plan, Place(member), lambda: make_plugin_manager(entry_points=False))
    return set(layouts.layout(TABLE).owners.tolist())


def torchrun(nodes: list[int]) -> list[Membership]:
    """Memberships as torchrun's agents assign them: the ranks of a node are consecutive."""
    places = [(local, size) for size in nodes for local in range(size)]
    return [
        read_membership(
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(places)),
                "LOCAL_RANK": str(local),
                "LOCAL_WORLD_SIZE": str(size),
            },
            EnvironmentOptions(),
        )
        for rank, (local, size) in enumerate(places)
    ]


@pytest.mark.parametrize("nodes", [[2, 2], [3, 3], [1, 1, 1], [4]], ids=str)
def test_a_table_is_on_one_of_torchruns_nodes(nodes: list[int]) -> None:
    found = [owners(each, "table_row_wise") for each in torchrun(nodes)]
    first = min(found[0])
    assert first % nodes[0] == 0
    assert found == [set(range(first, first + nodes[0]))] * sum(nodes)


@pytest.mark.parametrize("nodes", [[3, 1], [4, 2], [1, 2]], ids=str)
def test_uneven_nodes_are_rejected_if_a_kind_needs_even_ones(nodes: list[int]) -> None:
    refused = 0
    for place in torchrun(nodes):
        assert owners(place, "row_wise") == set(range(sum(nodes)))
        assert owners(place, TableSharding("table_row_wise", (0, 2))) == {0, 2}
        assert len(owners(place, "table_wise")) == 1
        with suppress(InvalidArgumentError):
            owners(place, "table_row_wise")
            continue
        refused += 1
        with pytest.raises(InvalidArgumentError, match="nodes must have the same number") as error:
            owners(place, "table_row_wise")
        assert error.value.details["table"] == "user"
        assert "TableSharding('table_row_wise', [0, 1])" in str(error.value)
    # One is enough: the others learn that it is gone, and ranks that see other nodes make other
    # layouts.
    assert refused


def test_ranks_of_a_node_that_are_not_consecutive_are_rejected() -> None:
    # As mpiexec places them with one node after the other.
    with pytest.raises(InvalidArgumentError, match="rank 2 of 4 is number 1 of 2 on its node"):
        owners(Membership(2, 4, local_rank=1, local_world_size=2), "table_row_wise")
