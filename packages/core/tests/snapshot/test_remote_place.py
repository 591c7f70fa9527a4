"""Snapshots on another file system: the manifest, written last, commits."""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from sparring.contracts.checkpoint import SaveOptions
from sparring.contracts.ranks.collective import Collective
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import (
    InvalidArgumentError,
    SnapshotDamagedError,
    SnapshotError,
    SnapshotIOError,
)
from sparring.kernels.functions import partition
from sparring.snapshot.place.remote import RemoteRoot
from sparring.snapshot.reader import open_root, open_snapshot
from sparring.snapshot.retention import compact, latest_snapshot, list_snapshots, retain
from sparring.snapshot.writer import SnapshotWriter
from sparring_cli.snapshots.verify import verify_snapshot
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

from .snapshot_samples import ITEM, make_chunk, rows_by_key, save, small_files


class CachingFileSystem(MemoryFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """Caches listings, like object stores.

    Later changes by other processes are only seen after the cache was cleared.
    """

    protocol = "caching"
    listings: ClassVar[dict[str, Any]] = {}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("caching:/")))

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        path = self._strip_protocol(path)
        if path not in self.listings:
            self.listings[path] = super().ls(path, detail=True, **options)
        found = self.listings[path]
        return found if detail else [each["name"] for each in found]

    def info(self, path: str, **options: Any) -> Any:
        path = self._strip_protocol(path)
        for listing in (self.listings.get(path), self.listings.get(self._parent(path))):
            if listing is None:
                continue
            for each in listing:
                if each["name"] == path:
                    return each
            if listing is self.listings.get(self._parent(path)):
                raise FileNotFoundError(path)
        return super().info(path, **options)

    def exists(self, path: str, **options: Any) -> bool:
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def isfile(self, path: str) -> bool:
        return self.exists(path) and self.info(path)["type"] == "file"

    def open(self, *arguments: Any, **options: Any) -> Any:
        known = dict(self.listings)
        file = super().open(*arguments, **options)
        self.listings.update(known)  # as if another process had opened it
        return file

    def invalidate_cache(self, path: str | None = None) -> None:
        if path is None:
            self.listings.clear()
            return
        # Like s3fs: the folder, and its parents.
        path = self._strip_protocol(path)
        while path:
            self.listings.pop(path, None)
            path = self._parent(path).rstrip("/")


class OtherProcess(CachingFileSystem):
    """The same files, with separate listings."""

    protocol = "other"
    listings: ClassVar[dict[str, Any]] = {}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("other:/")))


class UnsizedFileSystem(MemoryFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """Reports no file sizes, because servers need not."""

    protocol = "unsized"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("unsized:/")))

    def info(self, path: str, **options: Any) -> Any:
        return {**super().info(path, **options), "size": None}


for each in (CachingFileSystem, OtherProcess, UnsizedFileSystem):
    fsspec.register_implementation(each.protocol, each, clobber=True)


@pytest.fixture(params=["memory", "caching"])
def root(request: pytest.FixtureRequest) -> str:
    return f"{request.param}://{uuid.uuid4().hex}/runs"


def files(url: str) -> list[str]:
    system, path = fsspec.core.url_to_fs(url)
    system.invalidate_cache()
    return [each.rpartition("/")[2] for each in system.find(path)]


def test_a_chain_is_saved_loaded_and_compacted(root: str, tmp_path: Path) -> None:
    first = save(root, 1, make_chunk(range(1_000)), options=small_files())
    second = save(root, 2, make_chunk(range(10), 1), base=first.url, erased=[999])
    assert len(rows_by_key(second)) == 999
    assert second.state("optimizer").values == {"steps": 2}
    assert verify_snapshot(second).is_sound
    full = compact(second.url, tmp_path / "a")
    assert rows_by_key(full) == rows_by_key(second)
    assert rows_by_key(compact(full.url, f"{root}/b")) == rows_by_key(second)


def test_nothing_is_visible_before_the_manifest(root: str) -> None:
    """S5"""
    url = f"{root}/a"
    writers = [SnapshotWriter(url, step=1, rank=r, world_size=2, token="t") for r in range(2)]
    for writer in writers:
        writer.write_table(ITEM, [make_chunk([writer.rank])])
        writer.finish()
        assert list_snapshots(root) == []
        with pytest.raises(SnapshotError, match="not a committed snapshot"):
            open_snapshot(url)
    snapshot = writers[0].commit()
    writers[1].abandon()
    assert len(rows_by_key(snapshot)) == 2
    assert len(files(url)) == 3


def test_attempts_do_not_mix_and_the_second_is_rejected(root: str) -> None:
    url = f"{root}/a"
    dead, living = SnapshotWriter(url, step=1), SnapshotWriter(url, step=1)
    dead.write_table(ITEM, [make_chunk([1])])
    living.write_table(ITEM, [make_chunk([2])])
    dead.finish()
    living.finish()
    assert list(rows_by_key(living.commit())) == [2]
    with pytest.raises(SnapshotError, match="by another attempt"):
        dead.commit()
    dead.abandon()
    assert list(rows_by_key(open_snapshot(url))) == [2]
    with pytest.raises(SnapshotError, match="exists already"):
        SnapshotWriter(url, step=1)


def test_an_abandoned_attempt_leaves_nothing(root: str) -> None:
    writer = SnapshotWriter(f"{root}/a", step=1)
    writer.write_table(ITEM, [make_chunk([1])])
    writer.abandon()
    assert files(root) == []


def test_retention_removes_snapshots_and_dead_attempts(root: str) -> None:
    for step in range(3):
        save(root, step, make_chunk([step]))
    dead = SnapshotWriter(f"{root}/step-000000009", step=9)
    dead.write_table(ITEM, [make_chunk([1])])
    dead.finish()
    assert retain(root, 2) == [f"{root}/step-000000000"]
    assert any("step-000000009" in each for each in fsspec.core.url_to_fs(root)[0].find(root))
    retain(root, 2, stale_seconds=-1)
    assert [open_snapshot(url).step for url in list_snapshots(root)] == [1, 2]
    assert len(files(root)) == 6
    latest = latest_snapshot(root)
    assert latest is not None
    assert latest.step == 2


def test_damage_is_found(root: str) -> None:
    snapshot = save(root, 1, make_chunk(range(100)))
    system, path = fsspec.core.url_to_fs(snapshot.url)
    (name,) = (entry.name for entry in snapshot.files("item"))
    data = system.cat_file(f"{path}/{name}")
    system.pipe_file(f"{path}/{name}", data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(SnapshotDamagedError, match=name):
        rows_by_key(snapshot)


@pytest.mark.parametrize("url", ["", "file://", "://x", "memory://"])
def test_an_empty_path_is_not_the_current_folder(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    calls = (open_root, list_snapshots, open_snapshot, SnapshotWriter, lambda _: retain(url, 2))
    for call in calls:
        with pytest.raises(InvalidArgumentError, match="does not name a folder"):
            call(url) if call is not SnapshotWriter else SnapshotWriter(url, step=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ftp:///x", InvalidArgumentError),
        ("reference://x", InvalidArgumentError),
        ("dir://x", InvalidArgumentError),
        ("ftp://127.0.0.1:1/x", SnapshotIOError),
        ("zip://x", SnapshotIOError),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_file_system_that_cannot_be_opened_is_reported_with_its_url(
    url: str, expected: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for call in (list_snapshots, lambda _: open_snapshot(f"{url}/a")):
        with pytest.raises(expected, match=url):
            call(url)


def test_a_client_specific_exception_becomes_an_error_of_the_file_system(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ClientError(Exception):
        pass

    def fails(*_: object, **__: object) -> None:
        raise ClientError("slow down")

    snapshot = save(root, 1, make_chunk(range(5)))
    for name in ("pipe_file", "open", "makedirs"):
        with monkeypatch.context() as patched:
            patched.setattr(MemoryFileSystem, name, fails)
            with pytest.raises(SnapshotIOError, match="ClientError: slow down"):
                save(root, 2, make_chunk(range(5)))
    monkeypatch.setattr(MemoryFileSystem, "cat_file", fails)
    with pytest.raises(SnapshotIOError, match="ClientError: slow down"):
        rows_by_key(snapshot)


def test_an_unknown_file_system_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="no file system for nowhere://a"):
        SnapshotWriter("nowhere://a/b", step=1)


@pytest.mark.parametrize("broken", [0, 1])
def test_a_busy_rank_learns_at_its_next_check_why_another_failed(
    broken: int, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparring.snapshot.commit.GRACE_SECONDS", 0.1)
    save(root, 1, make_chunk([1]))
    kept = set(files(root))
    is_busy, has_given_up = threading.Event(), threading.Event()
    abandon = SnapshotWriter.abandon

    def abandons(writer: SnapshotWriter, cause: BaseException | None = None) -> None:
        abandon(writer, cause)
        if writer.rank == 0:
            has_given_up.set()

    monkeypatch.setattr(SnapshotWriter, "abandon", abandons)

    def fail(*_: object) -> None:
        assert is_busy.wait(20.0)
        raise OSError("disk gone")

    def body(collective: Collective) -> str:
        rendezvous = ThreadRendezvous(collective.world_size)
        with StepContainer(collective=collective, rendezvous=rendezvous) as container:
            container.declare(ITEM.config, StorageChoice("memory"))
            storage = container.storage("item")
            owners = container.rendezvous.shard_map().owners
            keys = np.arange(100)
            keys = keys[owners[partition(keys)] == collective.rank]
            storage.upsert(keys, np.ones((len(keys), ITEM.config.width), np.float32))
            if collective.rank == broken:
                storage._find_impl = fail  # type: ignore[method-assign]
            elif collective.rank == 2:
                find = storage._find_impl

                def busy(*arguments: Any) -> None:
                    is_busy.set()
                    assert has_given_up.wait(20.0)
                    find(*arguments)

                storage._find_impl = busy  # type: ignore[method-assign]
            begin = time.monotonic()
            with pytest.raises(SnapshotError if collective.rank != broken else OSError) as caught:
                container.save(f"{root}/a", options=SaveOptions(deadline_seconds=60.0))
            assert time.monotonic() - begin < 20.0
            return str(caught.value)

    errors = run_ranks(3, body, deadline=60.0)
    assert all("disk gone" in each for each in errors)
    assert f"rank {broken} failed, and nothing was committed" in errors[2]
    assert len(list_snapshots(root)) == 1
    # Files of the attempt remain until they are stale.
    left = {each.partition("-")[2] for each in set(files(root)) - kept}
    assert {"failed-00000.json", "failed-00002.json"} <= left
    assert left <= {f"failed-0000{rank}.json" for rank in range(3)}
    retain(root, 2, stale_seconds=-1)
    assert set(files(root)) == kept


def test_a_commit_that_fails_after_the_manifest_exists_damages_nothing(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = RemoteRoot.publish

    def fails(place: RemoteRoot, *arguments: Any) -> None:
        publish(place, *arguments)
        raise OSError("the store did not answer")

    monkeypatch.setattr(RemoteRoot, "publish", fails)
    writers = [
        SnapshotWriter(f"{root}/a", step=1, rank=rank, world_size=2, token="t") for rank in range(2)
    ]
    for writer in writers:
        writer.write_table(ITEM, [make_chunk([writer.rank])])
        writer.finish()
    with pytest.raises(SnapshotIOError, match="did not answer") as caught:
        writers[0].commit()
    writers[0].abandon(caught.value)
    writers[1].await_commit()
    snapshot = open_snapshot(f"{root}/a")
    assert sorted(rows_by_key(snapshot)) == [0, 1]
    assert verify_snapshot(snapshot).is_sound


def test_changes_by_another_process_are_seen_despite_earlier_listings() -> None:
    root = f"caching://{uuid.uuid4().hex}/runs"
    there = open_root(root.replace("caching", "other"))
    writer = SnapshotWriter(f"{root}/a", step=1, token="t")
    writer.finish()
    assert there.open("a").names() == ["t-part-00000.json"]
    assert not there.is_committed("a")
    assert list_snapshots(there.url) == []
    writer.commit()
    assert there.is_committed("a")
    assert there.exists("a")
    assert list_snapshots(there.url) == [f"{there.url}/a"]
    assert verify_snapshot(open_snapshot(f"{there.url}/a")).is_sound
    open_root(root).remove("a")
    assert not there.is_committed("a")
    assert not there.exists("a")
    assert list_snapshots(there.url) == []


def test_markers_are_read_even_if_no_size_is_known() -> None:
    root = f"{uuid.uuid4().hex}/runs"
    folder = open_root(f"unsized://{root}").stage("a", "token")
    folder.put("failed-00001.json", b'{"rank": 1}')
    assert folder.read("failed-00001.json", 11) == b'{"rank": 1}'
    assert folder.read("failed-00002.json", 11) is None
    with pytest.raises(ValueError, match="more than 10 bytes"):
        folder.read("failed-00001.json", 10)


def test_a_snapshot_whose_file_sizes_are_unknown_is_rejected() -> None:
    root = f"{uuid.uuid4().hex}/runs"
    save(f"memory://{root}", 1, make_chunk([1]))
    with pytest.raises(SnapshotIOError, match="does not report the size"):
        open_snapshot(latest_snapshot(f"memory://{root}").url.replace("memory", "unsized"))
