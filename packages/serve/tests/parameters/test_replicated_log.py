"""Push logs and saves of a shard with followers."""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import xxhash

from sparring import list_snapshots
from sparring.errors import SnapshotError, StorageIOError
from sparring_serve.declaration import ReplicationConfig
from sparring_serve.parameters.push_log import PushLog, ResumeResult
from sparring_serve.parameters.push_log_files import Base
from sparring_serve.replication.owner import ReplicaPlace
from sparring_serve.replication.shard_replication import ShardReplication
from sparring_serve.replication.store import MemoryStore
from sparring_serve.status import Status, StatusError
from sparring_serve.testing import FaultyTransport
from sparring_serve.wire.messages import ReplicateRequest

from .conftest import Shards, made_gradients


def test_a_push_that_cannot_be_synced_is_not_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = PushLog(tmp_path, 0, 1, 1 << 20, sync_milliseconds=0)
    log.resume(Base(""), lambda _: None)
    log.reader.keeps_recent = True
    log.append(b"first")

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(StorageIOError, match="Input/output error"):
            log.append(b"second")
    assert log.position == 1
    assert [bytes(each.payload) for each in log.read(0)] == [b"first"]
    log.close()
    replayed: list[bytes] = []
    PushLog(tmp_path, 0, 1, 1 << 20, 0).resume(Base(""), replayed.append)
    assert replayed == [b"first"]


def test_files_that_did_not_follow_the_snapshot_are_deleted_when_a_replica_joins(
    tmp_path: Path,
) -> None:
    log = PushLog(tmp_path, 0, 1, 1 << 20, 1000)
    log.resume(Base(""), lambda _: None)
    log.append(b"first")
    log.close()
    log = PushLog(tmp_path, 0, 1, 1 << 20, 1000)
    assert "unused" in log.resume(Base("another"), lambda _: None).lost
    assert list(tmp_path.glob("*.unused"))
    log.reset(Base("another"), 5, 1)
    assert not list(tmp_path.glob("*.unused"))
    log.close()


def test_a_segment_that_cannot_be_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = PushLog(tmp_path, 0, 1, 1 << 20, 1000)
    log.resume(Base(""), lambda _: None)
    log.reader.keeps_recent = True
    log.append(b"first")
    before = sorted(tmp_path.iterdir())

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StorageIOError, match="No space left"):
            log.begin(Base("snapshot"), is_record=True)
        with pytest.raises(StorageIOError, match="No space left"):
            log.begin_epoch(3)
    assert (log.position, log.epoch, sorted(tmp_path.iterdir())) == (1, 0, before)
    log.append(b"second")
    assert [each.payload for each in log.read(1)] == [b"second"]
    log.close()


def test_records_before_a_save_are_not_kept_in_memory(tmp_path: Path) -> None:
    log = PushLog(tmp_path, 0, 1, 1 << 20, 1000)
    log.resume(Base(""), lambda _: None)
    log.reader.keeps_recent = True
    for number in range(3):
        log.append(b"before %d" % number)
        segment = log.begin(Base(f"snapshot {number}"), is_record=True)
        log.append(b"after %d" % number)
        log.commit(segment)
        assert [each.payload for each in log.read(log.position - 1)] == [b"after %d" % number]
        assert [each.payload for each in log.reader._recent] == [b"after %d" % number]
        assert log.reader._recent_bytes == len(b"after 0")
    log.close()


def test_followers_can_read_segments_of_releases_without_positions(tmp_path: Path) -> None:
    for number in range(3):
        log = PushLog(tmp_path, 0, 1, 1 << 20, 1000)
        log.resume(Base(""), lambda _: None)
        log.append(b"%d" % number)
        log.close()
    for path in tmp_path.glob("*.log"):
        content = path.read_bytes()
        size, _, kind = struct.unpack_from("<IQB", content, 8)
        header = json.loads(content[21 : 21 + size])
        del header["position"], header["epoch"]
        payload = json.dumps(header).encode()
        check = xxhash.xxh3_64(bytes([kind]) + payload).intdigest()
        head = struct.pack("<IQB", len(payload), check, kind)
        path.write_bytes(content[:8] + head + payload + content[21 + size :])
    log = PushLog(tmp_path, 0, 1, 1 << 20, 1000)
    log.resume(Base(""), lambda _: None)
    assert log.position == 3
    assert [each.payload for each in log.read(0)] == [b"0", b"1", b"2"]
    log.close()


def test_a_log_that_was_restored_names_its_snapshot_at_the_new_path(tmp_path: Path) -> None:
    log = PushLog(tmp_path, 0, 1, 1 << 20, 0)
    log.resume(Base(""), lambda _: None)
    log.append(b"before")
    number = log.begin(Base("/old/good", save="token"), is_record=True)
    log.append(b"after")
    log.commit(number)
    log.close()
    for url in ("/new/good", "/third/good"):
        log = PushLog(tmp_path, 0, 1, 1 << 20, 0)
        assert log.resume(Base(url, "token", "hash"), lambda _: None) == ResumeResult(1, "")
        assert (log.start.base, log.start.position) == (Base(url, "token", "hash"), 2)
        assert [bytes(each.payload) for each in log.read(2)] == [b"after"]
        log.close()


class Rows:
    """A follower's rows."""

    lost = ""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def base_of(self, url: str) -> Base:
        return Base(url, "token")

    def reset_rows(self, base: str) -> None:
        self.loaded.append(base)

    def adopt(self, incarnation: int, lost: str) -> None:
        pass


@pytest.mark.parametrize(
    ("save", "loaded"), [("token", ["/a/good"]), ("", ["/a/good"]), ("another", [])]
)
def test_a_follower_loads_only_the_snapshot_of_its_leader(
    tmp_path: Path, save: str, loaded: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    log = PushLog(tmp_path, 0, 1, 1 << 20, 0)
    log.resume(Base(""), lambda _: None)
    rows: Any = Rows()
    config = ReplicationConfig(store="redis://localhost", lease_seconds=0.2)
    place = ReplicaPlace(0, 1, "a:2", ("a:1",), is_first=False, key="shard")
    follower = ShardReplication(
        rows, log, threading.RLock(), config, place, FaultyTransport({}), MemoryStore()
    )
    reset = ReplicateRequest(2, "a:1", kept_from=7, is_reset=True, base="/a/good", base_save=save)
    follower._reset(reset, 5, "")
    assert rows.loaded == loaded
    assert (log.position, log.epoch) == ((7, 2) if loaded else (0, -1))
    assert ("another snapshot than that of the leader" in caplog.text) == (not loaded)
    log.close()


class Unreachable:
    """The role of a leader whose follower does not reply."""

    def check_leader(self, what: str, known_epoch: int = 0) -> int:
        return 1

    def replicate(self, epoch: int, position: int, seconds: float, what: str) -> None:
        time.sleep(0.5)
        raise StatusError(Status.UNAVAILABLE, "this replica is not the leader")


def test_a_snapshot_is_complete_only_after_followers_have_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Shards(1, folders=[str(tmp_path / "saved")])
    service: Any = shards.services["shard:0"]
    with shards.client() as client:
        client.push(made_gradients(0), wait="applied")
        with monkeypatch.context() as patched:
            patched.setattr(service._snapshots, "replication", Unreachable())
            with pytest.raises(SnapshotError):
                client.save("a", deadline_seconds=30)
        assert list_snapshots(str(tmp_path / "saved")) == []
        client.save("a", deadline_seconds=30)
    shards.close()
