"""No row becomes older for any order of the steps of finds, checks for notes, and a trainer.

Each runs on a separate thread, and only one thread runs at a time. A seed selects it at each step.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sparring.errors import StorageIOError
from sparring.storage.memory import MemoryOptions, MemoryStorage
from sparring_tiered import CachedStorage, FolderLog, RefreshOptions
from sparring_tiered.cache import follower

from .publishing import TABLE, ReadOnly, Trainer

KEYS = np.arange(2)


class Turns:
    """Threads of which one runs at a time."""

    def __init__(self, chosen: random.Random) -> None:
        self._chosen = chosen
        self._waiting: list[threading.Semaphore] = []
        self._has_ended = threading.Semaphore(0)
        self._failures: list[BaseException] = []
        self._current: threading.Semaphore
        self._resting: threading.Semaphore | None = None

    def step(self) -> None:
        """Lets another thread run, by chance."""
        if self._waiting and self._chosen.random() < 0.5:
            own = self._current
            self._pass_on()
            own.acquire()

    def rest(self) -> None:
        """Lets other threads run for many steps, by chance."""
        if self._chosen.random() < 0.5:
            self._resting = self._current
        self.step()

    def around(self, owner: object, *names: str) -> None:
        """Makes a step before and after each of these methods of an object."""
        for name in names:
            setattr(owner, name, partial(self._stepped, getattr(owner, name)))

    def run(self, *calls: Callable[[], None]) -> None:
        self._waiting = [threading.Semaphore(0) for _ in calls]
        for turn, call in zip(self._waiting, calls, strict=True):
            threading.Thread(target=self._run_one, args=(turn, call), daemon=True).start()
        self._pass_on()
        self._has_ended.acquire()
        if self._failures:
            raise self._failures[0]

    def _stepped(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.step()
        result = call(*args, **options)
        self.step()
        return result

    def _run_one(self, turn: threading.Semaphore, call: Callable[[], None]) -> None:
        turn.acquire()
        try:
            call()
        except BaseException as failure:
            self._failures.append(failure)
        self._waiting.remove(turn)
        self._pass_on()

    def _pass_on(self) -> None:
        if self._chosen.random() < 0.05:
            self._resting = None
        others = [each for each in self._waiting if each is not self._resting]
        self._current = self._chosen.choice(others or self._waiting or [self._has_ended])
        self._current.release()


class Coroutines:
    """The part of asyncio that the follower uses; `finish` runs one coroutine at a time."""

    Lock = asyncio.Lock

    def __init__(self) -> None:
        self._running: list[Any] = []

    def create_task(self, work: Any) -> Any:
        self._running.append(work)
        return SimpleNamespace(cancel=lambda: self._ended(work))

    def wrap_future(self, future: Any) -> Any:
        return future

    async def to_thread(self, call: Callable[..., Any], *args: Any) -> Any:
        return call(*args)

    async def wait(self, *_: object, **__: object) -> Any:
        await asyncio.sleep(0)
        return (), ()

    def finish(self, chosen: random.Random) -> None:
        while self._running:
            work = chosen.choice(self._running)
            try:
                work.send(None)
            except (StopIteration, StorageIOError):
                self._ended(work)

    def _ended(self, work: Any) -> None:
        work.close()
        self._running = [each for each in self._running if each is not work]


class World:
    """A trainer and a reader of a few rows, with the written and the seen rows."""

    def __init__(
        self, trainer: Trainer, log: FolderLog, loop: Coroutines, chosen: random.Random
    ) -> None:
        self.trainer, self.loop, self.chosen = trainer, loop, chosen
        self.turns = Turns(chosen)
        self.states: list[list[int | None]] = [[None] for _ in KEYS]
        self.seen = [0 for _ in KEYS]
        self.forgotten: set[int] = set()
        self._published = trainer.publisher._tables[0]
        self._erase(KEYS)
        self._write(KEYS)
        trainer.publish()
        capacity = chosen.choice([None, None, 1])
        cache = MemoryStorage(
            TABLE, MemoryOptions(capacity=capacity, policy="lru" if capacity else "none")
        )
        self.view = ReadOnly(trainer.backend)
        self.view.before_return = lambda _: self.turns.rest()
        options = RefreshOptions(poll_seconds=3600, drop_seconds=1, batch_rows=2)
        self.reader = CachedStorage(TABLE, cache, self.view, log, options)
        stepped = ("begin", "end", "abandon", "take_note", "erase", "list_cached")
        self.turns.around(self.reader._fills, *stepped)
        self.turns.around(cache, "find_into")
        self.turns.around(self.view, "find_into")
        self.turns.around(log, "append", "newest", "read", "write_base", "read_base")

    def train(self) -> None:
        for _ in range(self.chosen.randint(4, 12)):
            keys = np.sort(self.chosen.sample(range(len(KEYS)), self.chosen.randint(1, 2)))
            acts = (self._write, self._publish, self._erase)
            self.chosen.choices(acts, (4, 4, 1))[0](keys)
            self.turns.step()

    def look(self) -> None:
        for _ in range(self.chosen.randint(4, 8)):
            self.view.is_cut = self.chosen.random() < 0.3
            self.loop.create_task(self.reader._follower._poll())
            self.loop.finish(self.chosen)
            self.turns.step()
        self.view.is_cut = False

    def find(self) -> None:
        for _ in range(8):
            keys = np.array(self.chosen.sample(range(len(KEYS)), self.chosen.randint(1, 2)))
            least = [self.seen[key] for key in keys]
            self.reader._failed_until = 0.0
            try:
                found = self.reader.find(keys)
            except StorageIOError:
                continue
            for i, key in enumerate(keys):
                shown = int(found.rows[i, 0] - 1_000 * key) if found.found[i] else None
                states = self.states[key]
                at = [n for n in range(least[i], len(states)) if states[n] == shown]
                if shown is None and key in self.forgotten:
                    continue
                assert at, f"key {key}: {shown} after {states[least[i]]}, of {states}"
                self.seen[key] = max(self.seen[key], at[0])

    def run(self) -> None:
        self.turns.run(self.train, self.look, self.find, self.find)
        self.trainer.publish()
        self.loop.create_task(self.reader._follower._poll())
        self.loop.finish(self.chosen)
        self.reader._failed_until = 0.0
        found, expected = self.reader.find(KEYS), self.trainer.backend.find(KEYS)
        assert (found.found == expected.found).all()
        assert (found.rows == expected.rows).all()
        assert self.reader.counters().rows_to_drop == 0

    def _write(self, keys: Any) -> None:
        version = 1 + max(len(each) for each in self.states)
        self.trainer.write(keys, version)
        for key in keys:
            self.states[key].append(version)

    def _erase(self, keys: Any) -> None:
        self.trainer.erase(keys)
        for key in keys:
            self.states[key].append(None)

    def _publish(self, _: Any) -> None:
        if self.chosen.random() < 0.3:  # a new filter of the keys that exist
            self._published.num_erased = 10**6
            self.forgotten |= {key for key in range(len(KEYS)) if self.states[key][-1] is None}
        self.trainer.publish()


@pytest.mark.parametrize(
    "seeds", [range(100), pytest.param(range(100, 300), marks=pytest.mark.long)], ids=str
)
def test_no_row_becomes_older(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seeds: range
) -> None:
    loop = Coroutines()
    monkeypatch.setattr(follower, "asyncio", loop)
    idle = SimpleNamespace(submit=lambda *_, **__: None, close=lambda: None)
    monkeypatch.setattr(follower, "EventLoop", lambda **_: idle)
    trainer = Trainer(MemoryStorage(TABLE), tmp_path, keep=3)
    for seed in seeds:
        log = trainer.publisher._tables[0].log = FolderLog(f"memory://orders/{seed}", "item")
        trainer.publisher._tables[0].restart()
        trainer.publisher._tables[0].sequence = 0
        print("seed", seed)
        World(trainer, log, loop, random.Random(seed)).run()
