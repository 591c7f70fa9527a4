"""A reader with a cache in front of a backend sees the rows of the notes, and nothing older."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparring.contracts.storage.results import Columns
from sparring.errors import InvalidArgumentError, StorageIOError, UnsupportedError
from sparring.storage.memory import MemoryOptions, MemoryStorage
from sparring_testing.processes.waiting import wait_until

from .publishing import TABLE, ReadOnly, Trainer, open_reader, rows_of

KEYS = np.arange(100)


def test_rows_are_read_from_the_backend_once(trainer: Trainer, tmp_path: Path) -> None:
    view = ReadOnly(trainer.backend)
    with open_reader(view, tmp_path) as reader:
        for _ in range(2):
            found = reader.find(KEYS)
            assert found.found.all()
            assert (found.rows == rows_of(KEYS, 1)).all()
        assert view.num_asked == len(KEYS)
        counters = reader.counters()
        assert (counters.hits, counters.misses, counters.cached_rows) == (100, 100, 100)


def test_columns_of_cached_and_of_uncached_rows_are_read(trainer: Trainer, tmp_path: Path) -> None:
    with open_reader(trainer.backend, tmp_path) as reader:
        reader.find(KEYS[:50])
        part = reader.find(KEYS, Columns(1, 3))
        assert (part.rows == rows_of(KEYS, 1)[:, 1:3]).all()


def test_missing_keys_cost_no_request(trainer: Trainer, tmp_path: Path) -> None:
    view = ReadOnly(trainer.backend)
    with open_reader(view, tmp_path) as reader:
        found = reader.find(np.arange(10_000, 20_000))
        assert not found.found.any()
        assert not found.rows.any()
        assert view.num_asked < 400
        assert reader.counters().filtered > 9_600


def test_a_note_causes_only_changed_keys_to_be_read_again(trainer: Trainer, tmp_path: Path) -> None:
    view = ReadOnly(trainer.backend)
    with open_reader(view, tmp_path) as reader:
        reader.find(KEYS)
        trainer.write(KEYS[:10], 2)
        assert reader.find(KEYS[:10]).rows[0, 0] == rows_of(KEYS[:1], 1)[0, 0]
        assert trainer.publish() == 10
        view.num_asked = 0
        assert reader.refresh()
        assert 10 <= view.num_asked <= 12
        assert (reader.find(KEYS).rows == rows_of(KEYS, np.where(KEYS < 10, 2, 1))).all()
        assert 10 <= view.num_asked <= 12
        assert not reader.refresh()
        counters = reader.counters()
        assert (counters.notes, counters.step, counters.missed_notes) == (2, 2, 0)
        assert counters.reread_rows == view.num_asked


def test_new_keys_are_found_after_the_note(trainer: Trainer, tmp_path: Path) -> None:
    with open_reader(trainer.backend, tmp_path) as reader:
        new = np.arange(1_000, 1_500)
        trainer.write(new, 1)
        assert (
            reader.find(new).found.sum() < 50
        )  # the filter excludes them except for false positives
        trainer.publish()
        reader.refresh()
        assert reader.find(new).found.all()


def test_erased_keys_read_as_absent(trainer: Trainer, tmp_path: Path) -> None:
    view = ReadOnly(trainer.backend)
    with open_reader(view, tmp_path) as reader:
        reader.find(KEYS)
        trainer.erase(KEYS[:5])
        trainer.write(KEYS[3:4], 7)  # erased and written again
        trainer.publish()
        view.num_asked = 0
        reader.refresh()
        assert view.num_asked <= 3  # erased ones are not read again
        assert reader.find(KEYS).found.tolist() == [False] * 3 + [True, False] + [True] * 95
        assert reader.find(KEYS[3:4]).rows[0, 0] == rows_of(KEYS[3:4], 7)[0, 0]
        assert reader.counters().erased_rows == 4


def test_cleared_rows_read_as_absent(trainer: Trainer, tmp_path: Path) -> None:
    with open_reader(trainer.backend, tmp_path) as reader:
        reader.find(KEYS)
        trainer.container.storage("item").clear()
        assert trainer.publish() == -1
        reader.refresh()
        wait_until(lambda: reader.counters().rows_to_drop == 0)
        assert not reader.find(KEYS).found.any()


def test_a_missed_note_empties_the_cache_gradually(backend: MemoryStorage, tmp_path: Path) -> None:
    trainer = Trainer(backend, tmp_path, keep=2)
    keys = np.arange(1_000)
    trainer.write(keys, 1)
    trainer.publish()
    with open_reader(backend, tmp_path, drop_seconds=1.0) as reader:
        reader.find(keys)
        for version in range(2, 8):
            trainer.write(keys[:10], version)
            trainer.publish()
        assert len(list((tmp_path / "item").glob("*.note"))) == 2
        reader.refresh()
        counters = reader.counters()
        assert counters.missed_notes == 1
        assert counters.cached_rows > 900  # never at once
        assert 0 < counters.rows_to_drop <= 1_000
        wait_until(lambda: reader.counters().rows_to_drop == 0)
        assert reader.counters().cached_rows == 0
        assert (reader.find(keys).rows == rows_of(keys, np.where(keys < 10, 7, 1))).all()


def test_a_restarted_trainer_covers_unpublished_changes(trainer: Trainer, tmp_path: Path) -> None:
    with open_reader(trainer.backend, tmp_path) as reader:
        reader.find(KEYS)
        trainer.write(KEYS[:10], 2)  # and it is killed
        again = Trainer(trainer.backend, tmp_path)
        again.write(KEYS[10:20], 2)
        assert again.publish() == -1
        reader.refresh()
        wait_until(lambda: reader.counters().rows_to_drop == 0)
        assert (reader.find(KEYS).rows == rows_of(KEYS, np.where(KEYS < 20, 2, 1))).all()


def test_missing_notes_are_noticed(trainer: Trainer, tmp_path: Path) -> None:
    """Like a Redis that lost its memory: the trainer starts again with note 1."""
    with open_reader(trainer.backend, tmp_path) as reader:
        for version in range(2, 6):
            trainer.write(KEYS, version)
            trainer.publish()
        reader.refresh()
        reader.find(KEYS)
        for each in (tmp_path / "item").iterdir():
            each.unlink()
        with pytest.raises(InvalidArgumentError, match="there are no change notes"):
            reader.refresh()
        assert reader.find(KEYS).found.all()
        trainer.write(KEYS, 9)
        with pytest.raises(StorageIOError, match="the newest note is 0, but this trainer wrote "):
            trainer.publish()
        trainer.publish()
        reader.refresh()
        wait_until(lambda: reader.counters().rows_to_drop == 0)
        assert (reader.find(KEYS).rows == rows_of(KEYS, 9)).all()


def test_a_restarted_sequence_of_notes_is_noticed_by_its_first_note(
    trainer: Trainer, tmp_path: Path
) -> None:
    """Its numbers do not restart at 1, where the reader may be."""
    with open_reader(trainer.backend, tmp_path) as reader:
        reader.find(KEYS)
        for each in (tmp_path / "item").iterdir():
            each.unlink()
        again = Trainer(trainer.backend, tmp_path)
        again.write(KEYS, 9)
        again.publish()
        assert reader.refresh()
        wait_until(lambda: reader.counters().rows_to_drop == 0)
        assert (reader.find(KEYS).rows == rows_of(KEYS, 9)).all()


def test_cached_rows_are_found_while_the_backend_is_unavailable(
    trainer: Trainer, tmp_path: Path
) -> None:
    view = ReadOnly(trainer.backend)
    with open_reader(view, tmp_path) as reader:
        reader.find(KEYS[:50])
        view.is_cut = True
        assert reader.find(KEYS[:50]).found.all()
        with pytest.raises(StorageIOError, match="cannot be reached"):
            reader.find(KEYS)
        view.is_cut = False
        with pytest.raises(StorageIOError, match="50 of the keys are not in the cache"):
            reader.find(KEYS)  # no request so soon after a failure


def test_a_note_that_cannot_be_applied_is_applied_by_the_next_refresh(
    trainer: Trainer, tmp_path: Path
) -> None:
    view = ReadOnly(trainer.backend)
    with open_reader(view, tmp_path) as reader:
        reader.find(KEYS)
        trainer.write(KEYS, 2)
        trainer.publish()
        view.is_cut = True
        with pytest.raises(StorageIOError, match="cannot be reached"):
            reader.refresh()
        assert reader.counters().step == 1
        view.is_cut = False
        reader.refresh()
        assert (reader.find(KEYS).rows == rows_of(KEYS, 2)).all()


def test_a_bounded_cache_evicts(trainer: Trainer, tmp_path: Path) -> None:
    view = ReadOnly(trainer.backend)
    with open_reader(view, tmp_path, capacity=10) as reader:
        for key in KEYS:
            assert reader.find(np.array([0, key]) if key else np.array([0])).found.all()
        assert reader.counters().cached_rows == 10
        view.num_asked = 0
        reader.find(np.array([0]))
        assert view.num_asked == 0  # hits keep a key in the cache


def test_the_timer_applies_notes(trainer: Trainer, tmp_path: Path) -> None:
    with open_reader(trainer.backend, tmp_path, poll_seconds=0.02) as reader:
        reader.find(KEYS)
        trainer.write(KEYS, 2)
        trainer.publish()
        wait_until(lambda: reader.counters().step == 2)
        assert reader.find(KEYS).rows[0, 0] == 2
        wait_until(lambda: reader.counters().behind_seconds < 0.5)


def test_many_erased_keys_cause_a_new_filter(backend: MemoryStorage, tmp_path: Path) -> None:
    trainer = Trainer(backend, tmp_path)
    keys = np.arange(10_000)
    trainer.write(keys, 1)
    trainer.publish()
    with open_reader(backend, tmp_path) as reader:
        reader.find(keys[:100])
        before = reader.max_num_rows
        trainer.erase(keys[2_000:])
        trainer.publish()
        trainer.write(keys[:10], 2)
        trainer.publish()
        reader.refresh()
        assert before > 9_500
        assert reader.max_num_rows < 2_100
        assert (
            reader.find(keys[:100]).rows == rows_of(keys[:100], np.where(keys[:100] < 10, 2, 1))
        ).all()
        assert reader.counters().missed_notes == 0
        trainer.write(keys[5_000:6_000], 3)
        trainer.publish()
        reader.refresh()
        assert reader.find(keys[5_000:6_000]).found.all()


def test_nothing_is_written_through_a_reader(trainer: Trainer, tmp_path: Path) -> None:
    with open_reader(trainer.backend, tmp_path) as reader:
        for call in (
            lambda: reader.upsert(KEYS, rows_of(KEYS, 1)),
            lambda: reader.erase(KEYS),
            reader.clear,
        ):
            with pytest.raises(UnsupportedError, match="opened with refresh"):
                call()


def test_a_reader_without_notes_is_rejected(backend: MemoryStorage, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="a section change_notes"):
        open_reader(backend, tmp_path)


def test_a_cache_that_rejects_rows_is_rejected(trainer: Trainer, tmp_path: Path) -> None:
    from sparring_tiered import CachedStorage, FolderLog, RefreshOptions

    full = MemoryStorage(TABLE, MemoryOptions(capacity=10, policy="none"))
    log = FolderLog(str(tmp_path), "item")
    with pytest.raises(InvalidArgumentError, match="a policy that evicts"):
        CachedStorage(TABLE, full, ReadOnly(trainer.backend), log, RefreshOptions())
