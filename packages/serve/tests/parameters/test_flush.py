"""Flushes report failed queued pushes, also if an answer is lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Collection
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from sparring import StepContainer, StorageChoice, TableConfig
from sparring.adapter import parse_hyper, resolve_method
from sparring.contracts import MethodChoice
from sparring.errors import SparringError, StorageIOError
from sparring_serve import (
    AsyncParameterClient,
    LookupServer,
    ParameterClient,
    PushFailedError,
    ServingConfig,
    open_parameter_server,
)
from sparring_serve.client.transport import Send
from sparring_serve.parameters.push_failures import PushFailures
from sparring_serve.parameters.push_window import Token
from sparring_serve.parameters.service import ParameterService
from sparring_serve.testing.memory_servers import open_learning_server

from .conftest import IDS, MakeShards, OneProcess, made_gradients


def fail_pushes(service: ParameterService, numbers: Collection[int]) -> None:
    """Pushes of these numbers find a full disk."""
    apply = service.shard.apply

    def failing(token, pushed):
        if token.number in numbers:
            raise StorageIOError("the disk is full")
        return apply(token, pushed)

    service.shard.apply = failing


@pytest.mark.parametrize("fault", ["lost", "damaged"])
def test_a_failure_whose_answer_was_lost_is_reported_by_the_repeated_flush(
    make_shards: MakeShards, fault: str
) -> None:
    shards = make_shards(2)
    fail_pushes(shards.services["shard:1"], {1, 2})
    faults = [fault]

    def lose_the_first(send: Send) -> str:
        is_it = send.method == "Flush" and send.address == "shard:1"
        return faults.pop() if is_it and faults else ""

    with shards.client(lose_the_first) as client:
        for seed in range(3):
            client.push(made_gradients(seed))
        with pytest.raises(
            PushFailedError,
            match=r"flush: shard 2 at shard:1: .*push 1 was queued, but not applied: the disk is full; "
            r"1 later pushes failed, too; shards 1 succeeded.*call push with its gradients",
        ) as info:
            client.flush(deadline_seconds=60)
        assert not faults
        assert info.value.token == Token(client.name, 1)
        assert info.value.done == (0,)
        assert client.flush() == (3, 1)


def test_a_cancelled_flush_leaves_its_failure_to_the_next_one(
    make_shards: MakeShards,
) -> None:
    shards = make_shards(1)
    fail_pushes(shards.services["shard:0"], {1})
    down = {"Flush"}
    with shards.client(lambda send: "lost" if send.method in down else "") as client:
        client.push(made_gradients(0))
        with pytest.raises(PushFailedError, match=r"connection reset\. .*flush again$") as info:
            client.flush(deadline_seconds=2)
        assert info.value.token is None
        down.clear()
        with pytest.raises(PushFailedError, match="push 1 was queued"):
            client.flush()
        assert client.flush() == (0,)


def test_failures_after_a_reported_one_are_reported_by_the_next_flush(
    make_shards: MakeShards, one_process: OneProcess
) -> None:
    shards = make_shards(1)
    numbers = {1, 2}
    fail_pushes(shards.services["shard:0"], numbers)
    with shards.client() as client, shards.client() as other:
        client.push(made_gradients(0))
        with pytest.raises(PushFailedError) as info:
            client.flush()
        client.push(made_gradients(1))
        other.flush()
        with pytest.raises(PushFailedError, match="push 2 was queued"):
            client.flush()
        client.flush()
        numbers.clear()
        for seed in range(2):
            token = Token(client.name, seed + 1)
            assert seed or token == info.value.token
            client.push(made_gradients(seed), token=token, wait="applied")
            one_process.push(made_gradients(seed))
    for name, rows in shards.rows(IDS).items():
        assert np.array_equal(rows, one_process.rows(IDS)[name])


def test_a_push_that_was_finally_applied_is_not_a_failure(make_shards: MakeShards) -> None:
    shards = make_shards(1)
    numbers = {1}
    fail_pushes(shards.services["shard:0"], numbers)
    with shards.client() as client, shards.client() as other:
        client.push(made_gradients(0))
        other.flush()
        numbers.clear()
        client.push(made_gradients(0), token=Token(client.name, 1), wait="applied")
        assert client.flush() == (1,)


def test_failures_of_clients_that_never_flush_are_bounded() -> None:
    failures = PushFailures(2)
    for each in range(5):
        failures.add(Token(f"client-{each}", 1), "the disk is full")
    told = [failures.report(f"client-{each}", 0) for each in range(5)]
    assert [each is not None for each in told] == [False, False, False, True, True]


def test_a_push_that_was_resent_and_failed_again_is_one_failure() -> None:
    failures = PushFailures(2)
    for number in (1, 1, 2):
        failures.add(Token("a", number), "the disk is full")
    told = failures.report("a", 0)
    assert told is not None
    assert (told.push, told.num_more) == (1, 1)


def test_a_server_that_ends_resigns_before_calls_that_continue_for_long() -> None:
    tables = {"item": {"dim": 4, "update_method": "adagrad"}}
    config = ServingConfig.model_validate(
        {"parameters": {"tables": tables, "start": None}, "server": {"drain_seconds": 0}}
    )
    began, resigned, ended = threading.Event(), threading.Event(), threading.Event()

    def flush() -> None:
        began.set()
        ended.wait(60)

    with open_parameter_server(config, address="127.0.0.1:0") as server:
        server.service.tables.flush = flush
        server.changes.resign = resigned.set
        client = ParameterClient(server.address)
        calls = [
            threading.Thread(target=_flush, args=(client,), daemon=True),
            threading.Thread(target=server.close, daemon=True),
        ]
        calls[0].start()
        assert began.wait(30)
        calls[1].start()
        has_resigned = resigned.wait(30)
        ended.set()
        for each in calls:
            each.join(60)
        assert has_resigned


def _flush(client: ParameterClient) -> None:
    with suppress(SparringError):
        client.flush(deadline_seconds=5)


# -- programs that end without a flush -------------------------------------------------


@pytest.fixture
def full_disk(tmp_path: Path, closing: ExitStack) -> LookupServer:
    """A server that queues pushes and applies none."""
    tables = {"item": {"dim": 4, "update_method": "adagrad"}}
    server = closing.enter_context(open_learning_server(tmp_path, tables))
    server.service.tables.apply = Mock(side_effect=StorageIOError("the disk is full"))
    return server


PUSH = {"item": (np.arange(3), np.ones((3, 4), np.float32))}
NOT_APPLIED = "push 1 was queued, but not applied: the disk is full"


def test_closing_a_client_raises_failures_of_pushes_that_were_queued(
    full_disk: LookupServer,
) -> None:
    client = ParameterClient(full_disk.address)
    client.push(PUSH)
    with pytest.raises(PushFailedError, match=NOT_APPLIED):
        client.close()
    client.close()  # it is closed, and warns once
    with ParameterClient(full_disk.address) as told:
        told.push(PUSH)
        with pytest.raises(PushFailedError, match=NOT_APPLIED):
            told.flush()


def test_closing_an_asyncio_client_raises_failures_of_pushes_that_were_queued(
    full_disk: LookupServer,
) -> None:
    async def push_and_end() -> None:
        async with AsyncParameterClient(full_disk.address) as client:
            await client.push(PUSH)

    with pytest.raises(PushFailedError, match=NOT_APPLIED):
        asyncio.run(push_and_end())


def test_an_error_of_the_block_comes_before_failures_of_queued_pushes(
    full_disk: LookupServer, caplog: pytest.LogCaptureFixture
) -> None:
    def push_and_fail() -> None:
        with ParameterClient(full_disk.address) as client:
            client.push(PUSH)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        push_and_fail()
    assert NOT_APPLIED in caplog.text


def test_closing_the_container_of_a_training_raises_failures_of_queued_pushes(
    full_disk: LookupServer,
) -> None:
    options = {"target": full_disk.address, "role": "parameters", "wait": "queued"}
    container = StepContainer()
    container.declare(TableConfig("item", 4), StorageChoice("remote", options))
    container.set_state("item", np.zeros(4, np.float32), "adagrad")
    container.storage("item")
    container.resources.accumulate_by_key("item", *PUSH["item"])
    method = resolve_method("adagrad")
    container.apply_methods({"item": MethodChoice(method, parse_hyper(method, {}), 1)})
    with pytest.raises(PushFailedError, match=NOT_APPLIED):
        container.close()


DROPPED = """
import sys
import numpy as np
from sparring_serve import ParameterClient

def train(address):
    client = ParameterClient(address)
    client.push({"item": (np.arange(3), np.ones((3, 4), np.float32))})
    if len(sys.argv) > 2:
        client.close()

train(sys.argv[1])
print("trained")
"""


def test_a_program_that_drops_its_client_logs_failures_of_queued_pushes_when_it_ends(
    full_disk: LookupServer,
) -> None:
    command = [sys.executable, "-c", DROPPED, full_disk.address]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "trained\n"
    assert NOT_APPLIED in ended.stderr
    raised = subprocess.run(
        [*command, "close"], capture_output=True, text=True, timeout=60, check=False
    )
    assert raised.returncode == 1
    assert NOT_APPLIED in raised.stderr


def test_an_asyncio_program_that_drops_its_client_is_warned_when_it_ends(
    full_disk: LookupServer,
) -> None:
    program = (
        "import asyncio, sys\nimport numpy as np\nfrom sparring_serve import AsyncParameterClient\n"
        "async def train():\n"
        "    client = AsyncParameterClient(sys.argv[1])\n"
        "    await client.push({'item': (np.arange(3), np.ones((3, 4), np.float32))})\n"
        "asyncio.run(train())\n"
    )
    command = [sys.executable, "-c", program, full_disk.address]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "queued pushes without a later flush" in ended.stderr
