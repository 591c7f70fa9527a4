"""The saves of a container: at most one at a time, beside its steps."""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from sparring import _native, execution
from sparring.declared_table import DeclaredTable
from sparring.errors import DeadlineError, InvalidArgumentError
from sparring.forking import Forkable
from sparring.saving.agreeing import agree, check_alike
from sparring.saving.container_state import OWN_STATES, container_states
from sparring.saving.freezing import FrozenTable
from sparring.saving.kept_rows import KeptBudget
from sparring.saving.pace import Pace
from sparring.saving.requests import Retention, SaveCounters, Saved, State
from sparring.saving.saver import Saver, SavingTable, give_up
from sparring.snapshot import SnapshotWriter, TableDescription
from sparring.snapshot.opening import locate
from sparring.snapshot.options import SnapshotOptions

if TYPE_CHECKING:
    from sparring.execution import Task
    from sparring.step import StepContainer

__all__ = ["KEPT_BYTES", "SaveOptions", "Saves"]

KEPT_BYTES = 64 << 20
"""Old rows that a save holds before steps wait for it."""

_FEW_CORES, _SHARE_OF_FEW_CORES = 4, 0.15
_WAIT_SECONDS = 30.0
_TOKEN_BYTES = 16

_LONGEST_LINE = 1_000
"""How many snapshots are remembered; more would count as those of others do."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """How a snapshot is written.

    Args:
        kept_bytes: old rows that are held in memory before steps wait for the save.
        deadline_seconds: how long the first rank waits for the parts of the others, and they for its
            commit; and how long `close`, the end of the program, and whatever must not begin before
            the save is over, wait for it. Above 0.
        retention: which snapshots stay when this one was committed; None: all.
        share: of the time of one core that all threads of a save beside steps take together, above
            0 and at most 1. Steps that keep all cores busy take about as much longer, and the save
            takes its processor time divided by it. 1: no pauses. None: 1 where there are more than
            4 cores, and else 0.15. There are no pauses while three quarters of `kept_bytes` wait,
            and once somebody waits for the save.
        is_base: count from now on which keys change, so that a later save can name this one as
            its base. It costs at most 64 MiB a table and some time in each step.
        is_told: the step after a save that failed beside it raises `BackgroundError`; otherwise the
            task alone tells of the failure.
    """

    kept_bytes: int = KEPT_BYTES
    deadline_seconds: float = 600.0
    retention: Retention | None = None
    share: float | None = None
    is_base: bool = False
    is_told: bool = True

    def __post_init__(self) -> None:
        numbers = {"kept_bytes": self.kept_bytes, "deadline_seconds": self.deadline_seconds}
        if self.share is not None:
            numbers["share"] = self.share
        for name, number in numbers.items():
            if isinstance(number, bool) or not isinstance(number, Real):
                raise InvalidArgumentError(f"save: {name} must be a number, found {number!r}")
        # Not a number is not in any range.
        if not (
            self.kept_bytes >= 1
            and 0 < self.deadline_seconds <= threading.TIMEOUT_MAX
            and (self.share is None or 0 < self.share <= 1)
        ):
            raise InvalidArgumentError(
                "save: kept_bytes must be at least 1, deadline_seconds above 0 and finite, and share "
                f"above 0 and at most 1, found kept_bytes={self.kept_bytes}, "
                f"deadline_seconds={self.deadline_seconds} and share={self.share}"
            )


class Saves(Forkable):
    """See `StepContainer.save`."""

    def __init__(self, container: StepContainer) -> None:
        self.counters = SaveCounters()
        self.line: deque[str] = deque(maxlen=_LONGEST_LINE)
        """What this rank loaded or committed, the last one last: the newest, whatever else lies
        beside them."""
        self._container = container
        self._running: Saver | None = None
        self._task: Task[Saved] | None = None
        self._base: str | None = None
        container.events.when_awaited(self.hurry)
        super().__init__()

    def begin_anew(self) -> None:
        # The save goes on in the parent, for the rows of the parent.
        if self._running is not None:
            for table in self._running.tables:
                table.thaw()
        self._running, self._task = None, None

    def hurry(self) -> None:
        """A save that runs pauses no more: somebody waits for its end."""
        running = self._running
        if running is not None:
            running.pace.hurry()

    @property
    def base(self) -> str | None:
        """The snapshot since which changed keys are counted, which a delta may name."""
        return self._base

    def wait_for_room(self) -> None:
        """Called before a step writes: returns when a running save has room for old rows."""
        running = self._running
        if running is None:
            return
        if running.is_over.is_set():
            self._account(running)
            return
        if not running.budget.wait_for_room(_WAIT_SECONDS):
            running.fail(
                DeadlineError(
                    f"save of {running.url}: a step waited {_WAIT_SECONDS} s for room for old rows, "
                    "and the save wrote none meanwhile; find out what holds it up. The save is "
                    "given up, the step goes on",
                    url=running.url,
                    timeout=_WAIT_SECONDS,
                )
            )

    def join(self, timeout: float | None = None) -> None:
        """Returns when no save runs.

        Args:
            timeout: seconds; None: the `deadline_seconds` that the save was given.

        Raises:
            DeadlineError: it still does.
        """
        running = self._running
        if running is None:
            return
        self.hurry()
        seconds = running.deadline_seconds if timeout is None else timeout
        if not running.is_over.wait(seconds):
            raise DeadlineError(
                f"the save of {running.url} has not ended within {seconds} s; wait longer, or find "
                "out what holds it up",
                url=running.url,
                timeout=seconds,
            )
        if self._task is not None:
            # The event loop has its failure too when this returns: `EventLoop.check` tells of it.
            with suppress(Exception):
                self._task.result(seconds)
        self._account(running)

    def save(
        self,
        url: str,
        *,
        blocking: bool,
        base: str | None,
        states: Mapping[str, State],
        options: SaveOptions,
    ) -> Task[Saved] | Saved:
        """As `StepContainer.save`."""
        for name in states:
            if name in OWN_STATES:
                raise InvalidArgumentError(
                    f"save: state {name!r} is the container's own; give yours another name"
                )
            if not isinstance(states[name], State):
                raise InvalidArgumentError(
                    f"save: state {name!r} must be a State, found {type(states[name]).__name__}; "
                    "give State(values, arrays)"
                )
        container = self._container
        container.join_ahead()
        container.flushes.join()
        self.join(options.deadline_seconds)
        begin = time.perf_counter()
        saver = self._frozen(
            url, base, states, options, begin, share=1.0 if blocking else _share(options)
        )
        self.counters.freeze_seconds += time.perf_counter() - begin
        self._running = saver
        if not blocking:
            name = f"save of {url}"
            try:
                self._task = container.events.submit(
                    partial(self._run, saver, options),
                    name=name,
                    is_told=options.is_told,
                    closing_seconds=options.deadline_seconds,
                )
            except BaseException as refusal:
                _count_on(saver, options)
                saver.thaw()
                saver.is_over.set()
                give_up(saver.writer, refusal)
                raise
            return self._task
        self._task = None
        error: Exception | None = None
        saved: Saved | None = None
        try:
            saved = self._run(saver, options)
        except Exception as failure:
            error = failure
        self.join()
        agree(container.collective, f"save of {url}", error)
        assert saved is not None
        return saved

    # -- parts

    def _frozen(
        self,
        url: str,
        base: str | None,
        states: Mapping[str, State],
        options: SaveOptions,
        begin: float,
        *,
        share: float,
    ) -> Saver:
        """All tables as they are now, and a writer that nothing was given yet."""
        container = self._container
        rank = container.collective.rank
        error: Exception | None = None
        try:
            container.loads.check()
            for entry in container.entries():
                container.seek_rows(entry)
                entry.check_whole()
        except Exception as failure:
            error = failure
        check_alike(container.collective, "URLs to save to", url)
        entries = [
            (entry, entry.storage is not None and not (entry.config.is_replicated and rank))
            for entry in container.entries()
        ]
        token, base = self._agreed(url, base, [entry for entry, is_mine in entries if is_mine])
        given = {name: each for name, each in states.items() if each.is_of_rank or not rank}
        own: Mapping[str, State] = {}
        writer: SnapshotWriter | None = None
        budget = KeptBudget(options.kept_bytes)
        pace = Pace(share, budget)
        tables = []
        try:
            if error is not None:
                raise error
            own = container_states(container)
            writer = SnapshotWriter(
                url,
                step=container.counters.steps,
                rank=rank,
                world_size=container.collective.world_size,
                base=base,
                deadline_seconds=options.deadline_seconds,
                token=token,
                options=SnapshotOptions(pause=pace.pause),
            )
            writer.start_threads()
            for entry, is_mine in entries:
                tables.append(_saving_table(entry, budget if is_mine else None, base is not None))
        except Exception as failure:
            error = failure
        try:
            # All begin or none: a part that never comes would be waited for. And who fails removes
            # the folder, which another rank might just be making.
            agree(container.collective, f"save of {url}", error)
        except BaseException:
            if writer is not None:
                give_up(writer)
            raise
        assert writer is not None
        for table in tables:
            table.watch.frozen = table.frozen
            if options.is_base:
                table.counted = table.watch.changed
                table.watch.changed = _native.KeySet()
        return Saver(
            writer.url,
            container.counters.steps,
            base,
            writer,
            tables,
            {**own, **given},
            budget,
            options.retention,
            self.line,
            begin,
            pace,
            options.deadline_seconds,
        )

    def _agreed(
        self, url: str, base: str | None, entries: list[DeclaredTable]
    ) -> tuple[str, str | None]:
        """The token of this save and its base: the same on all ranks."""
        collective = self._container.collective
        if base is not None:
            place, name = locate(base)
            base = place.url_of(name)
        is_known = base is None or base == self._base
        are_counted = all(entry.watch.changed is not None for entry in entries)
        is_one = True
        token = secrets.token_bytes(_TOKEN_BYTES)
        if collective.world_size > 1:
            digest = hashlib.sha256((base or "").encode()).digest()[:_TOKEN_BYTES]
            mine = np.frombuffer(token + digest + bytes([is_known, are_counted]), np.uint8)
            every = [each.tobytes() for each in collective.all_gather(mine)]
            token = every[0][:_TOKEN_BYTES]
            is_one = len({each[_TOKEN_BYTES:-2] for each in every}) == 1
            is_known = all(each[-2] for each in every)
            are_counted = all(each[-1] for each in every)
        if not is_known:
            raise InvalidArgumentError(
                f"save of {url}: a delta over {base} was asked for, but changed keys are counted "
                f"since {self._base or 'no snapshot'}; save a full snapshot with is_base=True "
                "first, and name that one",
                url=url,
                base=base,
            )
        if not is_one:
            # Where the save of a base failed on some ranks, only those know of it.
            _log.warning(
                "save of %s: ranks count changed keys since different snapshots, as a save failed "
                "on some of them; a full snapshot is written",
                url,
            )
            base = None
        if base is not None and not are_counted:
            _log.warning(
                "save of %s: more keys changed since %s than are counted, or all rows of a table "
                "were replaced; a full snapshot is written",
                url,
                base,
            )
            base = None
        return token.hex(), base

    def _run(self, saver: Saver, options: SaveOptions) -> Saved:
        """On the thread that saves."""
        try:
            saved = saver.run()
        except BaseException:
            _count_on(saver, options)
            raise
        if options.is_base:
            self._base = saver.url
        return saved

    def _account(self, saver: Saver) -> None:
        """Counts a save that is over."""
        if self._running is saver:
            self._running = None
            self.counters.saves += saver.failure is None
            self.counters.failed += saver.failure is not None
            self.counters.wait_seconds += saver.budget.wait_seconds
            self.counters.rows_kept += saver.budget.num_rows
            self.counters.work_seconds += saver.pace.worked_seconds
            self.counters.most_kept_bytes = max(
                self.counters.most_kept_bytes, saver.budget.most_bytes
            )

    def rebase(self, url: str | None) -> None:
        """Changed keys are counted from now on, since `url`; None: no longer."""
        self._base = url
        for entry in self._container.entries():
            entry.watch.changed = None if url is None else _native.KeySet()


def _share(options: SaveOptions) -> float:
    if options.share is not None:
        return options.share
    return _SHARE_OF_FEW_CORES if execution.num_threads() <= _FEW_CORES else 1.0


def _saving_table(entry: DeclaredTable, budget: KeptBudget | None, is_delta: bool) -> SavingTable:
    """Freezes a table; without a budget this rank has no rows of it."""
    storage = entry.storage
    has_scores = storage is not None and storage.capabilities.scores != "none"
    description = TableDescription.of(entry.config, has_scores=has_scores)
    frozen = None
    if storage is not None and budget is not None:
        changed = entry.watch.changed if is_delta else None
        frozen = FrozenTable(entry.config, storage, budget, changed)
    return SavingTable(description, frozen, entry.watch, is_delta)


def _count_on(saver: Saver, options: SaveOptions) -> None:
    """After a save that failed: what was counted before it counts again."""
    if not options.is_base:
        return
    for table in saver.tables:
        before, since = table.counted, table.watch.changed
        if before is None or since is None:
            table.watch.changed = None
        else:
            since.add(before.keys())
