"""The snapshots of a run: when one is due, how they are called, and which one to go on from."""

from __future__ import annotations

import errno
import re
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
from sparring.adapter import Coordinator, locate, open_root, reading
from sparring.contracts import Collective, Reduction, interrupted_load
from sparring.errors import ConfigError, SnapshotDamagedError, SnapshotError
from sparring_train.config.run import RunConfig
from sparring_train.run.same_run import RUN, check_same_run, describe_run
from sparring_train.run.storages import format_storage

if TYPE_CHECKING:
    from sparring import StepContainer
    from sparring.adapter import Task

__all__ = ["RunSnapshots"]

_DAMAGED = "damaged"
"""In the state `RUN`: names of snapshots that the run has found damaged."""

_LASTING = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}
"""Errors of a folder that will still be there at the end of the run."""


class RunSnapshots:
    """Saves a run as its configuration says. All ranks make one and call it alike.

    Args:
        container: where the tables live.
        config: of the run.
        tell: shows one line to a person.
    """

    def __init__(
        self, container: StepContainer, config: RunConfig, tell: Callable[[str], None]
    ) -> None:
        self._container = container
        self._config = config
        self._chosen = config.snapshots
        self._tell = tell
        self._last_save = time.monotonic()
        self._since_full = 0
        self._saved_step = -1
        self._has_failed = False
        self._damaged: list[str] = []
        self._pinned: list[str] = []
        self._task: Task[SaveResult] | None = None
        self.num_failed = 0
        """Saves that failed concurrently with steps."""
        self.last_url: str | None = None
        """Of the newest that this run has committed, or was resumed from; as far as `check` knows."""

    def check_folder(self) -> None:
        """Refuses a folder in which nothing can be saved, before any step is made.

        Raises:
            ConfigError: it is no folder, or may not be written to, here or on another rank; or the
                run starts over, and the folder has snapshots of another one.
            InvalidArgumentError: no file system goes by that URL.
        """
        url = self._chosen.url
        if url is None:
            return
        error: Exception | None = None
        try:
            open_root(url).check_usable(secrets.token_hex(8))
            if not self._chosen.resume and self._container.collective.rank == 0:
                _reject_other_files(url)
        except OSError as failure:
            # Anything else, as a full disk, may have passed when the first save is due.
            if failure.errno in _LASTING:
                error = ConfigError(
                    f"snapshots.url: nothing can be saved in {url} ({failure}); name a folder that "
                    "can be written to, or that can be made",
                    setting="snapshots.url",
                )
        except Exception as failure:
            # As those of a file system's client: all ranks are told.
            error = failure
        Coordinator(self._container.collective, "snapshots of this run").agree(error)

    def check_rows(self) -> None:
        """Refuses rows of an earlier run that outlived it, before any step is made.

        Raises:
            ConfigError: there are some, here or on another rank, and this run does not resume.
            SparringError: what keeps rows cannot be reached, here or on another rank.
        """
        if self._chosen.resume:
            return
        error: Exception | None = None
        try:
            found = self._rows_left()
            if found is not None:
                error = ConfigError(
                    f"storage: {found}, and this run begins without --resume; go on with the "
                    "earlier run (--resume), keep the rows of this one elsewhere (another path or "
                    "prefix in storage.options), or clear the old ones first: remove the folder, "
                    "or open each table by sparring.open_storage and call clear()",
                    setting="storage.options",
                )
        except Exception as failure:
            # As those of a server that is not there: all ranks are told.
            error = failure
        Coordinator(self._container.collective, "storages of this run").agree(error)

    def _rows_left(self) -> str | None:
        """Which rows outlived an earlier run, in words; None: none."""
        container = self._container
        for table in container.tables:
            count = container.num_rows(table)
            if not count:
                continue
            opened = [each.storage for each in container.entries() if each.storage is not None]
            if any(interrupted_load(each) is not None for each in opened):
                return None  # the first lookup refuses them, and says which load was cut short
            place = " over ".join(map(format_storage, container.tiers(table)))
            return f"{place} has {count:,} rows of table {table!r} already"
        return None

    def is_due(self, step: int) -> bool:
        """Whether to save after `step`; all ranks get one answer."""
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

    def check(self) -> None:
        """Tells of a save that failed; the run goes on, and the next one is tried."""
        task = self._task
        if task is None or not task.done():
            return
        self._task = None
        try:
            self._report_saved(task.result())
        except Exception as error:
            self._report_failure(task.name, error)

    def _report_saved(self, saved: SaveResult) -> None:
        self.last_url = saved.url
        if saved.url in self._pinned:
            self._pinned = [saved.url]

    def pin(self, url: str) -> None:
        """Keeps a snapshot of this run until another one that is pinned has been committed."""
        self._pinned.append(url)

    def unpin(self) -> None:
        """Treats all snapshots alike again."""
        self._pinned.clear()

    def _report_failure(self, name: str, error: Exception) -> None:
        self._has_failed = True
        self.num_failed += 1
        self._tell(
            f"{name} failed: {type(error).__name__}: {error}; training goes on, and the next "
            "snapshot is tried"
        )

    def save(
        self,
        step: int,
        states: Mapping[str, State],
        *,
        is_last: bool = False,
        is_pinned: bool = False,
    ) -> str | None:
        """Saves the state after `step`, concurrently with later steps unless it is the last.

        Args:
            step: number of steps that were made.
            states: state besides that of tables.
            is_last: no step follows, so that the save is waited for.
            is_pinned: see `pin`.

        Returns:
            The URL of the snapshot; None if the step was saved before, or the save could not begin.

        Raises:
            SnapshotError: the last one failed.
            DeadlineError: the save before does not come to an end.
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
        url = _free_url(chosen.url, f"step-{step:012d}")
        if is_pinned:
            self.pin(url)
        try:
            saved = self._container.save(
                url,
                blocking=is_last,
                base=self._container.saves.base if is_delta else None,
                states={RUN: State(self._described()), **self._embedding_parts(), **states},
                options=SaveOptions(
                    deadline_seconds=chosen.deadline_seconds,
                    retention=Retention(
                        chosen.url, chosen.keep, tuple(self._damaged), tuple(self._pinned)
                    ),
                    is_base=has_deltas,
                    report_failure=False,
                ),
            )
        except SnapshotError as error:
            # It could not begin on any rank: a full disk refuses even the folder.
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
        """Returns to a snapshot of this run; the next one that is saved is full, whatever its step.

        Raises:
            SnapshotError: it was not saved, or is damaged.
        """
        self._container.saves.join(self._chosen.deadline_seconds)
        self.check()
        loaded = self._container.load(url, is_base=self._chosen.full_every > 1)
        self._since_full, self._saved_step = 0, -1
        return loaded

    def _embedding_parts(self) -> dict[str, State]:
        parts = self._config.model.read_embedding_parts
        if not parts:
            return {}
        names = [table.name for table in self._config.list_tables()]
        return {EMBEDDING_PARTS: State(dict.fromkeys(names, parts))}

    def _described(self) -> dict[str, object]:
        # Names: folders may be moved.
        names = [locate(url)[1] for url in self._damaged]
        return {**describe_run(self._config), _DAMAGED: names}

    def _has_failed_anywhere(self) -> bool:
        self._container.quiesce()
        return _any_rank(self._container.collective, self._has_failed)

    def end(
        self, step: int, states: Callable[[], Mapping[str, State]], *, is_needed: bool = False
    ) -> None:
        """Training has ended: waits for the save that runs, and saves once more if so chosen or if
        `is_needed`."""
        if self._chosen.url is None:
            return
        if self._chosen.at_end or is_needed:
            self.save(step, states(), is_last=True)
        else:
            self._container.saves.join(self._chosen.deadline_seconds)
            self.check()

    def resume(self, meanwhile: Callable[[Snapshot], None]) -> LoadResult | None:
        """Loads the newest snapshot that can be read, and says which; None: there is none.

        Args:
            meanwhile: called while its rows come in, which may be in vain: with each snapshot that
                is tried.

        Raises:
            SnapshotError: there are some, and none can be read.
            ConfigError: it is of another run: other data, model, tables or seed.
            InvalidArgumentError: its tables are others.
        """
        chosen = self._chosen
        if chosen.url is None or not chosen.resume:
            return None
        damaged: SnapshotError | None = None
        for url, reason in self._candidates(chosen.url):
            if reason:
                self._tell(f"snapshot {url} cannot be read ({reason}); the one before it is tried")
                damaged = SnapshotDamagedError(reason)
                continue
            try:
                changes = self._changes(url)
                loaded = self._loaded(url, meanwhile)
            except SnapshotError as error:
                self._tell(f"snapshot {url} cannot be read ({error}); the one before it is tried")
                if isinstance(error, SnapshotDamagedError):
                    self._damaged.append(url)
                damaged = error
                continue
            for change in changes:
                self._tell(change)
            self._report_damaged(loaded)
            self._since_full = len(open_snapshot(url).chain)
            self._saved_step = loaded.step
            self.last_url = url
            self._tell(f"resumed from {url}, after step {loaded.step}")
            return loaded
        if damaged is not None:
            raise SnapshotError(
                f"no snapshot in {chosen.url} can be read; mend or remove them, or train again into "
                "another folder",
                url=chosen.url,
            ) from damaged
        self._tell(f"there is no snapshot in {chosen.url} yet; training starts from scratch")
        left = self._rows_left()
        if left is not None:
            self._tell(f"{left}; training starts from them")
        return None

    def _changes(self, url: str) -> list[str]:
        """Differences from the run that a snapshot is of. Before any row is changed: rows may outlive
        the process, and what is refused must leave them as they are.

        Raises:
            SnapshotError: it cannot be read, here or on another rank.
            ConfigError: it is of another run.
        """
        changes: list[str] = []
        error: Exception | None = None
        try:
            changes = check_same_run(open_snapshot(url), self._config)
        except Exception as failure:
            error = failure
        Coordinator(self._container.collective, f"resuming from {url}").agree(error)
        return changes

    def _report_damaged(self, loaded: LoadResult) -> None:
        """Those that the run has found damaged before it was interrupted this time."""
        place, _ = locate(loaded.url)
        names = loaded.states[RUN].values.get(_DAMAGED, ())
        before = [place.url_of(name) for name in names]
        self._damaged = list(dict.fromkeys([*before, *self._damaged]))

    def _loaded(self, url: str, meanwhile: Callable[[Snapshot], None]) -> LoadResult:
        container = self._container
        loading = container.load(url, is_base=self._chosen.full_every > 1, blocking=False)
        try:
            # What cannot be read the load cannot read either, and tells all ranks of.
            with suppress(SnapshotError):
                meanwhile(open_snapshot(url))
        except BaseException as error:
            container.loads.stop(error)
            raise
        container.join_load()  # Ctrl-C stops it
        return loading.result()

    def _candidates(self, root: str) -> list[tuple[str, str]]:
        """URLs, the newest first, with the reason why one cannot be read: the first rank's."""
        self._container.quiesce()
        collective = self._container.collective
        found: list[tuple[str, str]] = []
        error: Exception | None = None
        try:
            found = _list_snapshots(root) if collective.rank == 0 else []
        except Exception as failure:
            error = failure
        Coordinator(collective, f"resuming from {root}").agree(error)
        if collective.world_size == 1:
            return found
        text = "\n".join("\t".join((url, " ".join(why.split()))) for url, why in found).encode()
        first = collective.all_gather(np.frombuffer(text, np.uint8))[0].tobytes().decode()
        return [(url, why) for url, _, why in (line.partition("\t") for line in first.splitlines())]


def _list_snapshots(root: str) -> list[tuple[str, str]]:
    """URLs of committed snapshots, the newest first, with the reason why one cannot be read."""
    place = open_root(root)
    with reading(place.url, "the folder"):
        try:
            names = [name for name in place.names() if place.is_committed(name)]
        except FileNotFoundError:
            return []
    found = []
    for name in names:
        url, reason = place.url_of(name), ""
        try:
            step = open_snapshot(url).step
        except SnapshotError as error:
            reason = str(error)
            # As `RunSnapshots.save` names them.
            numbers = re.findall(r"[0-9]+", name)
            step = int(numbers[0]) if numbers else -1
        found.append((step, name, url, reason))
    return [(url, reason) for _, _, url, reason in sorted(found, reverse=True)]


def _reject_other_files(root: str) -> None:
    """Two runs in one folder would remove each other's snapshots, and be resumed from as one."""
    found = _list_snapshots(root)
    if found:
        raise ConfigError(
            f"snapshots.url: {root} has {len(found)} snapshots of a run already, the newest of them "
            f"{found[0][0]}, and this one starts over; go on with that run (--resume), save this one "
            "in another folder (snapshots.url=…), or remove them first",
            setting="snapshots.url",
        )


def _free_url(root: str, name: str) -> str:
    """Of a snapshot that can be written: one that could not be read may have the name already."""
    place = open_root(root)
    names = [name, *(f"{name}-{again}" for again in range(2, 1000))]
    return place.url_of(next(each for each in names if not place.exists(each)))


def _broadcast_answer(collective: Collective, answer: bool) -> bool:
    """The first rank's answer, on all ranks."""
    return _any_rank(collective, answer and collective.rank == 0)


def _any_rank(collective: Collective, answer: bool) -> bool:
    """Whether any rank's answer is yes, on all ranks."""
    if collective.world_size == 1:
        return answer
    return bool(collective.all_reduce(np.array([answer], np.int64), Reduction.MAX)[0])
