"""Serving snapshots on other file systems are copied, hashed, mapped, and removed when they are old."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import sparring_packed
from sparring.errors import (
    InvalidArgumentError,
    SnapshotDamagedError,
    SnapshotError,
    SnapshotIOError,
)
from sparring_packed import mirror

KEYS = np.arange(3_000)


@pytest.fixture(params=["memory", "s3"])
def root(request: pytest.FixtureRequest) -> str:
    """The URL of a folder on another file system."""
    base = "memory://tables" if request.param == "memory" else request.getfixturevalue("s3_bucket")
    return f"{base}/{uuid.uuid4().hex}"


class Remote:
    """A training whose serving snapshots are written to a URL."""

    def __init__(self, training: Any, url: str) -> None:
        self.training, self.url = training, url

    def publish(self, seed: int, *, num_keys: int = 3_000, over: int | None = None) -> str:
        training = self.training
        training.save(training.draw(KEYS[:num_keys], seed))
        base = None if over is None else f"{self.url}/step-{over}"
        url = f"{self.url}/step-{training.step}"
        sparring_packed.write(training.url(), url, base=base)
        return url

    def check(self, tables: Any) -> None:
        expected = self.training.expected(KEYS)
        assert np.array_equal(tables.lookup("item", KEYS), expected)


@pytest.fixture
def remote(training: Any, root: str) -> Remote:
    return Remote(training, root)


@pytest.fixture
def nearby(training: Any) -> Remote:
    return Remote(training, f"memory://tables/{uuid.uuid4().hex}")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def copies(cache: Path) -> set[str]:
    return {each.name for each in cache.glob("*/step-*")}


def test_full_snapshots_and_deltas_are_copied_mapped_and_removed(
    remote: Remote, cache: Path
) -> None:
    remote.publish(1)
    with sparring_packed.open(remote.url, cache=cache) as tables:
        remote.check(tables)
        assert not tables.refresh()
        remote.publish(2, num_keys=100, over=1)
        assert tables.refresh()
        remote.check(tables)
        assert tables.num_layers == 2
        remote.publish(3)
        remote.publish(4, num_keys=10, over=3)
        assert tables.refresh()
        remote.check(tables)
        # The newest two are kept with their bases.
        assert copies(cache) == {"step-3", "step-4"}
        remote.publish(5)
        assert tables.refresh()
        assert copies(cache) == {"step-3", "step-4", "step-5"}
        assert tables.existing_filter("item") is not None
    # No temporary files are left, and another process finds the copies.
    assert {each.name for each in cache.glob("*/.*")} == {".lock"}


def test_a_pinned_snapshot_is_copied_and_kept(
    remote: Remote, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = remote.publish(1)
    expected = remote.training.expected(KEYS)
    for seed in (2, 3, 4):
        remote.publish(seed)
    with sparring_packed.open(remote.url, cache=cache) as tables:
        gate = sparring_packed.Gate(True, "worse", 5.0, first.rpartition("/")[2], "gate")
        sparring_packed.write_gate(remote.url, gate)
        assert sparring_packed.read_gate(remote.url) == gate
        assert tables.refresh()
        assert np.array_equal(tables.lookup("item", KEYS), expected)
        remote.publish(5)
        assert not tables.refresh()
        assert "step-1" in copies(cache)
        system, path = fsspec.core.url_to_fs(remote.url)
        system.pipe_file(f"{path}/gate.json", b"{")
        assert tables.refresh()
        assert "the gate of" in caplog.text
        remote.check(tables)


def test_the_url_may_be_a_single_snapshot(remote: Remote, cache: Path) -> None:
    remote.publish(1)
    url = remote.publish(2, num_keys=100, over=1)
    expected = remote.training.expected(KEYS)
    remote.publish(3)
    with sparring_packed.open(url, cache=cache) as tables:
        assert np.array_equal(tables.lookup("item", KEYS), expected)
        assert not tables.refresh()
    assert copies(cache) == {"step-1", "step-2"}


def test_only_files_of_the_partitions_are_copied(nearby: Remote, cache: Path) -> None:
    training = nearby.training
    training.save(training.draw(KEYS, 1))
    options = sparring_packed.WriteOptions(file_bytes=1 << 16)
    sparring_packed.write(training.url(), f"{nearby.url}/step-1", options=options)
    for partitions in ((0, 1024), (1024, 4096)):
        sparring_packed.open(nearby.url, cache=cache, partitions=partitions).close()
    sizes = {
        path.name[-9:]: sum(each.stat().st_size for each in path.glob("step-1/*rows.*"))
        for path in cache.iterdir()
    }
    assert 0 < 2 * sizes["0000-1024"] < sizes["1024-4096"]


def test_files_with_other_bytes_are_not_mapped(
    nearby: Remote, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nearby.publish(1)
    with sparring_packed.open(nearby.url, cache=cache, verify="open") as tables:
        url = nearby.publish(2)
        system, path = fsspec.core.url_to_fs(url)
        [file] = [each for each in system.ls(path, detail=False) if "rows.item" in each]
        whole = system.cat_file(file)
        system.pipe_file(file, whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(SnapshotDamagedError, match=r"rows\.item.* the hash .*publish it again"):
            tables.refresh()
        assert tables.version.step == 1
        assert copies(cache) == {"step-1"}
        # It is not copied again by each refresh, but after a while.
        system.pipe_file(file, whole)
        with pytest.raises(SnapshotDamagedError):
            tables.refresh()
        monkeypatch.setattr(mirror, "_RETRY_SECONDS", 0.0)
        assert tables.refresh()
        nearby.check(tables)


def test_copies_are_served_while_the_url_is_unreachable(
    nearby: Remote, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    nearby.publish(1)
    sparring_packed.open(nearby.url, cache=cache).close()

    def fails(*_: Any, **__: Any) -> Any:
        raise OSError("no route to host")

    monkeypatch.setattr(fsspec.filesystem("memory"), "ls", fails)
    monkeypatch.setattr(fsspec.filesystem("memory"), "isfile", fails)
    with sparring_packed.open(nearby.url, cache=cache) as tables:
        nearby.check(tables)
        with pytest.raises(SnapshotIOError, match="cannot be listed: no route to host"):
            tables.refresh()
    assert "earlier copies are used" in caplog.text
    with pytest.raises(SnapshotIOError, match="no route to host"):
        sparring_packed.open(nearby.url, cache=cache / "other")


def test_a_failed_copy_leaves_nothing(
    nearby: Remote, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nearby.publish(1)
    with sparring_packed.open(nearby.url, cache=cache) as tables:
        nearby.publish(2)
        with monkeypatch.context() as patch:

            def fails(*_: Any) -> None:
                raise OSError(28, "No space left on device")

            patch.setattr(mirror, "_download", fails)
            with pytest.raises(SnapshotIOError, match=r"No space left.*check the free space"):
                tables.refresh()
        assert {each.name for each in cache.glob("*/*")} == {"step-1", ".lock"}
        assert tables.refresh()


def test_a_delta_without_its_base_is_rejected(nearby: Remote, cache: Path) -> None:
    nearby.publish(1)
    with sparring_packed.open(nearby.url, cache=cache) as tables:
        nearby.publish(2, num_keys=10, over=1)
        nearby.publish(3, num_keys=10, over=2)
        fsspec.filesystem("memory").rm(f"{nearby.url}/step-2", recursive=True)
        with pytest.raises(SnapshotError, match=r"step-3 is a delta over step-2.*a full one"):
            tables.refresh()
        assert tables.version.step == 1
        nearby.publish(4)
        assert tables.refresh()
        nearby.check(tables)


def test_a_newer_version_with_a_damaged_manifest_is_reported(nearby: Remote, cache: Path) -> None:
    nearby.publish(1)
    with sparring_packed.open(nearby.url, cache=cache) as tables:
        url = nearby.publish(2)
        system, path = fsspec.core.url_to_fs(f"{url}/manifest.json")
        system.pipe_file(path, system.cat_file(path)[:-1])
        with pytest.raises(SnapshotDamagedError, match=r"step-2: manifest\.json is damaged"):
            tables.refresh()
        nearby.publish(3)
        assert tables.refresh()
        nearby.check(tables)


def test_processes_of_one_machine_copy_once(
    nearby: Remote, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nearby.publish(1)
    download, downloads = mirror._download, []

    def counted(url: str, *rest: Any) -> None:
        downloads.append(url)
        download(url, *rest)

    monkeypatch.setattr(mirror, "_download", counted)

    def read() -> None:
        with sparring_packed.open(nearby.url, cache=cache) as tables:
            nearby.check(tables)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for each in readers:
        each.start()
    for each in readers:
        each.join()
    assert len(downloads) == 1


def test_a_url_requires_a_folder_for_copies(nearby: Remote, tmp_path: Path, cache: Path) -> None:
    nearby.publish(1)
    with pytest.raises(InvalidArgumentError, match="specify a folder for copies"):
        sparring_packed.open(nearby.url)
    taken = tmp_path / "file"
    taken.write_text("")
    with pytest.raises(SnapshotIOError, match=r"cannot be stored in .*choose another cache folder"):
        sparring_packed.open(nearby.url, cache=taken)
    with pytest.raises(SnapshotError, match="has no serving snapshot"):
        sparring_packed.open(f"memory://tables/{uuid.uuid4().hex}", cache=cache)
