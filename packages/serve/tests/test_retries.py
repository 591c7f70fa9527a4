"""Calls are repeated within their deadlines, and replicas that do not answer cost others no time."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from sparring.errors import DeadlineError
from sparring_serve import (
    AsyncLookupClient,
    ClientConfig,
    LookupClient,
    LookupReply,
    LookupServer,
    ParameterClient,
    ReplicasFailedError,
    ServingConfig,
    ShardReplicas,
    open_parameter_server,
)
from sparring_serve.client.circuit_breaker import CIRCUIT_SECONDS, CircuitBreaker, CircuitState
from sparring_serve.client.replicas import pauses
from sparring_serve.client.transport import PROBE_SECONDS
from sparring_serve.testing import MemoryTables
from sparring_serve.testing.front_ends import Folder
from sparring_serve.testing.memory_servers import ITEM, ROWS, open_memory_server
from sparring_testing.processes.deadlines import check_with_deadlines

from .proxies import Proxy

IDS = np.arange(100)


class SlowTables(MemoryTables):
    """Tables whose lookups take 2 ms, so that one thread answers 500 calls per second at most."""

    def lookup(self, *args: Any) -> Any:
        time.sleep(0.002)
        return super().lookup(*args)


Serve = Callable[..., LookupServer]


@pytest.fixture
def serve(closing: ExitStack) -> Serve:
    return lambda *given, **server: closing.enter_context(
        open_memory_server(*given, drain_seconds=0, **server)
    )


@pytest.fixture
def proxy(closing: ExitStack) -> Callable[[LookupServer], Proxy]:
    return lambda server: closing.enter_context(contextlib.closing(Proxy(server.port)))


def check(answer: LookupReply) -> None:
    assert np.array_equal(answer.rows["item"][:, 1], IDS)
    assert answer.is_complete


def test_all_pulls_of_100_threads_on_a_small_server_succeed_within_their_deadline(
    serve: Serve,
) -> None:
    server = serve(SlowTables([ITEM], ROWS), threads=1)
    barrier = threading.Barrier(100)

    with LookupClient(server.address, ClientConfig(deadline_seconds=60)) as client:

        def pull_some(_: int) -> None:
            barrier.wait()
            for _ in range(2):
                check(client.pull({"item": IDS}))

        with ThreadPoolExecutor(100) as threads:
            list(threads.map(pull_some, range(100)))


def test_all_pulls_of_100_tasks_on_a_small_server_succeed_within_their_deadline(
    serve: Serve,
) -> None:
    server = serve(SlowTables([ITEM], ROWS), threads=1)

    async def pull_all() -> list[LookupReply]:
        async with AsyncLookupClient(server.address, ClientConfig(deadline_seconds=60)) as client:
            return await asyncio.gather(*(client.pull({"item": IDS}) for _ in range(100)))

    for each in asyncio.run(pull_all()):
        check(each)


def test_overloaded_servers_are_not_reported_as_wrong_addresses(serve: Serve) -> None:
    entered, leave = threading.Event(), threading.Event()

    class StuckTables(MemoryTables):
        def lookup(self, *args: Any) -> Any:
            entered.set()
            leave.wait()
            return super().lookup(*args)

    server = serve(StuckTables([ITEM], ROWS), threads=1, max_bytes_in_flight=1 << 16)
    large = np.arange(4000)
    holders: list[threading.Thread] = []
    messages: list[str] = []
    with LookupClient(server.address, ClientConfig(deadline_seconds=60)) as client:
        client.describe()
        try:
            # One call occupies the thread; others fill the queue of the server.
            for _ in range(40):
                holders.append(threading.Thread(target=client.pull, args=({"item": large},)))
                holders[-1].start()
            assert entered.wait(60)
            time.sleep(0.3)

            def check(deadline: float) -> None:
                begin = time.monotonic()
                with pytest.raises(ReplicasFailedError) as caught:
                    client.pull({"item": IDS}, deadline_seconds=deadline)
                assert time.monotonic() - begin > 0.6 * deadline
                messages.append(str(caught.value))

            check_with_deadlines(check, (0.5, 5.0))
        finally:
            leave.set()
            for each in holders:
                each.join()
    message = messages[-1]
    assert "RESOURCE_EXHAUSTED" in message
    assert "server.threads" in message
    assert "client.deadline_seconds" in message
    assert "address" not in message


@pytest.mark.parametrize("on_failure", ["raise", "flag"])
def test_a_pull_whose_connection_is_reset_is_repeated(
    kind: str, folder: Folder, open_servers: Any, on_failure: str, closing: ExitStack
) -> None:
    server = open_servers(kind, folder)
    before = Proxy(int(server.address.rpartition(":")[2]))
    closing.callback(before.close)
    config = ClientConfig(deadline_seconds=10, on_failure=on_failure)
    with LookupClient(before.address, config) as client:
        check(client.pull({"item": IDS}))
        before.reset_answers(1)
        check(client.pull({"item": IDS}))
    assert before.num_connections == 2


def test_a_pull_of_asyncio_whose_connection_is_reset_is_repeated(
    serve: Serve, proxy: Callable[[LookupServer], Proxy]
) -> None:
    before = proxy(serve())

    async def pull_twice() -> None:
        async with AsyncLookupClient(before.address, ClientConfig(deadline_seconds=60)) as client:
            check(await client.pull({"item": IDS}))
            before.reset_answers(1)
            check(await client.pull({"item": IDS}))

    asyncio.run(pull_twice())
    assert before.num_connections == 2


def test_a_push_whose_answer_is_lost_with_its_connection_is_applied_once(
    tmp_path: Any, proxy: Callable[[LookupServer], Proxy]
) -> None:
    tables = {
        "item": {"dim": 4, "update_method": "sgd", "hyper": {"lr": 1.0}, "initializer": "zeros"}
    }
    config = ServingConfig.model_validate(
        {"parameters": {"tables": tables, "folders": [str(tmp_path / "saved")]}}
    )
    with open_parameter_server(config, address="127.0.0.1:0") as server:
        before = proxy(server)
        with ParameterClient(before.address) as client:
            ones = np.ones((len(IDS), 4), np.float32)
            client.push({"item": (IDS, ones)}, wait="applied", deadline_seconds=60)
            before.reset_answers(2)
            pushed = client.push({"item": (IDS, ones)}, wait="applied", deadline_seconds=60)
            rows = client.pull({"item": IDS}, deadline_seconds=60).rows["item"]
    assert before.num_connections == 3
    assert pushed.was_known == (0,)
    assert pushed.step == (2,)
    assert np.array_equal(rows, -2 * ones)


class DelayedTables(MemoryTables):
    """Tables whose lookups take `delay` seconds."""

    delay = 0.0

    def lookup(self, *args: Any) -> Any:
        time.sleep(self.delay)
        return super().lookup(*args)


class HungShard:
    """Two shards, of which the second is behind a proxy."""

    def __init__(self, serve: Serve, proxy: Callable[[LookupServer], Proxy]) -> None:
        self.tables = DelayedTables([ITEM], ROWS)
        servers = [serve(shard=0, shards=2), serve(self.tables, shard=1, shards=2)]
        self.proxy = proxy(servers[1])
        self.map = ShardReplicas(((servers[0].address,), (self.proxy.address,)), number=0)
        self.of_second = self.map.shard_of(IDS) == 1


@pytest.mark.alone
def test_a_hung_shard_costs_one_deadline_and_is_retried_every_100_ms(
    serve: Serve, proxy: Callable[[LookupServer], Proxy]
) -> None:
    hung = HungShard(serve, proxy)
    deadline = 1.0
    with LookupClient(
        hung.map, ClientConfig(deadline_seconds=deadline, on_failure="flag")
    ) as client:
        check(client.pull({"item": IDS}, deadline_seconds=60))
        hung.proxy.hang()

        def timed() -> float:
            begin = time.monotonic()
            answer = client.pull({"item": IDS})
            seconds = time.monotonic() - begin
            assert np.array_equal(~answer.answered["item"], hung.of_second)
            assert np.array_equal(answer.rows["item"][~hung.of_second, 1], IDS[~hung.of_second])
            return seconds

        assert 0.8 * deadline < timed() < 1.2 * deadline
        begin = time.monotonic()
        later = [timed() for _ in range(200)]
        # Calls that check whether the shard answers again wait for 50 ms.
        assert max(later) < 0.5 * deadline
        assert np.median(later) < 0.04
        num_probes = sum(each >= PROBE_SECONDS for each in later)
        assert num_probes <= (time.monotonic() - begin) / CIRCUIT_SECONDS + 1

        hung.proxy.resume()
        begin = time.monotonic()
        while not client.pull({"item": IDS}).is_complete:
            assert time.monotonic() - begin < 5
        # A free machine takes 0.1 s; this one may be busy.
        assert time.monotonic() - begin < 0.6


@pytest.mark.alone
def test_a_hung_shard_raises_soon_with_asyncio_too(
    serve: Serve, proxy: Callable[[LookupServer], Proxy]
) -> None:
    hung = HungShard(serve, proxy)

    async def pull_often() -> list[float]:
        config = ClientConfig(deadline_seconds=1.0)
        async with AsyncLookupClient(hung.map, config) as client:
            check(await client.pull({"item": IDS}, deadline_seconds=60))
            hung.proxy.hang()
            seconds = []
            for _ in range(200):
                begin = time.monotonic()
                with pytest.raises(DeadlineError, match="shard 2: no replica replied"):
                    await client.pull({"item": IDS})
                seconds.append(time.monotonic() - begin)
            hung.proxy.resume()
            begin = time.monotonic()
            while True:
                try:
                    check(await client.pull({"item": IDS}))
                    break
                except DeadlineError:
                    assert time.monotonic() - begin < 5
            seconds.append(time.monotonic() - begin)
            return seconds

    first, *later, recovery = asyncio.run(pull_often())
    assert 0.8 < first < 1.2
    assert max(later) < 0.5
    assert np.median(later) < 0.04
    assert recovery < 0.6


def test_a_circuit_closes_for_answers_that_come_later_than_a_caller_waits(
    serve: Serve, proxy: Callable[[LookupServer], Proxy]
) -> None:
    hung = HungShard(serve, proxy)
    config = ClientConfig(deadline_seconds=1.0, on_failure="flag")

    def is_over(answer: LookupReply, begin: float) -> bool:
        assert time.monotonic() - begin < 60
        return answer.is_complete

    with LookupClient(hung.map, config) as client:
        check(client.pull({"item": IDS}, deadline_seconds=60))
        hung.proxy.hang()
        assert not client.pull({"item": IDS}).is_complete
        hung.tables.delay = 4 * PROBE_SECONDS
        hung.proxy.resume()
        begin = time.monotonic()
        while not is_over(client.pull({"item": IDS}), begin):
            time.sleep(0.01)

    async def pull_until_over() -> None:
        async with AsyncLookupClient(hung.map, config) as client:
            check(await client.pull({"item": IDS}, deadline_seconds=60))
            hung.proxy.hang()
            assert not (await client.pull({"item": IDS})).is_complete
            hung.proxy.resume()
            begin = time.monotonic()
            while not is_over(await client.pull({"item": IDS}), begin):
                await asyncio.sleep(0.01)

    asyncio.run(pull_until_over())


def test_a_circuit_opens_only_for_replicas_that_answer_nothing() -> None:
    breaker = CircuitBreaker()
    breaker.note_answer("a:1", now=0.5)
    breaker.note_deadline(
        "a:1", began=0.0, seconds=1.0
    )  # slow, but another call was answered meanwhile
    assert breaker.state("a:1", 1.0, 1.0) is CircuitState.CLOSED
    breaker.note_deadline("a:1", began=1.0, seconds=1.0)
    assert breaker.state("a:1", 2.0, 1.0) is CircuitState.OPEN
    # Other calls are not affected, nor are calls with much longer deadlines.
    assert breaker.state("b:1", 2.0, 1.0) is CircuitState.CLOSED
    assert breaker.state("a:1", 2.0, 10.0) is CircuitState.CLOSED
    now = 2.0
    passed = 0
    for _ in range(1000):
        now += 0.001
        passed += breaker.state("a:1", now, 1.0) is CircuitState.HALF_OPEN
    assert passed in (9, 10)
    breaker.note_answer("a:1", now)
    assert breaker.state("a:1", now, 1.0) is CircuitState.CLOSED


def test_pauses_grow_to_100_ms_and_differ_between_clients() -> None:
    drawn = pauses()
    seconds = [next(drawn) for _ in range(50)]
    assert 0.005 <= seconds[0] <= 0.01
    assert all(0.05 <= each <= 0.1 for each in seconds[5:])
    assert len(set(seconds)) == 50
