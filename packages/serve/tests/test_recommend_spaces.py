"""A query by key is rejected if the rows of its table are not in the space of the compared vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparring.contracts import TableConfig
from sparring.errors import InvalidArgumentError
from sparring_serve import ClientConfig, LookupClient, LookupService, ShardPosition, ShardReplicas
from sparring_serve.testing import FaultyTransport, MemoryTables

library = pytest.importorskip("sparring_packed.library", reason="sparring-packed is not installed")
if not library.library_path().exists():
    pytest.skip("libsparring_packed.so is not built", allow_module_level=True)


def client_of(*names: str) -> LookupClient:
    tables = [TableConfig(name, 4) for name in names]
    rows: dict[str, dict[int, Any]] = {name: {1: np.ones(4), 2: np.ones(4)} for name in names}
    shards = ShardReplicas((("server:1",),))
    service = LookupService(MemoryTables(tables, rows), ShardPosition(shards, 0))
    transport = FaultyTransport({"server:1": service})
    return LookupClient(shards, ClientConfig(), transport=transport, clock=transport.clock)


@pytest.mark.parametrize(
    ("table", "of_queries"),
    [
        ("item.vectors", "user"),
        ("item.vectors", "item"),
        ("item", "user"),
        ("item", "item.vectors"),
    ],
)
def test_keys_of_inputs_are_rejected(table: str, of_queries: str) -> None:
    client = client_of("user", "item", "item.vectors")
    with pytest.raises(InvalidArgumentError, match=r"inputs of the model.* table 'item\.vectors'"):
        client.recommend(table, {of_queries: [1]}, 2)


@pytest.mark.parametrize(
    ("tables", "table", "of_queries"),
    [
        (("user", "item"), "item", "user"),
        (("user", "own.vectors"), "own.vectors", "user"),
        (("user", "item", "item.vectors"), "item.vectors", "item.vectors"),
        (("user", "item", "item.vectors"), "item", "item"),
        (
            ("user", "user.vectors", "item", "item.vectors"),
            "item.vectors",
            "user.vectors",
        ),
    ],
)
def test_keys_of_the_same_space_are_compared(
    tables: tuple[str, ...], table: str, of_queries: str
) -> None:
    found = client_of(*tables).recommend(table, {of_queries: [1]}, 2)
    assert found.keys.tolist() == [[1, 2]]


def test_vectors_are_compared_with_computed_vectors() -> None:
    found = client_of("user", "item", "item.vectors").recommend("item.vectors", np.ones((1, 4)), 2)
    assert found.scores.tolist() == [[4.0, 4.0]]
