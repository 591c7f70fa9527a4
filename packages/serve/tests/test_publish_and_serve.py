"""Snapshots of a run are published, served from mapped files, and requested, also by processes.

The file is long because all of it starts from one run that publishes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import SaveOptions, StepContainer, StorageChoice, TableConfig
from sparring.adapter import initial_rows
from sparring.errors import (
    DeadlineError,
    InvalidArgumentError,
    SnapshotDamagedError,
    SnapshotError,
    UnknownTableError,
)
from sparring_cli.application import main
from sparring_serve import (
    ClientConfig,
    LookupClient,
    LookupServer,
    ReplicasFailedError,
    RowStatus,
    ServerConfig,
    ServingConfig,
    ShardPosition,
    ShardReplicas,
)
from sparring_serve.client.circuit_breaker import CIRCUIT_SECONDS
from sparring_serve.publishing import version_list
from sparring_serve.publishing.publisher import PublisherOptions, publish_newest
from sparring_serve.tables.contract import VersionGoneError
from sparring_serve.wire.fields import decode, encode
from sparring_serve.wire.messages import Missing, PullReply, PullRequest, RowDtype, TableIds

pytest.importorskip("sparring_packed")

from contextlib import ExitStack

from sparring_packed import read_manifest
from sparring_serve.tables.packed import open_packed_tables
from sparring_serve.testing.front_ends import FrontEnd, open_front_end, read_metrics
from sparring_serve.testing.serve_process import ServeProcess
from sparring_testing.faults.damaged_file import flip_byte

from .conftest import NATIVE, Serve

ITEM, USER = TableConfig("item", 4, seed=3), TableConfig("user", 8)
KEYS = np.arange(500, dtype=np.int64)


class Run:
    """A run that saves its tables.

    Every element of a row of step s is s, except one, which is the key.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.url, self.out = str(folder / "runs"), str(folder / "served")
        self.container = StepContainer()
        for table in (ITEM, USER):
            self.container.declare(table, StorageChoice("memory"))
        self.step = 0

    def save(
        self, keys: np.ndarray = KEYS, erased: Sequence[int] = (), *, is_delta: bool = False
    ) -> None:
        self.step += 1
        for table in (ITEM, USER):
            rows = np.full((len(keys), table.dim), self.step, np.float32)
            rows[:, 1] = keys
            self.container.assign(table.name, keys, rows)
            if len(erased):
                self.container.storage(table.name).erase(np.array(erased, np.int64))
        base = f"{self.url}/step-{self.step - 1:03d}" if is_delta else None
        self.container.counters.steps = self.step
        options = SaveOptions(is_base=True)
        self.container.save(f"{self.url}/step-{self.step:03d}", base=base, options=options)

    def publish(self, *, full_every: int = 16, keep: int = 3, **quantize: str) -> Any:
        return publish_newest(self.url, self.out, PublisherOptions(quantize, full_every, keep))

    def save_and_publish(self, *save: Any, is_delta: bool = False, **publish: Any) -> Any:
        self.save(*save, is_delta=is_delta)
        return self.publish(**publish)

    @property
    def served(self) -> str:
        return self.out

    def config(self, **server: Any) -> ServingConfig:
        return ServingConfig(
            snapshots=self.out, server=ServerConfig(**{"poll_seconds": 3600, **server})
        )


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.container.close()


LONG = ClientConfig(deadline_seconds=9.0)
ONE = ShardPosition(ShardReplicas((("127.0.0.1:1",),)))


def serve_here(run: Run, position: ShardPosition = ONE, **server: Any) -> LookupServer:
    """Starts a server in Python, for tests of its objects."""
    config = run.config(**server)
    return LookupServer(open_packed_tables(config, position), config, position, "127.0.0.1:0")


@pytest.fixture
def serve(kind: str, run: Run) -> Callable[..., FrontEnd]:
    """Starts servers of one kind over the published snapshots of `run`."""
    return lambda position=ONE, **server: open_front_end(kind, run, position, **server)


@contextmanager
def two_shards(serve: Serve) -> Iterator[tuple[LookupClient, tuple[FrontEnd, FrontEnd]]]:
    """Serves the published snapshots with two shards, and opens a client of them."""
    shards = ShardReplicas((("127.0.0.1:1",), ("127.0.0.1:2",)))
    with (
        serve(ShardPosition(shards, 0)) as first,
        serve(ShardPosition(shards, 1)) as second,
        LookupClient([[first.address], [second.address]], LONG) as client,
    ):
        yield client, (first, second)


def check(rows: np.ndarray, keys: np.ndarray, step: int) -> None:
    assert np.array_equal(rows[:, 1], keys.astype(np.float32))
    assert (np.delete(rows, 1, axis=1) == step).all()


def test_a_save_of_a_run_is_served_bit_for_bit(run: Run, serve: Serve) -> None:
    published = run.save_and_publish()
    assert not published.is_delta
    ids = np.array([7, -1, 499, 500, 7, -(2**63)])
    with serve() as server, LookupClient(server.address, LONG) as client:
        answer = client.pull({"item": ids, "user": ids})
    for table in ("item", "user"):
        trained = run.container.lookup(table, ids)
        expected = np.asarray(trained.rows)[np.asarray(trained.inverse)]
        assert np.array_equal(answer.rows[table], expected)
        assert answer.found[table].tolist() == [True, False, True, False, True, False]
    assert answer.version is not None
    assert (answer.version.hash, answer.version.step) == (
        published.written.hash,
        published.written.step,
    )
    assert answer.age_seconds < 600


def test_a_delta_is_loaded_while_the_server_answers(run: Run, serve: Serve) -> None:
    run.save_and_publish()
    with serve() as server, LookupClient(server.address, LONG) as client:
        old = client.pull({"item": KEYS}).versions[0].hash
        assert run.save_and_publish(KEYS[100:200], [0, 1], is_delta=True).is_delta
        assert server.refresh().is_new
        answer = client.pull({"item": KEYS})
        check(answer.rows["item"][100:200], KEYS[100:200], 2)
        check(answer.rows["item"][200:], KEYS[200:], 1)
        assert answer.found["item"].tolist() == [False, False] + [True] * 498
        # The previous version is kept, and can be requested.
        before = client.pull({"item": KEYS}, version=old)
        check(before.rows["item"], KEYS, 1)
        assert before.versions[0].hash == old
        counted = read_metrics(server)
        assert (counted["layers"], counted["version_step"]) == (2, 2)


def test_a_damaged_delta_is_rejected_and_the_next_full_snapshot_is_served(
    run: Run, serve: Serve
) -> None:
    run.save_and_publish()
    with serve() as server, LookupClient(server.address, LONG) as client:
        run.save_and_publish(KEYS[:9], is_delta=True)
        # The last bytes of a file are of rows.
        [path] = Path(run.out).glob("step-002/*rows.item.*")
        flip_byte(path, -1)
        assert "damaged" in server.refresh().refused
        check(client.pull({"item": KEYS}).rows["item"], KEYS, 1)
        assert read_metrics(server)['refreshes_total{result="refused"}'] == 1
        assert not run.save_and_publish().is_delta
        assert server.refresh().is_new
        check(client.pull({"item": KEYS}).rows["item"], KEYS, 3)


def test_pulls_see_one_version_while_versions_arrive(run: Run, serve: Serve) -> None:
    run.save_and_publish()
    with serve() as server, LookupClient(server.address, LONG) as client:
        seen, failures, done = [], [], threading.Event()

        def ask() -> None:
            while not done.is_set():
                try:
                    answer = client.pull({"item": KEYS, "user": KEYS[:50]})
                    steps = {int(answer.rows["item"][0, 0]), int(answer.rows["user"][0, 0])}
                    assert len(steps) == 1
                    check(answer.rows["item"], KEYS, *steps)
                    check(answer.rows["user"], KEYS[:50], *steps)
                    seen.extend(steps)
                except BaseException as error:
                    failures.append(error)
                    return

        asking = [threading.Thread(target=ask) for _ in range(2)]
        for each in asking:
            each.start()
        for _ in range(6):
            run.save_and_publish(is_delta=True, full_every=3)
            assert server.refresh().is_new
        while not failures and 7 not in seen:
            time.sleep(0.01)
        done.set()
        for each in asking:
            each.join()
    assert failures == []
    assert set(seen) >= {7}


def test_int8_rows_are_sent_as_stored(run: Run, serve: Serve) -> None:
    error = run.save_and_publish(item="int8").written.relative_error
    assert 0 < error["item"] < 0.01
    assert error["user"] == 0
    with serve() as server:
        wide = ClientConfig(deadline_seconds=9.0, row_dtype="float32")
        with LookupClient(server.address, wide) as client:
            stored = client.pull({"item": KEYS}).rows["item"]
            described = {each.name: each.dtype for each in client.describe().shards[0].tables}
            assert described == {"item": "int8", "user": "float32"}
        packed = ClientConfig(deadline_seconds=9.0, row_dtype="int8")
        with LookupClient(server.address, packed) as client:
            # Stored in this dtype, rows are bit-identical; rows of other tables are rounded.
            assert np.array_equal(client.pull({"item": KEYS}).rows["item"], stored)
            both = client.pull({"item": KEYS, "user": KEYS})
            assert np.allclose(both.rows["user"][:, 1], KEYS, atol=2)
            assert not np.array_equal(both.rows["user"][:, 1], KEYS)
        with LookupClient(server.address, LONG) as client:  # auto
            assert np.array_equal(client.pull({"item": KEYS}).rows["item"], stored)
            both = client.pull({"item": KEYS, "user": KEYS})
            assert np.array_equal(both.rows["user"][:, 1], KEYS)


@pytest.mark.parametrize("dtype", [RowDtype.FLOAT32, RowDtype.INT8])
def test_rows_are_read_into_the_reply(
    run: Run, dtype: RowDtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save_and_publish(**({"item": "int8", "user": "int8"} if dtype == RowDtype.INT8 else {}))
    ids = np.append(KEYS, [-5, 2**40])
    tables = (TableIds("user", ids[:9].tobytes()), TableIds("item", ids.tobytes()))
    monkeypatch.setattr("sparring_serve.service.IN_PLACE_BYTES", 0)
    with serve_here(run) as server:
        service = server.service
        service.clock = lambda: 2e9
        requests = [
            encode(PullRequest(asked, dtype, missing))
            for asked in (tables, (TableIds("item"), tables[0]), (), tables[1:])
            for missing in (Missing.INITIAL, Missing.ZERO)
        ]
        with monkeypatch.context() as patched:
            patched.setattr("sparring_serve.service.encode_rows", None)  # copies are not made
            patched.setattr("sparring_serve.service.as_bytes", None)
            in_place = [service.pull(each, 1.0) for each in requests]
        lookup = service.tables.lookup
        monkeypatch.setattr(service.tables, "lookup", lambda *given: lookup(*given[:4]))
        copied = [decode(PullReply, service.pull(each, 1.0)) for each in requests]
        assert [replace(decode(PullReply, each), padding=b"") for each in in_place] == copied


def test_shards_map_only_their_partitions(run: Run, serve: Serve) -> None:
    run.save_and_publish()
    with two_shards(serve) as (sharded, servers):
        check(sharded.pull({"item": KEYS}).rows["item"], KEYS, 1)
        with (
            LookupClient(servers[0].address, ClientConfig(deadline_seconds=1.0)) as client,
            pytest.raises(ReplicasFailedError, match=r"shard 1: no replica replied .127.0.0.1:1"),
        ):
            # The client loads the map of the server, which has other addresses.
            client.pull({"item": KEYS})


def test_a_scan_returns_each_row_of_one_version_once_over_shards(run: Run, serve: Serve) -> None:
    run.save_and_publish()
    with two_shards(serve) as (client, servers):
        chunks = client.scan("item", chunk_rows=64)
        seen = [next(chunks)]
        # Newer versions arrive meanwhile; the scan continues with the version of its beginning.
        assert run.save_and_publish(KEYS[:50], [60], is_delta=True).is_delta
        for server in servers:
            assert server.refresh().is_new
        seen += chunks
        assert max(len(keys) for keys, _ in seen) <= 64
        keys, rows = (np.concatenate(each) for each in zip(*seen, strict=True))
        assert sorted(keys.tolist()) == KEYS.tolist()
        check(rows, keys, 1)
        client.describe()
        newest = {
            int(key): row for part in client.scan("item") for key, row in zip(*part, strict=True)
        }
        assert sorted(newest) == [key for key in KEYS.tolist() if key != 60]
        assert newest[7][0] == 2
        begun = client.scan("item", chunk_rows=64)
        next(begun)
        for _ in range(2):
            run.save_and_publish()
            for server in servers:
                assert server.refresh().is_new
        with pytest.raises(VersionGoneError, match="is no longer kept; start again"):
            list(begun)
        with pytest.raises(InvalidArgumentError, match="chunk_rows must be a whole number"):
            next(client.scan("item", chunk_rows=0))
        with pytest.raises(UnknownTableError, match="'itm' is not served"):
            next(client.scan("itm"))


def test_recommendations_are_from_all_shards_of_packed_files(run: Run, serve: Serve) -> None:
    run.save_and_publish(item="int8")
    axis = np.array([[0, 1, 0, 0], [0, -1, 0, 0]], np.float32)
    with two_shards(serve) as (client, servers):
        found = client.recommend("item", axis, 3, exclude=[[499], []])
        # The element with the key decides.
        assert found.keys.tolist() == [[498, 497, 496], [0, 1, 2]]
        assert run.save_and_publish(KEYS[-2:], [498], is_delta=True, item="int8").is_delta
        for server in servers:
            assert server.refresh().is_new
        client.describe()
        assert client.recommend("item", axis[:1], 3).keys.tolist() == [[499, 497, 496]]


def test_a_pinned_version_is_kept(run: Run) -> None:
    run.save_and_publish()
    run.save_and_publish()
    with serve_here(run, pin="step-001") as server, LookupClient(server.address, LONG) as client:
        check(client.pull({"item": KEYS}).rows["item"], KEYS, 1)
    with pytest.raises(ValueError, match="must be the name of a folder"):
        serve_here(run, pin="../runs")


def test_a_folder_without_a_version_names_the_command(run: Run) -> None:
    with pytest.raises(SnapshotError, match=r"sparring publish RUN .*/served"):
        serve_here(run)


def test_published_snapshots_are_removed_when_newer_ones_arrive(run: Run) -> None:
    run.save_and_publish(keep=2)
    assert run.publish() is None
    kinds, removed = [], []
    for _ in range(5):
        published = run.save_and_publish(KEYS[:9], is_delta=True, full_every=3, keep=2)
        kinds.append(published.is_delta)
        removed += published.removed
        names = sorted(
            each.name for each in Path(run.out).iterdir() if not each.name.startswith(".")
        )
        assert f"step-{run.step:03d}" in names
        for path in (Path(run.out, each, file) for each in names for file in ("manifest.json", "")):
            os.utime(path, ns=(0, 0))  # new ones are not remembered
        with serve_here(run) as server:
            assert server.service.tables.versions()[0].hash == published.written.hash
    assert kinds == [True, True, False, True, True]
    # Each version with its base, the newest first.
    assert removed == ["step-003", "step-002", "step-001"]
    assert set() < {Path(each).name for each in version_list._manifests} <= set(names)


def test_a_full_snapshot_is_due_when_deltas_have_grown(run: Run) -> None:
    options = PublisherOptions({}, full_every=9, max_delta_share=0.25)
    run.save()
    publish_newest(run.url, run.out, options)
    kinds = []
    # 2 tables of 500 rows: 100 and 104 changed or erased rows in each, which exceeds a quarter.
    for erased in ((), range(4), (), ()):
        run.save(KEYS[100:200], erased=list(erased), is_delta=True)
        published = publish_newest(run.url, run.out, options)
        assert published is not None
        kinds.append(published.is_delta)
    assert kinds == [True, True, False, True]
    with serve_here(run) as server, LookupClient(server.address, LONG) as client:
        answer = client.pull({"item": KEYS})
        check(answer.rows["item"][100:200], KEYS[100:200], 5)
        assert answer.found["item"].tolist() == [False] * 4 + [True] * 496


def test_wrong_requests_to_publish_are_rejected(run: Run) -> None:
    with pytest.raises(SnapshotError, match="is neither a snapshot"):
        run.publish()
    run.save()
    with pytest.raises(UnknownTableError, match=r"table 'itm', .* use one of item, user"):
        run.publish(itm="int8")
    with pytest.raises(InvalidArgumentError, match="cannot be stored as 'int7'"):
        run.publish(item="int7")
    with pytest.raises(InvalidArgumentError, match="is a file, expected a folder"):
        publish_newest(run.url, __file__, PublisherOptions({}))
    for wrong in ({"full_every": 0}, {"full_every": 99}, {"keep": 1}):
        with pytest.raises(InvalidArgumentError, match="must be"):
            run.publish(**wrong)  # type: ignore[arg-type]
    for share in (-0.1, float("nan")):
        with pytest.raises(InvalidArgumentError, match="max_delta_share must be a number"):
            PublisherOptions({}, max_delta_share=share)


def test_a_damaged_snapshot_is_not_published(run: Run) -> None:
    run.save()
    [path] = Path(run.url).glob("step-001/*rows*item*")
    flip_byte(path, 1000)
    with pytest.raises(SnapshotDamagedError):
        run.publish()
    assert [each for each in Path(run.out).iterdir() if not each.name.startswith(".")] == []


def test_the_commands_report_their_results(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.save()
    publish = ["publish", run.url, "--output", run.out]
    assert main([*publish, "--quantize", "int8", "--quantize", "user=fp32", "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["is_delta"], line["tables"]["item"]["rows"]) == (False, 500)
    assert line["tables"]["item"]["bytes"] < line["tables"]["user"]["bytes"]
    assert main(publish) == 0
    assert "already contains the newest snapshot" in capsys.readouterr().err
    assert main([*publish, "--quantize", "item=int8"]) == 0
    assert main([*publish, "--quantize", "item="]) == 2
    assert "must be TABLE=DTYPE" in capsys.readouterr().err
    with serve_here(run) as server:
        assert main(["lookup", server.address, "item", "7", "-1", "--json"]) == 0
        line = json.loads(capsys.readouterr().out)
        assert line["found"] == [True, False]
        assert line["version"] == server.service.tables.versions()[0].hash
        assert np.allclose(line["rows"][0], [1, 7, 1, 1], atol=0.05)
        assert main(["lookup", server.address, "item", "-1"]) == 3
        assert "-1 (no row): " in capsys.readouterr().out
        assert main(["lookup", server.address, "itm", "1"]) == 3
        assert "did you mean 'item'" in capsys.readouterr().err


# -- real processes --------------------------------------------------------------------------


StartReplica = Callable[..., ServeProcess]


@pytest.fixture
def start_replica(kind: str, run: Run, tmp_path: Path, closing: ExitStack) -> StartReplica:
    """Starts servers of one kind."""
    run.save_and_publish()
    config = tmp_path / "serving.yaml"
    options = f"{{poll_seconds: 0.05, threads: 2, front_end: {kind}}}"
    config.write_text(f"snapshots: {run.out}\nserver: {options}\n")
    return lambda *options: closing.enter_context(ServeProcess(config, *options))


# Python's servers take seconds to start again.
KINDS_OF_PROCESSES = pytest.mark.parametrize(
    "kind", [NATIVE, pytest.param("python", marks=pytest.mark.long)]
)


@KINDS_OF_PROCESSES
def test_a_killed_or_stopped_replica_is_not_noticed(start_replica: StartReplica) -> None:
    replicas = [start_replica(), start_replica()]
    assert all("item (500 rows)" in each.ready for each in replicas)
    addresses = [each.address for each in replicas]
    patient = ClientConfig(deadline_seconds=5.0)
    with LookupClient(addresses, patient) as client:
        for number in (0, 1):
            check(client.pull({"item": KEYS}).rows["item"], KEYS, 1)
            # If it is called first, its connection breaks, or it never answers.
            os.kill(replicas[number].process.pid, signal.SIGSTOP)
            check(client.pull({"item": KEYS}).rows["item"], KEYS, 1)
            replicas[number].end(signal.SIGKILL)
            for _ in range(20):
                check(client.pull({"item": KEYS}).rows["item"], KEYS, 1)
            if number == 0:
                replicas[0].start()
                with LookupClient(replicas[0].address, patient) as probe:
                    probe.pull({"item": [1]})


@KINDS_OF_PROCESSES
def test_a_shard_without_replicas_is_reported_within_the_deadline(
    start_replica: StartReplica,
) -> None:
    """Clients raise an error, flag the rows, or return stale or initial rows, as configured."""
    replica = start_replica()
    short = {"deadline_seconds": 2.0}
    with (
        LookupClient(replica.address, ClientConfig(**short)) as raising,
        LookupClient(replica.address, ClientConfig(**short, on_failure="flag")) as flagging,
        LookupClient(
            replica.address, ClientConfig(**short, on_failure="stale_or_initial")
        ) as using_old,
    ):
        for client in (raising, flagging):
            client.pull({"item": KEYS}, deadline_seconds=9.0)
        using_old.pull({"item": KEYS[:400]}, deadline_seconds=9.0)
        os.kill(replica.process.pid, signal.SIGSTOP)
        os.waitpid(replica.process.pid, os.WUNTRACED)  # until all of its threads have stopped
        begin = time.monotonic()
        with pytest.raises(DeadlineError, match="shard 1: no replica replied"):
            raising.pull({"item": KEYS})
        assert time.monotonic() - begin < 10  # and not the minutes of a connection
        check_stale_or_initial(using_old)
        replica.end(signal.SIGKILL)
        time.sleep(CIRCUIT_SECONDS)  # until a call is retried
        with pytest.raises(ReplicasFailedError, match="UNAVAILABLE"):
            raising.pull({"item": KEYS})
        answer = flagging.pull({"item": KEYS})
        assert np.isnan(answer.rows["item"]).all()
        assert not answer.answered["item"].any()
        check_stale_or_initial(using_old)
        replica.start()
        for client in (flagging, using_old):
            begin = time.monotonic()
            while not client.pull({"item": KEYS}).is_complete:
                assert time.monotonic() - begin < 30


def check_stale_or_initial(client: LookupClient) -> None:
    """Checks the rows of a client that has pulled 400 keys of `item` and none of `user`."""
    unseen = np.array([-1, 499])
    begin = time.monotonic()
    answer = client.pull({"item": KEYS[:400], "user": unseen})
    assert time.monotonic() - begin < 10
    is_stale = answer.status["item"] == RowStatus.STALE
    assert is_stale.sum() > 390  # in 100,000 slots, a few have two keys
    check(answer.rows["item"][is_stale], KEYS[:400][is_stale], 1)
    assert (answer.stale_seconds["item"][is_stale] >= 0).all()
    assert (answer.status["user"] == RowStatus.INITIAL).all()
    assert np.array_equal(answer.rows["user"], initial_rows(unseen, USER))


def test_a_server_stops_on_sigterm_and_loads_newer_versions_by_itself(
    run: Run, start_replica: StartReplica
) -> None:
    run.save_and_publish(KEYS[:9], is_delta=True)
    # Two processes on one port.
    replica = start_replica("--workers", "2")
    assert "item (at most 509 rows)" in replica.ready
    with LookupClient(replica.address, LONG) as client:
        client.pull({"item": KEYS})
        run.save_and_publish()
        begin = time.monotonic()
        while client.pull({"item": KEYS}).rows["item"][0, 0] != 3:
            assert time.monotonic() - begin < 30
    assert replica.end(signal.SIGTERM) == 0


def test_publishing_continues_until_sigterm(run: Run) -> None:
    command = [sys.executable, "-m", "sparring", "publish", run.url, "--output", run.out]
    command += ["--watch", "--json", "--poll-seconds", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        for step in (1, 2):
            run.save()
            line = json.loads(watching.stdout.readline())
            assert line["url"].endswith(f"step-{step:03d}")
        watching.send_signal(signal.SIGTERM)
        assert watching.wait(timeout=60) == 0


def test_another_dtype_publishes_the_newest_snapshot_again(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """As `publish --watch` that is restarted with another `--quantize`."""
    run.save()
    run.save(KEYS[:9], is_delta=True)
    names, dtypes = [], []
    for quantize in ({}, {"item": "int8"}, {}, {"item": "fp16"}, {"item": "int8"}):
        published = run.publish(keep=9, **quantize)
        if published is None:
            continue
        assert not published.is_delta
        names.append(published.written.url.rpartition("/")[2])
        with serve_here(run) as server, LookupClient(server.address, LONG) as client:
            assert server.service.tables.versions()[0].hash == published.written.hash
            assert client.pull({"item": KEYS}).found["item"].all()
        dtypes.append(read_manifest(published.written.url).tables[0].dtype)
    assert names == ["step-002", "step-002-002", "step-002-003", "step-002-004"]
    assert dtypes == ["fp32", "int8", "fp16", "int8"]
    assert "published with table 'item' as fp16, not int8" in caplog.text
    assert "restart them" in caplog.text
    with serve_here(run) as server:
        again = run.publish(keep=9, user="bf16")
        assert "open tables are item (dim 4, int8), user (dim 8, fp32); close" in (
            server.refresher.refresh().refused
        )
    assert [each.dtype for each in read_manifest(again.written.url).tables] == ["int8", "bf16"]
    # Deltas of the run continue over the last one.
    assert run.save_and_publish(KEYS[:9], is_delta=True, item="int8").is_delta


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--shard", "2/8"], "the configuration has 1 shards; list the replicas of 8"),
        (["--shard", "0/1"], "must be a shard from 1 to the number of shards"),
        (["--replica", "2"], "shard 1 has 1 replicas under `shards`; add its address there"),
        (["server.adress=a:1"], "did you mean address"),
        (["server.address=a"], "must be host:port"),
        (["shards=[[]]"], "the address of at least one replica per shard"),
        (["--role", "reader"], "must be inference or parameters, found 'reader'"),
        (
            ["parameters={tables: {item: {dim: 4}}}"],
            "serving.yaml --role parameters, or sparring serve",
        ),
        (["shards=[[a:1],[b:1]]"], "specify the shard of this server, for example --shard 1/2"),
        (["snapshots=https://me:secret@host/a"], "must not contain a password"),
    ],
)
def test_wrong_servers_are_rejected(
    run: Run, tmp_path: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "serving.yaml"
    config.write_text(f"snapshots: {run.out}\n")
    assert main(["serve", str(config), *options]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert said in shown
    assert "secret" not in shown


@pytest.mark.parametrize(("replica", "address"), [("1", "a:1"), ("2", "b:2")])
def test_a_server_listens_on_the_address_of_its_replica(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replica: str, address: str
) -> None:
    config = tmp_path / "serving.yaml"
    config.write_text(f"snapshots: {run.out}\nshards: [[a:1, b:2]]\n")
    opened = []
    monkeypatch.setattr(
        "sparring_serve.cli.serve._run", lambda *arguments: opened.append(arguments[3])
    )
    assert main(["serve", str(config), "server.front_end=python", "--replica", replica]) == 0
    assert opened == [address]


def test_a_serving_process_keeps_its_pages() -> None:
    program = (
        "import resource\n"
        "from sparring_serve.server.heap import keep_freed_memory\n"
        "def faults():\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    for _ in range(50): bytearray(1 << 20)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "before = faults(); assert keep_freed_memory(); faults(); after = faults()\n"
        "assert after * 10 < before, (before, after)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_a_newer_version_is_warmed_up_with_recently_requested_ids(run: Run, serve: Serve) -> None:
    run.save_and_publish()
    with (
        serve(verify="open", warm_up_seconds=60) as server,
        LookupClient(server.address, LONG) as client,
    ):
        for _ in range(3):
            client.pull({"item": KEYS[:40], "user": KEYS[:7]})
        assert not server.refresh().is_new
        assert "warm_up_ids" not in read_metrics(server)
        run.save_and_publish()
        assert server.refresh().is_new
        gauges = read_metrics(server)
        assert gauges["warm_up_ids"] == 47
        assert gauges["warm_up_bytes"] > 0
        assert 0 < gauges["warm_up_seconds"] < 60
    with serve(warm_up_seconds=0) as server, LookupClient(server.address, LONG) as client:
        client.pull({"item": KEYS[:40]})
        run.save_and_publish()
        assert server.refresh().is_new
        assert "warm_up_ids" not in read_metrics(server)


def test_serving_snapshots_are_published_to_a_url_and_served_from_it(
    run: Run, tmp_path: Path
) -> None:
    run.out = f"memory://{tmp_path.name}/served"
    copies = tmp_path / "copies"
    run.save_and_publish()
    with (
        serve_here(run, cache=copies) as server,
        LookupClient(server.address, LONG) as client,
    ):
        check(client.pull({"item": KEYS}).rows["item"], KEYS, 1)
        assert run.save_and_publish(KEYS[:100], is_delta=True).is_delta
        assert server.refresher.refresh().is_new
        check(client.pull({"item": KEYS[:100]}).rows["item"], KEYS[:100], 2)
        for _ in range(3):
            run.save_and_publish(keep=2)
            server.refresher.refresh()
        check(client.pull({"item": KEYS}).rows["item"], KEYS, 5)
    assert {each.name for each in copies.glob("*/step-*")} == {"step-004", "step-005"}
    with (
        serve_here(run, cache=copies, pin="step-004") as server,
        LookupClient(server.address, LONG) as client,
    ):
        check(client.pull({"item": KEYS}).rows["item"], KEYS, 4)
    with pytest.raises(InvalidArgumentError, match=r"server\.cache"):
        serve_here(run)
