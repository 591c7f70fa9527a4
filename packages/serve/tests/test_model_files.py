"""A client reads parameters and preprocessing in the version of its rows, from both servers."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import numpy as np
import pytest

import sparring_packed
from sparring_serve import (
    AsyncLookupClient,
    ClientConfig,
    LookupClient,
    LookupService,
    ShardPosition,
    ShardReplicas,
    VersionGoneError,
)
from sparring_serve.backend_tables import BackendTables
from sparring_serve.client.failures import ReplicasFailedError
from sparring_serve.client.model_steps import ModelFiles, read_file
from sparring_serve.client.session import Session
from sparring_serve.client.transport import Outcome
from sparring_serve.metrics import ServingMetrics
from sparring_serve.model_parts import read_model
from sparring_serve.parameters.shard import ParameterShard
from sparring_serve.status import Status, StatusError
from sparring_serve.tables.packed import open_packed_tables
from sparring_serve.testing.front_ends import ITEM, ONE_SHARD, Folder, FrontEnd, call, make_config
from sparring_serve.testing.memory_tables import MemoryTables
from sparring_serve.wire.fields import encode
from sparring_serve.wire.messages import (
    SERVICE,
    DescribeReply,
    ModelFileMessage,
    ReadModelReply,
    ReadModelRequest,
    VersionMessage,
)

from .conftest import Serve

CONFIG = ClientConfig(deadline_seconds=9)


def model_of(step: int, num_elements: int = 3) -> dict[str, bytes]:
    weights = np.full(num_elements, step, np.float32)
    return {
        "parameters": sparring_packed.encode_parameters({"top.weight": weights}),
        "preprocessing": json.dumps({"step": step}).rjust(256).encode(),
    }


@pytest.fixture
def server(serve: Serve, folder: Folder) -> FrontEnd:
    folder.publish(2, base=1, model=model_of(2, 600_000))  # in three parts
    return serve()


def test_a_client_reads_the_model_of_each_kept_version(server: FrontEnd, folder: Folder) -> None:
    with LookupClient(server.address, CONFIG) as client:
        second = client.model()
        assert second.version == client.pull({"item": [7]}).version
        assert np.array_equal(second.parameters["top.weight"], np.full(600_000, 2, np.float32))
        assert second.preprocessing == {"step": 2}
        folder.publish(3, model=model_of(3))
        call(server.address, f"{SERVICE}/Refresh")
        assert client.model().preprocessing == {"step": 3}
        again = client.model(version=second.version.hash)
        assert again.version == second.version
        assert again.parameters["top.weight"][0] == 2
        with pytest.raises(VersionGoneError, match="request the newest version"):
            client.model(version="a" * 32)
        folder.publish(4)
        call(server.address, f"{SERVICE}/Refresh")
        rows_only = client.model()
        assert rows_only.version.step == 4
        assert (rows_only.parameters, rows_only.preprocessing) == ({}, {})


def test_an_asyncio_client_reads_the_same_model(server: FrontEnd) -> None:
    async def read() -> ModelFiles:
        async with AsyncLookupClient(server.address, CONFIG) as client:
            return await client.model()

    found = asyncio.run(read())
    assert (found.version.step, found.preprocessing) == (2, {"step": 2})
    assert found.parameters["top.weight"].tolist() == [2] * 600_000


def test_a_version_can_be_read_before_a_refresh_has_completed(folder: Folder) -> None:
    tables = open_packed_tables(make_config(folder), ShardPosition(ONE_SHARD))
    folder.publish(2, model=model_of(2))
    tables._packed.refresh()  # another replica may already have returned the version to clients
    newest = tables._packed.version.hash
    assert newest not in [each.hash for each in tables.versions()]
    assert tables.scan("item", b"", 9, newest).version.step == 2
    part = tables.read_model("preprocessing", 0, 9, newest)
    assert (part.version.step, len(part.content)) == (2, 9)
    tables.close()


def test_rows_and_models_are_of_one_version_while_versions_change(
    server: FrontEnd, folder: Folder
) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def publish() -> None:
        try:
            for step in range(3, 9):
                folder.publish(step, model=model_of(step))
                assert call(server.address, f"{SERVICE}/Refresh")[0] == "OK"
        except BaseException as error:
            failures.append(error)
        stop.set()

    publisher = threading.Thread(target=publish)
    publisher.start()
    seen: set[int] = set()
    with LookupClient(server.address, CONFIG) as client:
        while not stop.is_set():
            model = client.model()
            try:
                rows = client.pull({"item": [7]}, version=model.version.hash)
            except VersionGoneError:
                continue  # none of both, instead of a mixture
            found = (
                int(model.parameters["top.weight"][0]),
                model.preprocessing["step"],
                int(rows.rows["item"][0, 0]) if model.version.step > 2 else 2,
            )
            assert found == (model.version.step,) * 3
            seen.add(model.version.step)
    publisher.join()
    assert not failures
    assert len(seen) > 1


@pytest.mark.parametrize("tables", [BackendTables, ParameterShard])
def test_tables_that_are_not_published_have_no_model(tables: Any) -> None:
    class Tables(MemoryTables):
        read_model = tables.read_model

    service = LookupService(Tables([ITEM], {}), ShardPosition(ShardReplicas((("127.0.0.1:1",),))))
    with pytest.raises(
        StatusError, match="the service has no files of a model, because"
    ) as refused:
        read_model(service, encode(ReadModelRequest("parameters")), 5.0)
    assert refused.value.status is Status.INVALID_ARGUMENT
    with pytest.raises(StatusError, match="must have a deadline"):
        read_model(service, encode(ReadModelRequest()), float("inf"))


def test_a_damaged_transfer_is_rejected() -> None:
    file = ModelFileMessage("parameters", 4, "0" * 32)
    session = Session(ShardReplicas((("127.0.0.1:1",),)), CONFIG, ServingMetrics())
    steps = read_file(session, file, "a" * 32, session.deadline(5))
    next(steps)  # the description
    version = VersionMessage("", 1, "a" * 32)
    description = DescribeReply((), (version,), max_ids=9, max_bytes=9, max_deadline_seconds=9.0)
    steps.send([Outcome(encode(description))])
    part = ReadModelReply((file,), b"four", version)
    with pytest.raises(ReplicasFailedError, match="was received with another hash than 0000"):
        steps.send([Outcome(encode(part))])
