"""The sharding kinds of core pass the conformance kit."""

from __future__ import annotations

import pytest

from sparring.plugins.registry import make_plugin_manager
from sparring_testing import ShardingKindTests

KINDS = [
    each.name
    for each in make_plugin_manager(entry_points=False).descriptors()
    if each.kind == "sharding_kinds"
]


QUICK = {"table_row_wise", "data_parallel", "grid"}
"""Kinds that differ most. The others are variants of these."""


class TestKinds(ShardingKindTests):
    @pytest.fixture(
        params=[
            pytest.param(each, marks=[] if each in QUICK else pytest.mark.slow) for each in KINDS
        ]
    )
    def kind(self, request: pytest.FixtureRequest) -> str:
        name: str = request.param
        return name


def test_there_are_kinds() -> None:
    assert {"row_wise", "table_wise", "table_row_wise", "data_parallel"} <= set(KINDS)
