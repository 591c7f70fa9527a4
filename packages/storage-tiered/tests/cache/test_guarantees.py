"""Rows in a cache are whole, never become older, and follow every note."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.collective.local import LocalGroup
from sparring.contracts import partition
from sparring.contracts.ranks.collective import Collective
from sparring.contracts.storage.results import Keys
from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.errors import StorageIOError
from sparring.storage.memory import MemoryStorage
from sparring.updates.resolve import parse_hyper, resolve_method
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_testing.processes.waiting import wait_until
from sparring_tiered import ChangePublisher, FolderLog

from .publishing import TABLE, ReadOnly, Trainer, open_reader, rows_of

KEYS = np.arange(100)


class Once:
    """Runs a call in another thread, in the first read of the backend after it has its rows."""

    def __init__(self, call: Any) -> None:
        self._call: Any = call

    def __call__(self, keys: Keys) -> None:
        call, self._call = self._call, None
        if call is not None:
            thread = threading.Thread(target=call)
            thread.start()
            thread.join(20)
            assert not thread.is_alive()


def test_a_read_that_overlaps_a_note_is_not_kept(trainer: Trainer, tmp_path: Path) -> None:
    view = ReadOnly(trainer.backend)
    with open_reader(view, tmp_path) as reader:

        def overlap() -> None:
            trainer.write(KEYS[:10], 2)
            trainer.publish()
            reader.refresh()

        view.before_return = Once(overlap)
        assert (reader.find(KEYS).rows == rows_of(KEYS, 1)).all()
        counters = reader.counters()
        assert 90 >= counters.cached_rows >= 85
        assert counters.dropped_rows == 100 - counters.cached_rows
        assert (reader.find(KEYS).rows == rows_of(KEYS, np.where(KEYS < 10, 2, 1))).all()


def test_a_read_that_overlaps_a_missed_note_is_not_kept(trainer: Trainer, tmp_path: Path) -> None:
    view = ReadOnly(trainer.backend)
    with open_reader(view, tmp_path) as reader:

        def overlap() -> None:
            again = Trainer(trainer.backend, tmp_path)
            again.write(KEYS, 2)
            again.publish()
            reader.refresh()

        view.before_return = Once(overlap)
        reader.find(KEYS)
        assert reader.counters().cached_rows == 0
        assert (reader.find(KEYS).rows == rows_of(KEYS, 2)).all()


def test_a_read_that_a_note_overtakes_leaves_no_older_row(trainer: Trainer, tmp_path: Path) -> None:
    """Another read puts an older row into the cache, between a find's miss and its own read."""
    view = ReadOnly(trainer.backend)
    with open_reader(view, tmp_path) as reader:
        fills: Any = reader._fills
        begin = fills.begin

        def overtaken() -> Any:
            fills.begin = begin
            reader.find(KEYS[:10])  # of version 1, which stay in the cache
            trainer.write(KEYS[:10], 2)
            view.before_return = Once(take_note)
            return begin()

        def take_note() -> None:
            trainer.publish()
            view.is_cut = True  # the note is processed, and its keys cannot be read again yet
            with pytest.raises(StorageIOError):
                reader.refresh()
            view.is_cut = False

        fills.begin = overtaken
        assert (reader.find(KEYS[:10]).rows == rows_of(KEYS[:10], 2)).all()
        assert (reader.find(KEYS[:10]).rows == rows_of(KEYS[:10], 2)).all()


def test_neither_of_two_overlapping_reads_is_kept(trainer: Trainer, tmp_path: Path) -> None:
    """The inner one sees the newer row, and its caller must not see the older one afterwards."""
    view = ReadOnly(trainer.backend)
    with open_reader(view, tmp_path) as reader:

        def overlap() -> None:
            trainer.write(KEYS[:10], 2)  # between two notes
            assert (reader.find(KEYS[:10]).rows == rows_of(KEYS[:10], 2)).all()

        view.before_return = Once(overlap)
        assert (reader.find(KEYS[:50]).rows == rows_of(KEYS[:50], 1)).all()
        assert (reader.find(KEYS[:10]).rows == rows_of(KEYS[:10], 2)).all()
        assert reader.counters().cached_rows == 50


def test_a_refresh_does_not_restore_an_older_row(trainer: Trainer, tmp_path: Path) -> None:
    view = ReadOnly(trainer.backend)
    with open_reader(view, tmp_path, capacity=20) as reader:
        reader.find(KEYS[:10])
        trainer.write(KEYS[:10], 2)
        trainer.publish()

        def overlap() -> None:
            trainer.write(KEYS[:10], 3)  # after the note, and after the refresh has read
            reader.find(KEYS[50:90])  # which pushes the ten out
            assert (reader.find(KEYS[:10]).rows == rows_of(KEYS[:10], 3)).all()

        view.before_return = Once(overlap)
        reader.refresh()
        assert (reader.find(KEYS[:10]).rows == rows_of(KEYS[:10], 3)).all()


def test_rows_are_whole_and_never_become_older_under_load(
    backend: MemoryStorage, tmp_path: Path
) -> None:
    trainer = Trainer(backend, tmp_path, keep=200)  # a slow machine misses none
    trainer.write(KEYS, 1)
    trainer.publish()
    view = ReadOnly(backend)
    pause = random.Random(1)
    view.before_return = lambda keys: time.sleep(pause.choice((0, 0, 0.001, 0.004)))
    floor = np.zeros(len(KEYS))
    failures: list[str] = []
    has_ended = threading.Event()

    def read(seed: int) -> None:
        chosen = np.random.default_rng(seed)
        while not has_ended.is_set() and not failures:
            keys = chosen.permutation(KEYS)[:20]
            least = floor[keys].copy()
            rows = reader.find(keys).rows
            versions = rows[:, 0] - 1_000 * keys
            if (rows != rows[:, :1]).any():
                failures.append(f"torn: {rows}")
            if (versions < least).any():
                failures.append(f"{versions} after {least}")
            np.maximum.at(floor, keys, versions)

    with open_reader(view, tmp_path, capacity=60, poll_seconds=0.003, batch_rows=16) as reader:
        threads = [threading.Thread(target=read, args=(each,)) for each in range(3)]
        for each in threads:
            each.start()
        chosen = np.random.default_rng(9)
        for version in range(2, 200):
            trainer.write(np.sort(chosen.permutation(KEYS)[:15]), version)
            if version % 3 == 0:
                trainer.publish()
            time.sleep(0.005)
        trainer.publish()
        has_ended.set()
        for each in threads:
            each.join()
        assert not failures, failures[0]
        reader.refresh()
        expected = backend.find(KEYS).rows
        assert (reader.find(KEYS).rows == expected).all()
        counters = reader.counters()
        assert counters.hits > 500
        assert counters.dropped_rows > 0
        assert counters.missed_notes == 0


def test_keys_that_did_not_change_stay_cached_during_a_refresh(
    backend: MemoryStorage, tmp_path: Path
) -> None:
    keys = np.arange(20_000)
    trainer = Trainer(backend, tmp_path)
    trainer.write(keys, 1)
    trainer.publish()
    view = ReadOnly(backend)
    with open_reader(view, tmp_path, batch_rows=256) as reader:
        reader.find(keys)
        trainer.write(keys[::10], 2)
        trainer.publish()
        others = keys[1::10]
        asked, had = [0], [0]

        def ask(_: Keys) -> None:
            before = reader.counters().hits
            assert (reader.find(others).rows == rows_of(others, 1)).all()
            asked[0] += len(others)
            had[0] += reader.counters().hits - before

        view.before_return = ask
        reader.refresh()
        assert asked[0] >= 5 * len(others)  # one for each batch
        assert had[0] >= 0.95 * asked[0]
        view.before_return = None
        assert (reader.find(keys[::10]).rows == rows_of(keys[::10], 2)).all()


@pytest.mark.parametrize("count", [20_000])
def test_every_changed_key_is_refreshed(count: int, backend: MemoryStorage, tmp_path: Path) -> None:
    """`reliability/cache_notes.py` does it with 10 million."""
    keys = np.random.default_rng(0).permutation(np.arange(-count, count) * 2_654_435_761)
    trainer = Trainer(backend, tmp_path)
    trainer.write(keys, 1)
    trainer.publish()
    with open_reader(backend, tmp_path) as reader:
        reader.find(keys)
        trainer.write(keys[:count], 2)
        assert trainer.publish() == count
        reader.refresh()
        assert (reader.find(keys).rows == backend.find(keys).rows).all()
        assert reader.counters().reread_rows < 1.01 * count


@pytest.mark.parametrize("begins", ["restarted", "empty log"])
@pytest.mark.parametrize("fails", ["listing the cached keys", "erasing them"])
@pytest.mark.parametrize("drop_seconds", [0, 0.1])
def test_a_failed_emptying_of_a_cache_is_repeated_later(
    drop_seconds: float,
    fails: str,
    begins: str,
    trainer: Trainer,
    backend: MemoryStorage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After the failure the base belongs to the new trainer, so the retried note looks complete."""
    if begins == "restarted":
        trainer.publish()
    with open_reader(backend, tmp_path, poll_seconds=0.01, drop_seconds=drop_seconds) as reader:
        polls = reader.counters().failed_polls
        reader.find(KEYS)
        method = "list_cached" if fails == "listing the cached keys" else "erase"
        with monkeypatch.context() as broken:
            broken.setattr(reader._fills, method, Raises(MemoryError))
            if begins == "empty log":
                for path in tmp_path.rglob("*"):
                    if path.is_file():
                        path.unlink()
            again = Trainer(backend, tmp_path)
            backend.upsert(KEYS[:30], rows_of(KEYS[:30], 2))  # no note contains these keys
            again.write(KEYS[30:40], 2)
            again.publish()
            wait_until(lambda: reader.counters().failed_polls > polls)
        wait_until(lambda: reader.counters().missed_notes and not reader.counters().rows_to_drop)
        assert (reader.find(KEYS).rows == backend.find(KEYS).rows).all()


class Raises:
    """A call that raises."""

    def __init__(self, kind: type[Exception]) -> None:
        self._kind = kind

    def __call__(self, *_: object) -> Any:
        raise self._kind


class Killed(BaseException):
    """The process ends."""


class DyingLog(FolderLog):
    """Dies before or after the nth file that it writes or removes."""

    num_left = 10**9

    def _put(self, name: str, data: bytes) -> None:
        self._step()
        super()._put(name, data)
        self._step()

    def _step(self) -> None:
        if not self.num_left:
            raise Killed
        self.num_left -= 1


@pytest.mark.parametrize("is_first_note", [True, False])
@pytest.mark.parametrize("num_left", range(4))
def test_a_trainer_may_die_while_it_publishes(
    num_left: int, is_first_note: bool, trainer: Trainer, backend: MemoryStorage, tmp_path: Path
) -> None:
    """There is no note or a whole one, and the next trainer covers the rest."""
    with open_reader(backend, tmp_path) as reader:
        reader.find(KEYS)
        dying = Trainer(backend, tmp_path, keep=2)
        log = DyingLog(str(tmp_path), "item")
        dying.publisher._tables[0].log = log
        if not is_first_note:
            dying.publish()
        new = np.arange(500, 600)
        dying.write(KEYS[:30], 2)
        dying.write(new, 2)
        log.num_left = num_left
        if num_left < 4:
            with pytest.raises(Killed):
                dying.publish()
        reader.refresh()  # each existing note is whole
        again = Trainer(backend, tmp_path)
        again.write(KEYS[30:40], 3)
        again.publish()
        reader.refresh()
        end = time.monotonic() + 10
        while reader.counters().rows_to_drop:
            assert time.monotonic() < end
            time.sleep(0.005)
        every = np.concatenate([KEYS, new])
        assert reader.find(every).found.all()
        assert (reader.find(every).rows == backend.find(every).rows).all()
        with open_reader(backend, tmp_path) as late:
            assert (late.find(every).rows == backend.find(every).rows).all()


def test_a_reader_may_start_after_a_trainer_died_before_its_first_note(
    trainer: Trainer, backend: MemoryStorage, tmp_path: Path
) -> None:
    """The base belongs to a note that does not exist, and that may never be written."""
    dying = Trainer(backend, tmp_path)
    log = dying.publisher._tables[0].log = DyingLog(str(tmp_path), "item")
    log.num_left = 2  # the base, and no note
    dying.write(KEYS[:30], 2)
    with pytest.raises(Killed):
        dying.publish()
    with open_reader(backend, tmp_path) as reader:
        reader.find(KEYS)
        assert not reader.refresh()
        again = Trainer(backend, tmp_path)
        again.write(KEYS[:10], 3)
        again.publish()
        assert reader.refresh()
        assert (reader.find(KEYS).rows == backend.find(KEYS).rows).all()


def test_a_read_that_cannot_be_cached_is_no_longer_in_flight(
    trainer: Trainer, tmp_path: Path
) -> None:
    """Otherwise all later changes would be kept for it."""
    with open_reader(trainer.backend, tmp_path) as reader:
        cache, fills = reader._cache, reader._fills
        upsert = cache.upsert

        def fail(*_: object) -> Any:
            raise MemoryError

        cache.upsert = fail  # type: ignore[method-assign]
        with pytest.raises(MemoryError):
            reader.find(KEYS[:10])
        cache.upsert = upsert  # type: ignore[method-assign]
        reader.find(KEYS[10:20])
        assert not fills._events


def test_one_note_contains_the_rows_of_all_ranks(tmp_path: Path) -> None:
    """Ranks write their own rows to a shared location."""
    group = LocalGroup(2, deadline_seconds=30)
    shared = MemoryStorage(TABLE)
    turn = threading.Lock()

    class Part(MemoryStorage):
        """The rows of this rank, in the location with those of all."""

        def _upsert_impl(self, keys: Keys, rows: Any, scores: Any) -> Any:
            with turn:
                shared.upsert(keys, rows)
            return super()._upsert_impl(keys, rows, scores)

    def run(collective: Collective) -> list[int]:
        with StepContainer(collective=collective, rendezvous=ThreadRendezvous(2)) as container:
            container.declare(TABLE, Part(TABLE))
            partitions = container.layout("item").partitions_of(collective.rank)
            own = KEYS[np.isin(partition(KEYS), partitions)]
            told = []
            with ChangePublisher(container, url=str(tmp_path)) as publisher:
                storage = container.storage("item")
                storage.upsert(own, rows_of(own, 1))
                told.append(publisher.publish(1)["item"])
                collective.barrier()
                if not collective.rank:
                    readers.append(open_reader(shared, tmp_path))
                    readers[0].find(KEYS)
                collective.barrier()
                storage.upsert(own[:3], rows_of(own[:3], 2))
                told.append(publisher.publish(2)["item"])
            changed.append(own[:3])
            return told

    readers: list[Any] = []
    changed: list[Any] = []
    with ThreadPoolExecutor(2) as pool:
        ranks = [group.join(rank) for rank in range(2)]
        assert list(pool.map(run, ranks)) == [[-1, 6], [-1, 6]]
    with readers[0] as reader:
        reader.refresh()
        is_new = np.isin(KEYS, np.concatenate(changed))
        assert (reader.find(KEYS).rows == rows_of(KEYS, np.where(is_new, 2, 1))).all()
        assert reader.counters().reread_rows <= 7
        assert reader.counters().missed_notes == 0


def test_keys_that_were_not_admitted_are_not_published(tmp_path: Path) -> None:
    table = TableConfig("item", 4, admission={"kind": "frequency", "k": 2})
    with StepContainer() as container:
        container.declare(table, MemoryStorage(table))
        with ChangePublisher(container, url=str(tmp_path)) as publisher:
            publisher.publish(0)
            method = resolve_method("sgd")
            choice = MethodChoice(method, parse_hyper(method, {"lr": 1.0}), 1)
            for keys in (KEYS, KEYS[:30]):
                shadow = container.lookup("item", keys)
                assert shadow.shadow_id is not None
                container.resources.accumulate(shadow.shadow_id, np.ones_like(shadow.rows))
                container.apply_methods({"item": choice})
            assert container.num_rows("item") == 30
            assert publisher.publish(1) == {"item": 30}
