"""A query by key is rejected if the rows of its table are not in the space of the compared vectors."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from sparring.contracts import TableConfig
from sparring.errors import InvalidArgumentError
from sparring_serve import ClientConfig, LookupClient, LookupService, ShardPosition, ShardReplicas
from sparring_serve.testing import FaultyTransport, MemoryTables
from sparring_serve.testing.front_ends import Folder

from .conftest import Serve

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


TABLES = {TableConfig(name, 4): {1: np.ones(4), 2: np.ones(4)} for name in ("user", "item")}


def model(**described: Any) -> dict[str, bytes]:
    """Returns the files of a model."""
    text = json.dumps({"format": 1, **described}).rjust(300)
    return {"parameters": bytes(300), "preprocessing": text.encode()}


def test_keys_are_rejected_by_the_model_of_a_version_without_vectors(
    kind: str, open_servers: Serve, folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    folder.publish_rows(TABLES, 2, model=model(vectors=[]))
    server = open_servers(kind, folder)
    with LookupClient(server.address, ClientConfig(deadline_seconds=9.0)) as client:
        with pytest.raises(InvalidArgumentError, match=r"inputs, so .*; use `sparring recommend`"):
            client.recommend("item", {"user": [1]}, 2)
        # Similar rows of one table, and vectors of the caller.
        for queries in ({"item": [1]}, np.ones((1, 4))):
            assert client.recommend("item", queries, 2).keys.tolist() == [[1, 2]]
        for step, described in (
            (3, model(vectors=["item", "user"])),
            (4, model()),  # an earlier release published it
            (5, {}),
        ):
            folder.publish_rows(TABLES, step, model=described)
            assert server.refresh().is_new
            client.describe()
            caplog.clear()
            for _ in range(2):
                found = client.recommend("item", {"user": [1]}, 2)
                assert (found.keys.tolist(), found.version.step) == ([[1, 2]], step)
            told = [each for each in caplog.messages if "earlier release" in each]
            if step == 4:
                [message] = told
                assert f"version {found.version.hash}, step 4, of" in message
                assert message.endswith("or this one again to another folder")
            else:
                assert not told
