"""A killed shard has all pushes that it acknowledged; lost pushes are reported."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
import yaml

from sparring.adapter import erase_from_snapshots
from sparring.errors import SnapshotError, StorageIOError
from sparring_serve import (
    ParameterClient,
    PushFailedError,
    ServingConfig,
    ShardRestartedError,
    open_parameter_server,
)
from sparring_serve.parameters.push_log import PushLog
from sparring_serve.parameters.push_log_files import Base
from sparring_serve.server.lookup_server import LookupServer
from sparring_serve.testing.serve_process import ServeProcess
from sparring_testing.faults.damaged_file import flip_byte
from sparring_testing.processes.waiting import free_ports

from .conftest import IDS, TABLES, OneProcess, made_gradients


class Service:
    """Shards over gRPC in this process; `kill` loses everything that is not in a file."""

    def __init__(self, folder: Path, num_shards: int = 1, **parameters: Any) -> None:
        self.folder = folder
        self.ports = free_ports(num_shards)
        addresses = [f"127.0.0.1:{port}" for port in self.ports]
        given = {"tables": TABLES, "folders": [str(folder / "saved")], **parameters}
        self.config = ServingConfig.model_validate(
            {"shards": [[each] for each in addresses], "parameters": given}
        )
        self.servers: list[LookupServer] = [self.open(each) for each in range(num_shards)]

    def open(self, shard: int) -> LookupServer:
        return open_parameter_server(self.config, shard=shard)

    def restart(self, shard: int = 0, *, change: Any = lambda folder: None) -> None:
        """Restarts a server with the files that a kill now would leave."""
        log = self.config.parameters.push_log_folder
        copy = log.with_suffix(".copy")
        if log.exists():
            shutil.copytree(log, copy, dirs_exist_ok=True)
        self.servers[shard].close()
        if log.exists():
            stem = f"shard-{shard + 1:04d}"
            for each in log.glob(f"{stem}*"):
                each.unlink()
            for each in copy.glob(f"{stem}*"):
                shutil.copy(each, log)
            shutil.rmtree(copy)
        change(log)
        self.servers[shard] = self.open(shard)

    def client(self) -> ParameterClient:
        return ParameterClient(self.config.shard_map)

    def close(self) -> None:
        for each in self.servers:
            each.close()


@pytest.fixture
def make_service(tmp_path: Path, closing: ExitStack) -> Any:
    return lambda *num_shards, **parameters: closing.enter_context(
        contextlib.closing(Service(tmp_path, *num_shards, **parameters))
    )


def assert_same_rows(client: ParameterClient, expected: OneProcess) -> None:
    found = client.pull(dict.fromkeys(TABLES, IDS), deadline_seconds=30).rows
    for name, rows in expected.rows(IDS).items():
        assert np.array_equal(found[name], rows), name


@pytest.mark.parametrize("form", ["{}/saved", "saved", "link/", "file://{}/saved"])
def test_a_killed_shard_resumes_from_its_log_and_no_client_notices(
    make_service: Any,
    one_process: OneProcess,
    form: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("saved").mkdir()
    Path("link").symlink_to("saved")
    service = make_service(2, folders=[form.format(tmp_path)])
    with service.client() as client:
        for seed in range(6):
            client.push(made_gradients(seed), deadline_seconds=60)
            one_process.push(made_gradients(seed))
            if seed == 1:
                client.save("a", deadline_seconds=60)
            if seed in (0, 3):
                service.restart(1)
        assert client.flush() == (6, 6)
        assert_same_rows(client, one_process)
        before = [each.changes.shard.incarnation for each in service.servers]
        service.restart(1)
        assert [each.changes.shard.incarnation for each in service.servers] == before
        client.save("b", deadline_seconds=60)


def test_a_server_that_restarts_continues_with_an_older_snapshot_that_was_loaded(
    make_service: Any, one_process: OneProcess
) -> None:
    service = make_service(2)
    with service.client() as client:
        for seed in range(4):
            client.push(made_gradients(seed), deadline_seconds=60)
            if seed < 2:
                one_process.push(made_gradients(seed))
            if seed in (1, 3):
                client.save(f"before-{seed}", deadline_seconds=60)
        client.load("before-1", deadline_seconds=60)
        for number, seed in enumerate((4, 5)):
            client.push(made_gradients(seed), deadline_seconds=60)
            one_process.push(made_gradients(seed))
            service.restart(number)
            service.restart(number)
            assert_same_rows(client, one_process)
            if number == 0:
                client.save("after", deadline_seconds=60)  # before-3 has a higher step
        assert not any(each.changes.shard.lost for each in service.servers)
        client.push(made_gradients(6), deadline_seconds=60)
        client.save("newest", deadline_seconds=60)
        service.restart(1)
        assert service.servers[1].changes.shard.began_with.endswith("newest")
        client.load("newest", deadline_seconds=60)
        service.restart(0)
        assert service.servers[0].changes.shard.superseded == ""


def test_a_committed_save_truncates_the_log(make_service: Any) -> None:
    service = make_service(1)
    log = service.config.parameters.push_log_folder
    with service.client() as client:
        for seed in range(4):
            client.push(made_gradients(seed))
        full = sum(each.stat().st_size for each in log.glob("*.log"))
        client.save("a", deadline_seconds=60)
        [only] = log.glob("*.log")
        assert only.stat().st_size < 400 < full
        assert service.servers[0].metrics.gauges()["push_log_bytes"] == only.stat().st_size


def go_down(log: Path) -> None:
    newest = max(log.glob("*.log"))
    content = newest.read_bytes()
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    assert boot in content
    # The header's checksum is recomputed, as if another machine had written it.
    size, _, kind = struct.unpack_from("<IQB", content, 8)
    header = content[21 : 21 + size].replace(boot, b"0" * len(boot))
    check = xxhash.xxh3_64_intdigest(bytes([kind]) + header)
    newest.write_bytes(
        content[:8] + struct.pack("<IQB", size, check, kind) + header + content[21 + size :]
    )


def remove(log: Path) -> None:
    for each in log.glob("*.log"):
        each.unlink()


@pytest.mark.parametrize(
    ("change", "lost", "reason"),
    [
        (lambda log: flip_byte(max(log.glob("*.log"))), True, "damaged at byte"),
        (go_down, True, "push_log_sync_milliseconds"),
        (remove, True, "restarted and does not have all acknowledged pushes of client"),
        (
            lambda log: os.truncate(last := max(log.glob("*.log")), last.stat().st_size - 7),
            False,
            "",
        ),
    ],
)
def test_a_shard_that_lost_pushes_is_reported_once_and_not_saved_until_that_is_settled(
    make_service: Any, change: Any, lost: bool, reason: str
) -> None:
    service = make_service(2)
    with service.client() as client:
        client.push(made_gradients(0))
        client.save("a", deadline_seconds=60)
        for seed in range(1, 5):
            client.push(made_gradients(seed), wait="applied")
        service.restart(1, change=change)
        if not lost:
            # The last record was torn, so it was never acknowledged.
            assert client.push(made_gradients(5), deadline_seconds=60).step[1] >= 4
            client.save("b", deadline_seconds=60)
            return
        with pytest.raises(ShardRestartedError, match=r"shard 2 at .* restarted without") as info:
            client.push(made_gradients(5), deadline_seconds=60)
        assert info.value.shards == (1,)
        assert set(info.value.lost[1]) <= {2, 3, 4, 5}
        if change is remove:
            assert info.value.lost[1] == (2, 3, 4, 5)
        client.push(made_gradients(6))
        with pytest.raises(SnapshotError, match=f"shard 2 of 2 .*{reason}.*accept_loss=True"):
            client.save("b", deadline_seconds=60)
        gauges = service.servers[1].metrics.gauges()
        assert gauges["pushes_lost"] == 1
        client.save("c", accept_loss=True, deadline_seconds=60)
        client.save("d", deadline_seconds=60)


def test_a_load_clears_a_reported_loss(make_service: Any, one_process: OneProcess) -> None:
    service = make_service(1, push_log_bytes=0)
    with service.client() as client:
        client.push(made_gradients(0))
        one_process.push(made_gradients(0))
        client.save("a", deadline_seconds=60)
        client.push(made_gradients(1))
        client.flush()
        service.restart()
        with pytest.raises(ShardRestartedError) as info:
            client.flush(deadline_seconds=60)
        assert info.value.lost == {0: (2,)}
        client.push(made_gradients(2))
        client.load("a", deadline_seconds=60)
        client.save("b", deadline_seconds=60)
        assert_same_rows(client, one_process)


def test_a_server_that_starts_from_another_snapshot_sets_its_log_aside(make_service: Any) -> None:
    service = make_service(1)
    with service.client() as client:
        client.push(made_gradients(0))
        client.save("a", deadline_seconds=60)
        client.push(made_gradients(1))

        def remove_snapshots(_: Path) -> None:
            shutil.rmtree(service.folder / "saved")

        service.restart(change=remove_snapshots)
        with pytest.raises(ShardRestartedError):
            client.push(made_gradients(2), deadline_seconds=60)
        with pytest.raises(
            SnapshotError, match=r"log of 1 pushes follows .*/a, .*no snapshot; .*unused"
        ):
            client.save("b", deadline_seconds=60)
        assert list(service.config.parameters.push_log_folder.glob("*.unused"))


def test_keys_erased_after_a_save_are_in_no_file_and_nothing_is_lost(
    make_service: Any,
) -> None:
    service = make_service(1)
    key = 7_777_777_777_777
    pushed = {"user": (np.array([key, 3]), np.ones((2, 8), np.float32))}
    with service.client() as client:
        client.push(pushed)
        client.save("a", deadline_seconds=60)

    def erase(log: Path) -> None:
        assert not any(_has_key(each, key) for each in log.iterdir())
        erase_from_snapshots(service.folder / "saved", "user", np.array([key]), lambda *_: None)

    service.restart(change=erase)
    assert not any(_has_key(each, key) for each in service.folder.rglob("*") if each.is_file())
    with service.client() as client:
        assert client.pull({"user": [key, 3]}).found["user"].tolist() == [False, True]
        client.push(made_gradients(1), deadline_seconds=60)
        client.save("b", deadline_seconds=60)


def _has_key(file: Path, key: int) -> bool:
    return np.int64(key).tobytes() in file.read_bytes()


def test_a_log_over_its_limit_stops_until_the_next_save_and_warns(
    make_service: Any, caplog: pytest.LogCaptureFixture
) -> None:
    service = make_service(1, push_log_bytes=6000)
    with service.client() as client:
        for seed in range(8):
            client.push(made_gradients(seed))
        assert "parameters.push_log_bytes=6,000" in caplog.text
        assert service.servers[0].metrics.gauges()["push_log_gap"] == 1
        service.restart()
        with pytest.raises(ShardRestartedError):
            client.push(made_gradients(8), deadline_seconds=60)
        with pytest.raises(SnapshotError, match="push_log_bytes=6,000"):
            client.save("a", deadline_seconds=60)
        client.save("a", accept_loss=True, deadline_seconds=60)
        client.push(made_gradients(9))
        service.restart()
        client.push(made_gradients(10), deadline_seconds=60)


def test_a_full_disk_rejects_the_push_and_leaves_the_log_intact(make_service: Any) -> None:
    service = make_service(1)
    changes = service.servers[0].changes
    with service.client() as client:
        client.push(made_gradients(0))
        write = changes._push_log._write

        def full(*_: object) -> None:
            raise StorageIOError("push log: cannot be written (No space left on device)")

        changes._push_log._write = full
        with pytest.raises(PushFailedError, match="No space left") as info:
            client.push(made_gradients(1), deadline_seconds=1)
        changes._push_log._write = write
        again = client.push(made_gradients(1), token=info.value.token, wait="applied")
        assert again.was_known == ()


@pytest.mark.parametrize(("milliseconds", "is_each"), [(0, True), (3_600_000, False)])
def test_push_log_sync_milliseconds_of_0_syncs_each_push(
    tmp_path: Path, milliseconds: float, is_each: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = PushLog(tmp_path, 0, 1, 1 << 20, milliseconds)
    log.resume(Base(""), lambda _: None)
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (synced.append(number), fsync(number)))
    for _ in range(3):
        log.append(b"push")
    assert len(synced) == (3 if is_each else 0)
    log.close()


def test_a_log_belongs_to_one_process(tmp_path: Path) -> None:
    log = PushLog(tmp_path, 0, 1, 1 << 20, 0)
    with pytest.raises(StorageIOError, match=r"another process.*same shard.*parameters.push_log"):
        PushLog(tmp_path, 0, 1, 1 << 20, 0)
    log.close()


@pytest.mark.parametrize(
    ("is_load", "is_lost"), [(False, False), (True, True)], ids=["failed save", "load"]
)
def test_a_log_that_a_load_interrupted_is_reported_and_one_of_a_failed_save_continues(
    tmp_path: Path, is_load: bool, is_lost: bool
) -> None:
    log = PushLog(tmp_path, 0, 1, 1 << 20, 0)
    log.resume(Base("a"), lambda _: None)
    log.append(b"before")
    log.begin(Base("b"), is_load=is_load)
    log.append(b"after")
    log._lock.close()  # killed before the load or the save was committed
    replayed: list[bytes] = []
    again = PushLog(tmp_path, 0, 1, 1 << 20, 0)
    resumed = again.resume(Base("a"), replayed.append)
    assert replayed == [b"before", b"after"]
    assert bool(resumed.lost) is is_lost
    assert ("the rows of b replaced the rows" in resumed.lost) is is_lost
    assert (again.incarnation == log.incarnation) is not is_lost
    again.close()


@pytest.mark.parametrize("file", ["rows", "manifest"])
def test_start_newest_begins_with_the_newest_intact_snapshot_and_rejects_saves(
    make_service: Any, one_process: OneProcess, caplog: pytest.LogCaptureFixture, file: str
) -> None:
    service = make_service(1)
    with service.client() as client:
        client.push(made_gradients(0))
        one_process.push(made_gradients(0))
        client.save("a", deadline_seconds=60)
        client.push(made_gradients(1))
        client.save("b", deadline_seconds=60)

        def damage_newest(_: Path) -> None:
            files = [each for each in (service.folder / "saved" / "b").rglob("*") if each.is_file()]
            [path] = [each for each in files if each.name == "manifest.json"]
            if file == "rows":
                path = max(files, key=lambda each: each.stat().st_size)
            flip_byte(path)

        service.restart(change=damage_newest)
        assert "set parameters.start" in caplog.text
        server = service.servers[0]
        assert server.metrics.gauges()["is_behind"] == 1
        assert server.metrics.value("refreshes_total", result="refused") == 1
        assert client.describe(deadline_seconds=30).shards[0].not_fresh
        assert_same_rows(client, one_process)
        with pytest.raises(SnapshotError, match="damaged"):
            client.save("c", deadline_seconds=60)
        with pytest.raises(ShardRestartedError):
            client.flush(deadline_seconds=60)


def test_start_null_replays_nothing_and_a_service_that_stopped_normally_lost_nothing(
    make_service: Any, tmp_path: Path, one_process: OneProcess
) -> None:
    service = make_service(1, start=None)
    with service.client() as client:
        client.push(made_gradients(0), wait="applied")
    service.close()
    service.servers[0] = service.open(0)
    with service.client() as client:
        assert_same_rows(client, one_process)
        client.save("a", deadline_seconds=60)
        client.push(made_gradients(1), wait="applied")
        service.restart()
        with pytest.raises(SnapshotError, match="log of 1 pushes"):
            client.save("b", deadline_seconds=60)


def test_pushes_of_another_number_of_shards_are_not_lost_silently(
    make_service: Any, tmp_path: Path
) -> None:
    service = make_service(2)
    with service.client() as client:
        client.push(made_gradients(0), wait="applied")
    service.close()
    with (
        (other := Service(tmp_path, 1)).client() as client,
        pytest.raises(SnapshotError, match="with another number of shards"),
    ):
        client.save("a", deadline_seconds=60)
    other.close()


@pytest.mark.slow  # the other tests restart a server with the files that a kill would leave
def test_acknowledged_pushes_survive_kill_9_of_the_process(
    tmp_path: Path, one_process: OneProcess
) -> None:
    [port] = free_ports(1)
    path = tmp_path / "service.yaml"
    given = {"tables": TABLES, "folders": [str(tmp_path / "saved")]}
    path.write_text(yaml.safe_dump({"shards": [[f"127.0.0.1:{port}"]], "parameters": given}))
    random = np.random.default_rng(5)
    seed = 0
    with ParameterClient(f"127.0.0.1:{port}") as client:
        for trial in range(2):
            with ServeProcess(path, "--role", "parameters", address=None) as server:
                for _ in range(int(random.integers(3, 12))):
                    client.push(made_gradients(seed), deadline_seconds=60)
                    one_process.push(made_gradients(seed))
                    seed += 1
                if trial == 0:
                    client.save(deadline_seconds=60)
                server.end(signal.SIGKILL)
        with ServeProcess(path, "--role", "parameters", address=None):
            client.flush(deadline_seconds=60)
            assert_same_rows(client, one_process)
