"""Saves and loads: one snapshot of all shards, for any number of shards, and from and for ranks."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import list_snapshots, open_snapshot
from sparring.errors import InvalidArgumentError, SnapshotError
from sparring_cli import verify_snapshot
from sparring_serve import (
    AsyncParameterClient,
    ClientConfig,
    ParameterClient,
    PushFailedError,
    ServingConfig,
    Token,
    open_parameter_server,
)
from sparring_serve.client.transport import Send
from sparring_serve.testing import FaultyTransport
from sparring_serve.testing.memory_servers import open_learning_server

from .conftest import IDS, TABLES, MakeShards, OneProcess, Shards, assert_same_rows, made_gradients


def train(shards: Shards, begin: int, end: int) -> None:
    with shards.client() as client:
        for seed in range(begin, end):
            client.push(made_gradients(seed), wait="applied")


SHORT = {(1, 2), (2, 2), (2, 3), (3, 1)}


@pytest.mark.parametrize(
    ("num_saving", "num_loading"),
    [
        pytest.param(saving, loading, marks=[] if (saving, loading) in SHORT else pytest.mark.long)
        for saving in (1, 2, 3)
        for loading in (1, 2, 3)
    ],
)
def test_a_snapshot_loads_into_any_number_of_shards_which_continue_with_its_bits(
    make_shards: MakeShards,
    one_process: OneProcess,
    tmp_path: Path,
    num_saving: int,
    num_loading: int,
) -> None:
    saving = make_shards(num_saving, folders=[str(tmp_path)])
    train(saving, 0, 3)
    with saving.client() as client:
        saved = client.save()
    assert saved.url == f"{tmp_path}/step-000000000003"
    assert saved.step == 3
    assert not verify_snapshot(open_snapshot(saved.url)).problems
    assert open_snapshot(saved.url).world_size == num_saving
    loading = make_shards(num_loading, folders=[str(tmp_path)])
    train(loading, 10, 11)
    with loading.client() as client:
        loaded = client.load("step-000000000003")
    assert loaded.rows == saved.rows
    train(loading, 3, 5)
    for seed in range(5):
        one_process.push(made_gradients(seed))
    assert_same_rows(loading, one_process.rows(IDS))
    assert loading.services["shard:0"].shard.steps == 5


def test_tokens_are_in_snapshots(make_shards: MakeShards, tmp_path: Path) -> None:
    shards = make_shards(2, folders=[str(tmp_path)])
    with shards.client() as client:
        token = client.push(made_gradients(0), wait="applied").token
        client.save("a")
        after = client.push(made_gradients(1), wait="applied").token
    for num_shards in (1, 2, 3):
        later = make_shards(num_shards, folders=[str(tmp_path)], start="newest")
        for each in later.services.values():
            each.shard.start()
        rows = later.rows(IDS)
        with later.client() as client:
            known = client.push(made_gradients(0), token=token, wait="applied").was_known
            assert known == tuple(range(num_shards))
            assert_same_rows(later, rows)
            assert client.push(made_gradients(1), token=after, wait="applied").was_known == ()
        assert_same_rows(later, shards.rows(IDS))


def test_a_push_that_is_partly_in_a_snapshot_is_rejected_by_other_shards(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    shards = make_shards(2, folders=[str(tmp_path)])
    with shards.client(lambda send: "cut" if send.address == "shard:1" else "") as client:
        client._session._description = shards.client().describe()
        with pytest.raises(PushFailedError):
            client.push(made_gradients(0), token=Token("a", 1), deadline_seconds=2)
    with shards.client() as client:
        client.save("a")
    whole = make_shards(2, folders=[str(tmp_path)])
    with whole.client() as client:  # the same shards each have their own
        client.load("a")
        assert client.push(made_gradients(0), token=Token("a", 1)).was_known == (0,)
    one = make_shards(1, folders=[str(tmp_path)])
    with one.client() as client:
        client.load("a")
        with pytest.raises(PushFailedError, match="push 1 of client a was applied in part"):
            client.push(made_gradients(0), token=Token("a", 1))


def test_ranks_load_a_snapshot_of_a_service_and_a_service_one_of_ranks(
    make_shards: MakeShards, one_process: OneProcess, tmp_path: Path
) -> None:
    shards = make_shards(2, folders=[str(tmp_path)])
    train(shards, 0, 3)
    with shards.client() as client:
        saved = client.save("of-service")
    one_process.container.load(saved.url)
    one_process._steps = dict.fromkeys(TABLES, 3)
    assert_same_rows(shards, one_process.rows(IDS))
    one_process.push(made_gradients(3))
    one_process.container.save(f"{tmp_path}/of-ranks")
    with shards.client() as client:
        client.load("of-ranks")
    assert_same_rows(shards, one_process.rows(IDS))
    train(shards, 4, 5)
    one_process.push(made_gradients(4))
    assert_same_rows(shards, one_process.rows(IDS))


def test_a_save_without_one_of_the_shards_is_rejected_and_names_it(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    shards = make_shards(3, folders=[str(tmp_path)])
    train(shards, 0, 1)
    shards.fault = lambda send: "cut" if send.address == "shard:2" else ""
    with shards.client() as client:
        refused = r"nothing was changed: shard 3 of 3 at shard:2 .*UNAVAILABLE connection refused"
        with pytest.raises(SnapshotError, match=refused):
            client.save("a")
        assert list_snapshots(str(tmp_path)) == []
        assert not list(tmp_path.iterdir())
        shards.fault = lambda _: ""
        client.save("a")


def test_a_shard_that_dies_during_a_save_fails_it_on_all_and_the_next_one_succeeds(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    shards = make_shards(3, folders=[str(tmp_path)])
    train(shards, 0, 1)
    asked = threading.Event()

    def goes_after_it_was_asked(send: Send) -> str:
        if send.address != "shard:2" or send.method != "SavePart":
            return ""
        is_gone = asked.is_set()
        asked.set()
        return "cut" if is_gone else ""

    shards.fault = goes_after_it_was_asked
    with shards.client() as client:
        with pytest.raises(SnapshotError, match=r"save of .*/a: shard 3 of 3 at shard:2"):
            client.save("a")
        assert list_snapshots(str(tmp_path)) == []
        shards.fault = lambda _: ""
        assert client.save("a").step == 1


def test_snapshots_in_other_folders_are_rejected(make_shards: MakeShards, tmp_path: Path) -> None:
    shards = make_shards(2, folders=[str(tmp_path / "ours")])
    with shards.client() as client:
        for call in (client.save, client.load):
            with pytest.raises(InvalidArgumentError, match="outside the folders"):
                call(str(tmp_path / "theirs" / "a"))
        with pytest.raises(SnapshotError, match=r"none"):
            client.load("none")
        number: Any = 7
        with pytest.raises(InvalidArgumentError, match="a name, a path or a URL, found 7"):
            client.save(number)
        assert client.save(tmp_path / "ours" / "a").url == str(tmp_path / "ours" / "a")


def test_a_server_that_cannot_start_names_the_key_and_the_snapshot(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    with make_shards(1, folders=[str(tmp_path)]).client() as client:
        client.save("a")
    other = {**TABLES, "user": {**TABLES["user"], "dim": 16}}
    shards = make_shards(1, folders=[str(tmp_path)], start="newest", tables=other)
    with pytest.raises(SnapshotError, match=r"parameters.start=newest, .*/a: .*dim 8 .*null"):
        shards.services["shard:0"].shard.start()


def test_pushes_during_a_save_are_applied_and_not_saved(
    make_shards: MakeShards, one_process: OneProcess, tmp_path: Path
) -> None:
    shards = make_shards(2, folders=[str(tmp_path)])
    train(shards, 0, 2)
    begun = threading.Event()
    service = shards.services["shard:1"]
    run = service.shard.begin_save

    def begin(*arguments: object) -> object:
        task = run(*arguments)
        begun.set()
        return task

    service.shard.begin_save = begin
    with shards.client() as client:
        saver = threading.Thread(target=client.save, args=["a"])
        saver.start()
        assert begun.wait(10)
        train(shards, 5, 9)
        saver.join()
        client.load("a")
    for seed in range(2):
        one_process.push(made_gradients(seed))
    found = shards.rows(IDS)
    # The first shard may be saved a push later: the pushes of the second are exact.
    from sparring_serve import ShardReplicas

    own = ShardReplicas(shards.map.shards).shard_of(IDS) == 1
    for name, rows in one_process.rows(IDS).items():
        assert np.array_equal(found[name][own], rows[own])


def test_a_shard_counts_its_pushes_exactly_if_some_arrive_while_the_save_begins(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    shards = make_shards(2, folders=[str(tmp_path)])
    train(shards, 0, 2)
    calls = []

    def push_before_the_second_call(send: Send) -> str:
        """The first call requests the number of pushes, the second one saves."""
        if send.method == "SavePart":
            calls.append(send.address)
            if len(calls) == 2:
                # The first shard must not include the pushes in its own part.
                while shards.services["shard:0"].shard._container.saves.running is None:
                    time.sleep(0.001)
                train(shards, 2, 5)
        return ""

    shards.fault = push_before_the_second_call
    with shards.client() as client:
        assert client.save("a").step == 2
        client.load("a")
    assert [each.shard.steps for each in shards.services.values()] == [2, 5]


@pytest.mark.parametrize("method", ["save", "load"])
def test_an_unreachable_shard_is_named_with_its_connection(tmp_path: Path, method: str) -> None:
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{bound.getsockname()[1]}"
        config = ServingConfig.model_validate(
            {
                "shards": [["127.0.0.1:0"], [nowhere]],
                "parameters": {"tables": TABLES, "start": None, "folders": [str(tmp_path)]},
            }
        )
        with open_parameter_server(config) as server:
            given = ClientConfig(deadline_seconds=8)
            with ParameterClient([[server.address], [nowhere]], given) as client:
                if method == "load":  # of an existing snapshot
                    with (
                        open_learning_server(tmp_path, TABLES, folders=[str(tmp_path)]) as other,
                        ParameterClient(other.address) as its,
                    ):
                        its.save("a")
                refused = f"nothing was changed: shard 2 of 2 at {nowhere} .*Connection refused"
                with pytest.raises(SnapshotError, match=refused):
                    getattr(client, method)("a", deadline_seconds=8)
            with ParameterClient([[nowhere], [server.address]], given) as client:
                refused = f"nothing was changed: shard 1: .*{nowhere}: .*Connection refused"
                with pytest.raises(SnapshotError, match=refused):
                    getattr(client, method)("a", deadline_seconds=8)


def test_a_restarting_shard_is_awaited(make_shards: MakeShards, tmp_path: Path) -> None:
    shards = make_shards(2, folders=[str(tmp_path)])
    train(shards, 0, 1)
    asked: list[Send] = []

    def comes_back(send: Send) -> str:
        if send.method != "SavePart" or send.address != "shard:1":
            return ""
        asked.append(send)
        return "" if asked[-1].waits or len(asked) > 2 else "cut"

    shards.fault = comes_back
    with shards.client() as client:
        assert client.save("a").step == 1
    assert [each.waits for each in asked] == [False, True, False]


def test_a_snapshot_with_more_tables_is_loaded_by_the_table_names_of_the_service(
    make_shards: MakeShards, one_process: OneProcess, tmp_path: Path
) -> None:
    both = make_shards(2, folders=[str(tmp_path)])
    train(both, 0, 3)
    with both.client() as client:
        token = client.push({"item": made_gradients(3)["item"]}, wait="applied").token
        client.save("both")
    one = make_shards(3, folders=[str(tmp_path)], tables={"item": TABLES["item"]})
    with one.client() as client:
        with pytest.raises(SnapshotError, match=r"not declared: user; .*load\(url, tables=…\)"):
            client.load("both")
        loaded = client.load("both", tables=["item"])
        assert set(loaded.rows) == {"item"}
        gradients = {"item": made_gradients(3)["item"]}
        assert client.push(gradients, token=token).was_known == (0, 1, 2)
        gradients = {"item": made_gradients(4)["item"]}
        assert client.push(gradients, wait="applied").step == (5, 5, 5)
        assert client.save().url.endswith("step-000000000005")
        found = client.pull({"item": IDS}).rows["item"]
    for seed in range(3):
        one_process.push(made_gradients(seed))
    for seed in range(3, 5):
        one_process.push({"item": made_gradients(seed)["item"]})
    assert np.array_equal(found, one_process.rows(IDS)["item"])


def test_other_tables_and_tokens_are_kept_if_one_table_is_loaded(
    make_shards: MakeShards, one_process: OneProcess, tmp_path: Path
) -> None:
    shards = make_shards(2, folders=[str(tmp_path)])
    train(shards, 0, 2)
    with shards.client() as client:
        client.save("a")
        token = client.push(made_gradients(2), wait="applied").token
        client.load("a", tables=("user",))
        assert client.push(made_gradients(2), token=token).was_known == (0, 1)
        with pytest.raises(SnapshotError, match="'usr'"):
            client.load("a", tables=["usr"])
        # Its method continues with the step count of its rows.
        client.push({"user": made_gradients(3)["user"]}, wait="applied")
    one_process.push(made_gradients(0))
    one_process.push(made_gradients(1))
    one_process.push({"item": made_gradients(2)["item"]})
    one_process.push({"user": made_gradients(3)["user"]})
    assert_same_rows(shards, one_process.rows(IDS))


def test_the_client_for_asyncio_loads_tables_by_their_names(
    make_shards: MakeShards, one_process: OneProcess, tmp_path: Path
) -> None:
    one_process.push(made_gradients(0))
    one_process.container.save(f"{tmp_path}/of-ranks")
    shards = make_shards(2, folders=[str(tmp_path)])
    asyncio.run(_load_for_asyncio(shards, "of-ranks", ["user", "item"]))
    assert_same_rows(shards, one_process.rows(IDS))


def test_a_save_after_a_table_was_added_is_the_newest_snapshot(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    saved = make_shards(1, folders=[str(tmp_path)], tables={"item": TABLES["item"]})
    with saved.client() as client:
        for seed in range(3):
            client.push({"item": made_gradients(seed)["item"]}, wait="applied")
        client.save("before")
    with make_shards(2, folders=[str(tmp_path)]).client() as client:
        client.load("before", tables=["item"])
        client.push(made_gradients(3), wait="applied")
        client.save("after")
    assert list_snapshots(str(tmp_path))[-1].endswith("after")


async def _load_for_asyncio(shards: Shards, name: str, tables: list[str]) -> None:
    transport = AsyncOf(FaultyTransport(shards.services))
    async with AsyncParameterClient(shards.map, transport=transport) as client:
        assert set((await client.load(name, tables=tables)).rows) == set(tables)


class AsyncOf:
    """A transport for asyncio, made from a synchronous one."""

    def __init__(self, transport: FaultyTransport) -> None:
        self._transport = transport

    async def exchange(self, sends: list[Send]) -> object:
        return self._transport.exchange(sends)

    async def pause(self, seconds: float) -> None:
        self._transport.pause(seconds)

    async def close(self) -> None:
        self._transport.close()
