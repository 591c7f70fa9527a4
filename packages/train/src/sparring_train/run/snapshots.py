"""Snapshots of a run: when to save, how to name, and which one to resume from."""

from __future__ import annotations

import errno
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from sparring import (
    EMBEDDING_PARTS,
    LoadResult,
    Retention,
    SaveOptions,
    SaveResult,
    Snapshot,
    State,
    open_snapshot,
)
from sparring.adapter import Coordinator, locate, open_root
from sparring.contracts import Collective, Reduction, interrupted_load
from sparring.errors import ConfigError, SnapshotDamagedError, SnapshotError
from sparring_train.config.run import RunConfig
from sparring_train.run.history import History, describe_version
from sparring_train.run.same_run import RUN, check_same_run, describe_run
from sparring_train.run.snapshot_folder import (
    free_url,
    list_candidates,
    list_good_snapshots,
    reject_other_files,
)
from sparring_train.run.storages import format_storage

if TYPE_CHECKING:
    from sparring import StepContainer
    from sparring.adapter import Task

__all__ = ["RunSnapshots"]

_DAMAGED = "damaged"
"""Key in the state `RUN`: names of snapshots that were found to be damaged."""

_LASTING = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}
"""Errors of a folder that will not disappear during the run."""


class RunSnapshots:
    """Saves a run as configured. All ranks create one and make the same calls.

    Args:
        container: container of the tables.
        config: configuration of the run.
        tell: reports a one-line message to the user.
        on_saved: called with the step and the URL of each snapshot that is committed.
    """

    def __init__(
        self,
        container: StepContainer,
        config: RunConfig,
        tell: Callable[[str], None],
        on_saved: Callable[[int, str], None] = lambda _step, _url: None,
    ) -> None:
        self._container = container
        self._config = config
        self._chosen = config.snapshots
        self._tell = tell
        self._on_saved = on_saved
        self._last_save = time.monotonic()
        self._since_full = 0
        self._saved_step = -1
        self._previous: str | None = None
        self._has_failed = False
        self._damaged: list[str] = []
        self._pinned: list[str] = []
        self._history = History(config.snapshots)
        # Step and URL of committed snapshots of this run that `keep_steps` may need, oldest first.
        self._committed: list[tuple[int, str]] = []
        self.keep_steps: Callable[[], tuple[int, ...]] = tuple
        """Returns steps to which the run may return: for each, the newest snapshot that is not after it
        is kept."""
        self.check_data: Callable[[Snapshot], None] = lambda _snapshot: None
        """Raises if the data differ from the data of the run of a snapshot, before any row changes."""
        self._task: Task[SaveResult] | None = None
        self.num_failed = 0
        """Number of saves that failed concurrently with steps."""
        self.last_url: str | None = None
        """URL of the newest snapshot that was committed or resumed from, as of the last `check`."""

    def check_folder(self) -> None:
        """Raises before the first step if snapshots cannot be saved in the folder.

        Raises:
            ConfigError: the path is not a folder or not writable, here or on another rank; or the run
                does not resume, and the folder contains snapshots.
            InvalidArgumentError: no file system supports the URL.
        """
        url = self._chosen.url
        if url is None:
            return
        error: Exception | None = None
        try:
            open_root(url).check_usable(secrets.token_hex(8))
            if not self._chosen.resume and self._container.collective.rank == 0:
                reject_other_files(url)
        except OSError as failure:
            # Other errors, such as a full disk, may have disappeared when the first save is due.
            if failure.errno in _LASTING:
                error = ConfigError(
                    f"snapshots.url: {url} is not writable ({failure}); choose a folder that "
                    "is writable, or that can be created",
                    setting="snapshots.url",
                )
        except Exception as failure:
            # For example from the client of a file system. All ranks must raise.
            error = failure
        Coordinator(self._container.collective, "snapshots of this run").agree(error)

    def check_rows(self) -> None:
        """Raises before the first step if rows of an earlier run exist.

        Raises:
            ConfigError: there are such rows, here or on another rank, and this run does not resume.
            SparringError: a storage cannot be reached, here or on another rank.
        """
        if self._chosen.resume:
            return
        error: Exception | None = None
        try:
            found = self._rows_left()
            if found is not None:
                error = ConfigError(
                    f"storage: {found}, but this run starts without --resume; resume the earlier run "
                    "(--resume), use another path or prefix in storage.options, or remove the old "
                    "rows: delete the folder, or open each table by sparring.open_storage and call "
                    "clear()",
                    setting="storage.options",
                )
        except Exception as failure:
            # For example because a server is down. All ranks must raise.
            error = failure
        Coordinator(self._container.collective, "storages of this run").agree(error)

    def _rows_left(self) -> str | None:
        """Describes rows that remain from an earlier run; None if there are none."""
        container = self._container
        for table in container.tables:
            count = container.num_rows(table)
            if not count:
                continue
            opened = [each.storage for each in container.entries() if each.storage is not None]
            if any(interrupted_load(each) is not None for each in opened):
                return None  # The first lookup raises an error that names the interrupted load.
            place = " over ".join(map(format_storage, container.tiers(table)))
            return f"{place} already contains {count:,} rows of table {table!r}"
        return None

    def is_due(self, step: int) -> bool:
        """Returns whether to save after `step`; the answer is the same on all ranks."""
        chosen = self._chosen
        if chosen.url is None:
            return False
        if chosen.every_steps is not None and step % chosen.every_steps == 0:
            return True
        if chosen.every_minutes is None:
            return False
        is_time = time.monotonic() - self._last_save >= 60 * chosen.every_minutes
        self._container.quiesce()
        return _broadcast_answer(self._container.collective, is_time)

    @property
    def running(self) -> Task[SaveResult] | None:
        """The newest save that runs concurrently with steps; None if it is reported."""
        return self._task

    def check(self) -> None:
        """Reports a save that failed. The run continues, and the next save is attempted."""
        task = self._task
        if task is None or not task.done():
            return
        self._task = None
        try:
            self._report_saved(task.result())
        except Exception as error:
            self._report_failure(task.name, error)

    def _report_saved(self, saved: SaveResult) -> None:
        self.last_url = self._previous = saved.url
        self._committed.append((saved.step, saved.url))
        if saved.url in self._pinned:
            self._pinned = [saved.url]
        self._on_saved(saved.step, saved.url)

    def pin(self, url: str) -> None:
        """Keeps a snapshot of this run until another pinned one has been committed."""
        self._pinned.append(url)

    def _list_kept(self) -> list[str]:
        """Returns the snapshots of `keep_steps`."""
        chosen = [
            [each for each in self._committed if each[0] <= step][-1:] for step in self.keep_steps()
        ]
        kept = [each for found in chosen for each in found]
        newest = self._committed[-self._chosen.keep :]
        self._committed = sorted({*kept, *newest})
        return [url for _, url in kept]

    def unpin(self) -> None:
        """Removes all pins."""
        self._pinned.clear()

    def _report_failure(self, name: str, error: Exception) -> None:
        self._has_failed = True
        self.num_failed += 1
        self._tell(
            f"{name} failed: {type(error).__name__}: {error}; training continues, and the next "
            "snapshot will be attempted"
        )

    def save(
        self,
        step: int,
        states: Mapping[str, State],
        *,
        is_last: bool = False,
        is_pinned: bool = False,
        share: float | None = None,
    ) -> str | None:
        """Saves the state after `step`, concurrently with later steps unless it is the last.

        Args:
            step: number of steps made.
            states: state in addition to the tables.
            is_last: wait for the save, because no step follows.
            is_pinned: see `pin`.
            share: see `SaveOptions.share`.

        Returns:
            The URL of the snapshot; None if the step was saved before, or the save could not start.

        Raises:
            SnapshotError: the last save failed.
            DeadlineError: the previous save did not finish in time.
        """
        chosen = self._chosen
        assert chosen.url is not None
        self._container.saves.join(chosen.deadline_seconds)
        self.check()
        if self._saved_step == step and not self._has_failed_anywhere():
            return None
        has_deltas = chosen.full_every > 1
        is_delta = has_deltas and self._since_full % chosen.full_every != 0
        self._since_full += 1
        self._saved_step = step
        self._last_save = time.monotonic()
        self._has_failed = False
        url = free_url(chosen.url, f"step-{step:012d}")
        if is_pinned:
            self.pin(url)
        self._history.add(url)
        try:
            saved = self._container.save(
                url,
                blocking=is_last,
                base=self._container.saves.base if is_delta else None,
                states={RUN: State(self._described()), **self._embedding_parts(), **states},
                options=SaveOptions(
                    deadline_seconds=chosen.deadline_seconds,
                    retention=Retention(
                        chosen.url,
                        chosen.keep,
                        tuple(self._damaged),
                        (*self._pinned, *self._history.urls(), *self._list_kept()),
                    ),
                    is_base=has_deltas,
                    index_keys=chosen.history is not None,
                    share=share,
                    report_failure=False,
                ),
            )
        except SnapshotError as error:
            # The save did not start on any rank, for example because the disk is full.
            if is_last:
                raise
            self._report_failure(f"save of {url}", error)
            return None
        if isinstance(saved, SaveResult):
            self._report_saved(saved)
        else:
            self._task = saved
        return url

    def load(self, url: str) -> LoadResult:
        """Loads a snapshot of this run. The next save is then full, at any step.

        Raises:
            SnapshotError: it was not saved, or is damaged.
        """
        self._container.saves.join(self._chosen.deadline_seconds)
        self.check()
        loaded = self._container.load(url, is_base=self._chosen.full_every > 1)
        self._since_full, self._saved_step, self._previous = 0, -1, url
        return loaded

    def _embedding_parts(self) -> dict[str, State]:
        parts = self._config.model.embedding_parts
        if not parts:
            return {}
        names = [table.name for table in self._config.list_tables()]
        return {EMBEDDING_PARTS: State(dict.fromkeys(names, parts))}

    def _described(self) -> dict[str, object]:
        # Stores names, because folders may be moved.
        names = [locate(url)[1] for url in self._damaged]
        previous = None if self._previous is None else locate(self._previous)[1]
        return {**describe_run(self._config), _DAMAGED: names, **describe_version(previous)}

    def _has_failed_anywhere(self) -> bool:
        self._container.quiesce()
        return _any_rank(self._container.collective, self._has_failed)

    def end(
        self, step: int, states: Callable[[], Mapping[str, State]], *, is_needed: bool = False
    ) -> None:
        """Waits for the save in progress, and saves the last step if configured or if `is_needed`."""
        if self._chosen.url is None:
            return
        if self._chosen.at_end or is_needed:
            self.save(step, states(), is_last=True)
        else:
            self._container.saves.join(self._chosen.deadline_seconds)
            self.check()

    def resume(
        self, meanwhile: Callable[[Snapshot], None], *, is_return: bool = False
    ) -> LoadResult | None:
        """Loads the newest readable snapshot, and reports it; returns None if there are no snapshots.
        Snapshots of steps that the run has dropped are left out.

        Args:
            is_return: whether the active run returns to an earlier step.
            meanwhile: called with each snapshot that is attempted, while its rows are loaded. The load
                may fail later.

        Raises:
            SnapshotError: there are snapshots, but none is readable.
            ConfigError: the snapshot has other data, model, tables or seed.
            InvalidArgumentError: its tables differ.
        """
        chosen = self._chosen
        loaded = None
        if is_return:
            self._container.saves.join(chosen.deadline_seconds)
            self.check()
        if chosen.url is not None and (chosen.resume or is_return):
            loaded = self._load_newest(chosen.url, meanwhile)
            if loaded is not None:
                self._report_damaged(loaded)
                self._since_full = len(open_snapshot(loaded.url).chain)
                self._saved_step, self._previous = loaded.step, loaded.url
                self._history = History(chosen)
                if self._container.collective.rank == 0:
                    self._history.read(loaded.url)
                    self._committed = [
                        (each.step, each.url)
                        for each in list_good_snapshots(chosen.url)
                        if each.step <= loaded.step
                    ]
        if loaded is None and chosen.start_from is not None:
            loaded = self._load_newest(chosen.start_from, meanwhile, is_own=False)
        if loaded is not None:
            self.last_url = loaded.url
            self._tell(f"resumed from {loaded.url}, after step {loaded.step}")
        elif chosen.url is not None and chosen.resume:
            self._tell(
                f"there is no snapshot in {chosen.url} yet; training starts from the beginning"
            )
            left = self._rows_left()
            if left is not None:
                self._tell(f"{left}; training starts from them")
        return loaded

    def _load_newest(
        self, root: str, meanwhile: Callable[[Snapshot], None], *, is_own: bool = True
    ) -> LoadResult | None:
        """Loads the newest readable snapshot in a folder; None if there is no snapshot.

        Args:
            root: the folder; or a snapshot, if not `is_own`.
            meanwhile: see `resume`.
            is_own: whether the snapshots belong to this run, so that deltas to them can be saved.
        """
        chosen = self._chosen
        damaged: SnapshotError | None = None
        for url, reason in self._candidates(root) or ([] if is_own else [(root, "")]):
            if reason:
                self._tell(f"snapshot {url} is unreadable ({reason}); trying the one before it")
                damaged = SnapshotDamagedError(reason)
                continue
            try:
                changes = self._changes(url)
                loaded = self._loaded(url, meanwhile, is_base=is_own and chosen.full_every > 1)
            except SnapshotError as error:
                self._tell(f"snapshot {url} is unreadable ({error}); trying the one before it")
                if is_own and isinstance(error, SnapshotDamagedError):
                    self._damaged.append(url)
                damaged = error
                continue
            for change in changes:
                self._tell(change)
            return loaded
        if damaged is not None:
            raise SnapshotError(
                f"no snapshot in {root} is readable; repair or remove them, or train again with "
                "another folder",
                url=root,
            ) from damaged
        return None

    def _changes(self, url: str) -> list[str]:
        """Returns differences from the run of a snapshot. Called before any row changes, because rows may
        be persistent, and a rejected run must not change them.

        Raises:
            SnapshotError: the snapshot cannot be read, here or on another rank.
            ConfigError: it belongs to another run.
        """
        changes: list[str] = []
        error: Exception | None = None
        try:
            snapshot = open_snapshot(url)
            changes = check_same_run(snapshot, self._config)
            self.check_data(snapshot)
        except Exception as failure:
            error = failure
        Coordinator(self._container.collective, f"resuming from {url}").agree(error)
        return changes

    def _report_damaged(self, loaded: LoadResult) -> None:
        """Adds the snapshots that were found to be damaged before the run was interrupted."""
        place, _ = locate(loaded.url)
        names = loaded.states[RUN].values.get(_DAMAGED, ())
        before = [place.url_of(name) for name in names]
        self._damaged = list(dict.fromkeys([*before, *self._damaged]))

    def _loaded(
        self, url: str, meanwhile: Callable[[Snapshot], None], *, is_base: bool
    ) -> LoadResult:
        container = self._container
        loading = container.load(url, is_base=is_base, blocking=False)
        try:
            # The load raises the same error, and reports it to all ranks.
            with suppress(SnapshotError):
                meanwhile(open_snapshot(url))
        except BaseException as error:
            container.loads.stop(error)
            raise
        container.join_load()  # Can be interrupted by Ctrl-C.
        return loading.result()

    def _candidates(self, root: str) -> list[tuple[str, str]]:
        """Returns the URLs that the first rank finds, newest first, with the reason if unreadable."""
        self._container.quiesce()
        collective = self._container.collective
        found: list[tuple[str, str]] = []
        error: Exception | None = None
        try:
            found = list_candidates(root) if collective.rank == 0 else []
        except Exception as failure:
            error = failure
        Coordinator(collective, f"resuming from {root}").agree(error)
        if collective.world_size == 1:
            return found
        text = "\n".join("\t".join((url, " ".join(why.split()))) for url, why in found).encode()
        first = collective.all_gather(np.frombuffer(text, np.uint8))[0].tobytes().decode()
        return [(url, why) for url, _, why in (line.partition("\t") for line in first.splitlines())]


def _broadcast_answer(collective: Collective, answer: bool) -> bool:
    """Returns the first rank's answer on all ranks."""
    return _any_rank(collective, answer and collective.rank == 0)


def _any_rank(collective: Collective, answer: bool) -> bool:
    """Returns on all ranks whether the answer of any rank is yes."""
    if collective.world_size == 1:
        return answer
    return bool(collective.all_reduce(np.array([answer], np.int64), Reduction.MAX)[0])
